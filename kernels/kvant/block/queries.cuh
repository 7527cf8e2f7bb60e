#pragma once

#include <cstdint>
#include <type_traits>

#include <kvant/format/format.hpp>
#include <kvant/half.hpp>
#include <kvant/warp/ptx.cuh>
#include <kvant/warp/rotate.cuh>
#include <kvant/warp/unpack.cuh>

namespace kvant::inline v0::detail {

/// Nothing, in as many bytes as a member needs.
struct no_operand {};

/// 16-bit operand B of m16n8k16, by step and lane. With 4 columns, query c is mma column 2c and its low part 2c + 1.
template <int Dim>
struct pair_columns {
  alignas(16) uint2 at[Dim / 16][32];
};
/// int8 operand B of m16n8k32, by step and lane: the high and middle bytes of 127 q = high + middle / 2^7 + low / 2^14.
/// With 4 columns, the high part of query c is mma column 2c and the middle one 2c + 1; with 8, they are two sets.
template <int Dim, int Columns>
struct byte_columns {
  alignas(16) uint2 at[Columns == 4 ? 1 : 2][Dim / 32][32];
};
/// The same bytes as operand A: rows g and g + 8 are the high and middle parts of query g; with 4 columns rows 4 + g
/// are the low part, with 8 the second set has it.
template <int Dim, int Columns>
struct byte_rows {
  static constexpr int sets = Columns == 4 ? 1 : 2;
  alignas(16) uint4 at[sets][Dim / 32][32];
};

/// The queries of a segment, one a column, as a warp's operands: as they came, and rotated, both divided by a power of
/// two that brings the largest entry to [0.5, 1). Channels stand in the order of positions (layout/slot_order.hpp), so
/// that four neighbours are what a lane needs in a step.
template <class Key, int Dim, int Columns>
struct query_storage {
  static constexpr bool bytes = has_byte_unpack<codec_of<Key>>;
  union {
    struct {
      pair_columns<Dim> plain;
      std::conditional_t<bytes, byte_columns<Dim, Columns>, pair_columns<Dim>> rotated;
    };
    float out[Columns][Dim];  // once the queries have done their work, by position
  };
  std::conditional_t<Key::is_centered, byte_rows<Dim, Columns>, no_operand> rows;  // for the product with page means
  float plain_scale[Columns], rotated_scale[Columns];                              // the powers of two
};

/// The power of two that brings the largest |x| of the warp to (0.5, 1], and what multiplies x by it; 1 for zeros.
struct normalizing_power {
  float power, inverse;
  __device__ __forceinline__ explicit normalizing_power(float const (&x)[4]) {
    float const largest = ptx::warp_max(fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3]))));
    std::uint32_t const up = (__float_as_uint(largest) + 0x007fffffu) & 0x7f800000u, one = 0x3f800000u;
    // Within 2^-126 to 2^126, so that the inverse is a number too.
    std::uint32_t const bits = largest > 0.f ? min(max(up, 1u << 23), 253u << 23) : one;
    power = __uint_as_float(bits), inverse = __uint_as_float(2 * one - bits);
  }
};

/// What a lane holds of a query before it is rotated: four neighbours, and their balance factors, as they are stored.
template <class T>
struct query_lane {
  static_assert(sizeof(T) == 2, "query_lane: 16-bit queries");
  uint2 x{}, factor{};

  template <class Element>
  static __device__ __forceinline__ float at(uint2 const& four, int i) {
    Element e;
    e.bits = static_cast<std::uint16_t>((i < 2 ? four.x : four.y) >> (16 * (i & 1)));
    return static_cast<float>(e);
  }
};

/// Loads one query (null: zeros) and its balance factors (null: none).
template <class T>
__device__ __forceinline__ query_lane<T> load_query(T const* row, half const* factors, int lane) {
  query_lane<T> q;
  if (row != nullptr) q.x = reinterpret_cast<uint2 const*>(row)[lane];
  if (factors != nullptr) q.factor = reinterpret_cast<uint2 const*>(factors)[lane];
  return q;
}

/// scale * x as three bytes each: part[0] + part[1] / 2^7 + part[2] / 2^14.
__device__ __forceinline__ void bytes_of(float const (&x)[4], float scale, std::uint32_t (&part)[3]) {
  part[0] = part[1] = part[2] = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float rest = x[i] * scale;
#pragma unroll
    for (int p = 0; p < 3; ++p) {
      float const whole = rintf(rest);
      part[p] |= (static_cast<std::uint32_t>(static_cast<std::int32_t>(whole)) & 255u) << (8 * i);
      rest = (rest - whole) * 128.f;
    }
  }
}

/// scale * x, the lane's four positions of a query, into column c as elements of type E; what E leaves is the low part.
template <class E, int Columns, int Dim>
__device__ __forceinline__ void put_pairs(pair_columns<Dim>& to, int c, float const (&x)[4], float scale, int lane) {
  // Positions 4 lane + (0..3) are both registers of lanes 4g + t in step 2 (lane / 8) + lane % 2.
  uint2* const at = &to.at[2 * (lane >> 3) + (lane & 1)][(lane >> 1) & 3];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float const y0 = x[2 * i] * scale, y1 = x[2 * i + 1] * scale;
    std::uint32_t const high = ptx::pair_bits(E{}, y0, y1);
    float2 const kept = ptx::pair_values(E{}, high);
    auto const put = [&](int column, std::uint32_t word) { (i == 0 ? at[4 * column].x : at[4 * column].y) = word; };
    put(Columns == 4 ? 2 * c : c, high);
    if constexpr (Columns == 4) put(2 * c + 1, ptx::pair_bits(E{}, y0 - kept.x, y1 - kept.y));
  }
}

/// One query into column c.
template <class Key, int Dim, int Columns, class T>
__device__ __forceinline__ void store_query(query_storage<Key, Dim, Columns>& s, int c, query_lane<T> const& q,
                                            int lane) {
  static_assert(Dim == 128, "store_query: head_dim 128");
  float plain[4], rotated[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    rotated[i] = plain[i] = q.template at<T>(q.x, i);
    if constexpr (Key::is_balanced) rotated[i] *= effective_factor(half{q.template at<half>(q.factor, i)});
  }
  rotate_128<rotation_of<Key>>(rotated, lane);
  normalizing_power const of_plain(plain), of_rotated(rotated);
  if (lane == 0) s.plain_scale[c] = of_plain.power, s.rotated_scale[c] = of_rotated.power;
  put_pairs<T, Columns>(s.plain, c, plain, of_plain.inverse, lane);
  // Position 32k + 8t + 4i + (0..3) is register i of lane 4g + t in step k; this lane's are 4 lane + (0..3).
  int const k = lane >> 3, t = (lane >> 1) & 3, i = lane & 1;
  std::uint32_t part[3];
  constexpr bool bytes = query_storage<Key, Dim, Columns>::bytes;
  if constexpr (bytes || Key::is_centered) bytes_of(rotated, 127.f * of_rotated.inverse, part);
  if constexpr (bytes) {
    auto const put = [&](int set, int g, std::uint32_t word) {
      reinterpret_cast<std::uint32_t*>(&s.rotated.at[set][k][4 * g + t])[i] = word;
    };
    if constexpr (Columns == 4)
      put(0, 2 * c, part[0]), put(0, 2 * c + 1, part[1]);
    else
      put(0, c, part[0]), put(1, c, part[1]);
  } else {
    put_pairs<half, Columns>(s.rotated, c, rotated, of_rotated.inverse, lane);
  }
  if constexpr (Key::is_centered) {
    auto const put = [&](int set, int g, std::uint32_t upper, std::uint32_t lower) {
      auto* const words = reinterpret_cast<std::uint32_t*>(&s.rows.at[set][k][4 * g + t]);
      words[2 * i] = upper, words[2 * i + 1] = lower;
    };
    put(0, c, part[0], part[1]);
    if constexpr (Columns == 4)
      put(0, 4 + c, part[2], 0);
    else
      put(1, c, part[2], 0);
  }
}

}  // namespace kvant::inline v0::detail
