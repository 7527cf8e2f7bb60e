#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <kvant/block/queries.cuh>
#include <kvant/warp/unpack.cuh>

namespace kvant::inline v0::detail {

// Products of a tile's key levels with the queries of a warp: raw scores, to be multiplied by the
// token's scale, the query's power and `unit`. Each class is what page_tile.cuh takes as KeyProduct:
//   KeyProduct(queries, lane)             the queries as B operands in registers
//   scores(words, one, s)                 s[b][r][c]: raw score of token 16b + 8r + g, column c of the lane
//   unit                                  what a raw score must be multiplied by for stored scalar 1
// With 4 columns the odd mma columns carry the low part of the query.

/// An int32 accumulator that can be read as a float without a conversion: it starts from the bits of 2^23 + 2^22.
struct float_accumulator {
  static constexpr float magic = 12582912.f;
  static __device__ __forceinline__ void clear(std::int32_t (&c)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = 0x4b400000;
  }
  /// high + low / 2^7, rounded once.
  static __device__ __forceinline__ float joined(std::int32_t high, std::int32_t low) {
    return fmaf(__int_as_float(low), 1.f / 128.f, __int_as_float(high) - (magic + magic / 128.f));
  }
};

/// The product of a page mean with the rotated queries, 127 q * mean / mean scale, exact in int32: with means many
/// times the residual, a query rounded to fp16 would not do. The queries are A, and every column of B is the mean.
template <int Dim, int Columns, int Own = Columns == 4 ? 1 : 2>
__device__ __forceinline__ void mean_product(byte_rows<Dim, Columns> const& queries, std::byte const* bytes, int lane,
                                             float (&m)[Own]) {
  constexpr int sets = byte_rows<Dim, Columns>::sets;
  std::int32_t c[sets][4];
#pragma unroll
  for (int p = 0; p < sets; ++p) float_accumulator::clear(c[p]);
#pragma unroll
  for (int k = 0; k < Dim / 32; ++k) {
    uint2 const mean = *reinterpret_cast<uint2 const*>(bytes + 32 * k + 8 * (lane & 3));
#pragma unroll
    for (int p = 0; p < sets; ++p) {
      uint4 const q = queries.at[p][k][lane];
      std::uint32_t const fragment[4] = {q.x, q.y, q.z, q.w};
      ptx::mma(c[p], fragment, mean.x, mean.y);
    }
  }
  float const high = float_accumulator::joined(c[0][0], c[0][2]);
  if constexpr (Own == 1) {
    // Rows g and g + 8: high and middle part of query g < 4; row 4 + g: its low part.
    float const part = lane < 16 ? high : high * 0x1p-14f;
    float const whole = part + __shfl_xor_sync(~0u, part, 16);
    m[0] = __shfl_sync(~0u, whole, 4 * (lane & 3));
  } else {
    float const whole = fmaf(__int_as_float(c[1][0]) - float_accumulator::magic, 0x1p-14f, high);
    m[0] = __shfl_sync(~0u, whole, 8 * (lane & 3));
    m[1] = __shfl_sync(~0u, whole, 8 * (lane & 3) + 4);
  }
}

/// fp16 operands; with 8 columns the query is rounded to fp16.
template <class Codec, int Dim, int Columns>
struct half_key_product {
  using unpack = fragment_unpack<Codec>;
  static constexpr int steps = Dim / 16, own = Columns == 4 ? 1 : 2;
  static constexpr float unit = unpack::scale;

  static_assert(unpack::offset == 0.f, "half_key_product: a codec without an offset");

  uint2 q[steps];

  __device__ __forceinline__ half_key_product(pair_columns<Dim> const& queries, int lane) {
#pragma unroll
    for (int s = 0; s < steps; ++s) q[s] = queries.at[s][lane];
  }

  template <int Words, int Blocks>
  __device__ __forceinline__ void scores(std::uint32_t const (&w)[Words], std::uint32_t one,
                                         float (&s)[Blocks][2][own]) const {
    float c[Blocks][4];
#pragma unroll
    for (int b = 0; b < Blocks; ++b)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[b][i] = 0.f;
#pragma unroll
    for (int k = 0; k < steps; ++k)
#pragma unroll
      for (int b = 0; b < Blocks; ++b) {
        int const f = b * steps + k;
        std::uint32_t fragment[4];
        unpack::unpack(&w[f / unpack::fragments_per_unit * unpack::words_per_unit], f % unpack::fragments_per_unit, one,
                       fragment);
        ptx::mma(c[b], fragment, q[k].x, q[k].y);
      }
#pragma unroll
    for (int b = 0; b < Blocks; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if constexpr (own == 1)
          s[b][r][0] = c[b][2 * r] + c[b][2 * r + 1];
        else
          s[b][r][0] = c[b][2 * r], s[b][r][1] = c[b][2 * r + 1];
      }
  }
};

/// int8 operands, the query as a high and a middle byte: more exact than fp16, and half the unpacking.
template <class Codec, int Dim, int Columns>
struct byte_key_product {
  using unpack = byte_unpack<Codec>;
  static constexpr int steps = Dim / 32, own = Columns == 4 ? 1 : 2, parts = Columns == 4 ? 1 : 2;
  static constexpr float unit = unpack::scale / 127.f;
  uint2 q[parts][steps];

  __device__ __forceinline__ byte_key_product(byte_columns<Dim, Columns> const& queries, int lane) {
#pragma unroll
    for (int p = 0; p < parts; ++p)
#pragma unroll
      for (int s = 0; s < steps; ++s) q[p][s] = queries.at[p][s][lane];
  }

  template <int Words, int Blocks>
  __device__ __forceinline__ void scores(std::uint32_t const (&w)[Words], std::uint32_t one,
                                         float (&s)[Blocks][2][own]) const {
    std::int32_t c[Blocks][parts][4];
#pragma unroll
    for (int b = 0; b < Blocks; ++b)
#pragma unroll
      for (int p = 0; p < parts; ++p) float_accumulator::clear(c[b][p]);
#pragma unroll
    for (int k = 0; k < steps; ++k)
#pragma unroll
      for (int b = 0; b < Blocks; ++b) {
        std::uint32_t fragment[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          int const f = 2 * (b * steps + k) + i;
          unpack::unpack(&w[f / unpack::fragments_per_unit * unpack::words_per_unit], f % unpack::fragments_per_unit,
                         one, fragment[2 * i], fragment[2 * i + 1]);
        }
#pragma unroll
        for (int p = 0; p < parts; ++p) ptx::mma(c[b][p], fragment, q[p][k].x, q[p][k].y);
      }
#pragma unroll
    for (int b = 0; b < Blocks; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if constexpr (own == 1) {
          s[b][r][0] = float_accumulator::joined(c[b][0][2 * r], c[b][0][2 * r + 1]);
        } else {
          s[b][r][0] = float_accumulator::joined(c[b][0][2 * r], c[b][1][2 * r]);
          s[b][r][1] = float_accumulator::joined(c[b][0][2 * r + 1], c[b][1][2 * r + 1]);
        }
      }
  }
};

/// Bytes where the codec has them, for they cost the integer pipe less.
template <class Codec, int Dim, int Columns>
using key_product = std::conditional_t<has_byte_unpack<Codec>, byte_key_product<Codec, Dim, Columns>,
                                       half_key_product<Codec, Dim, Columns>>;

}  // namespace kvant::inline v0::detail
