#pragma once

#include <cstdint>
#include <type_traits>

#include <kvant/format/format.hpp>
#include <kvant/format/scale.hpp>
#include <kvant/layout/code_order.hpp>
#include <kvant/warp/quantize.cuh>

namespace kvant::inline v0::detail {

/// 16 rows of Dim halves in the registers of a warp: pair [r][i] of lane 4g + t is of row g + 8r, two neighbours from
/// position 32 (i / 4) + 8t + 2 (i % 4) on. Registers 2s and 2s + 1 are then the k operands of slots 16s .. 16s + 15.
template <int Dim>
using row_pairs = std::uint32_t[2][Dim / 8];

/// The squared norms of rows g and g + 8, in all lanes 4g + t: diagonals of X X^T. Two registers of one row take the
/// places of rows g and g + 8 of A, so that no register moves; what is off the diagonal is thrown away. A row that is
/// not finite gives what is not finite, and spoils no other.
template <int Dim>
__device__ __forceinline__ void squared_norms(row_pairs<Dim> const& x, int lane, float (&norm)[2]) {
  float c[2][2][4] = {};
#pragma unroll
  for (int i = 0; i < Dim / 8; i += 2)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      ptx::mma_k8(c[r][0], x[r][i], x[r][i + 1], x[r][i]);
      ptx::mma_k8(c[r][1], x[r][i], x[r][i + 1], x[r][i + 1]);
    }
  int const g = lane >> 2, holder = 4 * g + (g >> 1);
#pragma unroll
  for (int r = 0; r < 2; ++r)
    norm[r] = __shfl_sync(~0u, g & 1 ? __fadd_rn(c[r][0][1], c[r][1][3]) : __fadd_rn(c[r][0][0], c[r][1][2]), holder);
}

/// Values that are not finite become 0.
template <int Dim>
__device__ void make_finite(row_pairs<Dim>& x) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int i = 0; i < Dim / 8; ++i) {
      if ((x[r][i] & 0x7c00u) == 0x7c00u) x[r][i] &= 0xffff0000u;
      if ((x[r][i] & 0x7c000000u) == 0x7c000000u) x[r][i] &= 0xffffu;
    }
}

/// The signs of a randomized rotation for the pairs of lane t: bit i for the first of pair i, bit 16 + i for the
/// second.
template <class Rotation, int Dim>
__device__ __forceinline__ std::uint32_t sign_bits(int t) {
  static_assert(Dim == 128, "sign_bits: head_dim 128");
  constexpr auto of_lane = [](int lane_t) {
    std::uint32_t bits = 0;
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 2; ++j)
        if (negative_sign(Rotation::seed, 32 * (i / 4) + 8 * lane_t + 2 * (i % 4) + j)) bits |= 1u << (16 * j + i);
    return bits;
  };
  constexpr std::uint32_t s0 = of_lane(0), s1 = of_lane(1), s2 = of_lane(2), s3 = of_lane(3);
  return t < 2 ? (t == 0 ? s0 : s1) : (t == 2 ? s2 : s3);
}

/// H_16 times `gain` (a half) as an operand of m16n8k16 in lane 4g + t, the columns negated that the pairs of signs say.
struct hadamard_operand {
  std::uint32_t low, high;  // k = 2t, 2t + 1 and k + 8, of row (or column) g; g + 8 has -high
};
__device__ __forceinline__ hadamard_operand make_operand(int lane, std::uint32_t gain, std::uint32_t sign_low,
                                                         std::uint32_t sign_high) {
  int const g = lane >> 2, t = lane & 3;
  // H_16 has four equal quarters, one of them negated.
  std::uint32_t const h =
      gain ^ ((__popc(g & (2 * t)) & 1 ? 0x8000u : 0u) | (__popc(g & (2 * t + 1)) & 1 ? 0x80000000u : 0u));
  return {h ^ sign_low, h ^ sign_high};
}

/// A float that is divided by way of a reciprocal, which is off by a unit in the last place.
struct rough_float {
  float value;
  __device__ __forceinline__ rough_float(float x) : value(x) {}
  __device__ __forceinline__ rough_float(int x) : value(static_cast<float>(x)) {}
  __device__ __forceinline__ explicit operator float() const { return value; }
  friend __device__ __forceinline__ rough_float operator*(rough_float a, rough_float b) {
    return __fmul_rn(a.value, b.value);
  }
  friend __device__ __forceinline__ rough_float operator/(rough_float a, rough_float b) {
    return __fmul_rn(a.value, ptx::rcp(b.value));
  }
  friend __device__ __forceinline__ bool operator>(rough_float a, rough_float b) { return a.value > b.value; }
  friend __device__ __forceinline__ rough_float sqrt(rough_float a) { return sqrtf(a.value); }
};

/// Rows rotated, coded and packed.
template <class Format, side S, int Dim>
struct row_quantizer {
  using codec = codec_of<Format>;
  using quantize = fragment_quantize<codec>;
  using search = cell_search<codec::bits>;
  using rule = scale_of<Format, S>;
  static_assert(rotation_of<Format>::rotates && grouping_of<Format>::group_channels(Dim) == Dim,
                "row_quantizer: formats that rotate, one group a head");
  static_assert(Dim == 128, "row_quantizer: head_dim 128");
  static constexpr int steps = Dim / 16, units = steps / quantize::fragments_per_unit;
  static constexpr int words = units * quantize::words_per_unit;
  static constexpr bool level_squares =  // values spend registers on <l, l> only if their rule reads it
      S == side::key || !(std::is_same_v<rule, unbiased> || std::is_same_v<rule, plain_norm>);
  /// What H carries: sums of coordinates times levels of values are subnormal halves.
  static constexpr float gain = S == side::key ? 1.f : 16.f;
  /// Squared norms of rows (0 aside) with which fp16 is exact enough, and no sum leaves it.
  static constexpr float least_square = S == side::key ? 0x1p-16f : 0x1p-6f, most_square = 0x1p16f;

  std::uint32_t word[words];
  /// Stored scalars: keys, in lanes 4g + g / 2, of tokens g and g + 8; values, in every lane, of token
  /// 2t + (g >> 1 & 1) + 8 (g >> 2), in scalar[0].
  half scalar[2];

  std::uint32_t y[steps][4];

  /// y <- H x in fragment order for keys, X H: an mma with H_16 (of no signs), butterflies over the rest. Four registers
  /// of a row, as they were loaded, are A: those of slots 16s + 2t and 16s + 8 + 2t take the places of rows g and g + 8,
  /// the neighbours 16 slots on those of k + 8. So H_16 is over bits 0, 1, 2 and 4 of the slot, and no register moves.
  __device__ __forceinline__ void rotate(row_pairs<Dim> const& x, hadamard_operand h, std::uint32_t one) {
    static_assert(S == side::key);
    // Four registers, of which the compiler does not know that three are equal: it would copy them for every mma.
    std::uint32_t const zero = one ^ half_pair(1.f), low[2] = {h.low, h.high ^ zero},
                        high[2] = {h.low ^ (zero << 1), h.high ^ 0x80008000u};
#pragma unroll
    for (int c = 0; c < steps / 2; ++c)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        std::uint32_t const a[4] = {x[r][4 * c], x[r][4 * c + 1], x[r][4 * c + 2], x[r][4 * c + 3]};
        std::uint32_t to[2];
        ptx::mma_halves(to, a, low[0], low[1]);
        y[2 * c][r] = to[0], y[2 * c][r + 2] = to[1];
        ptx::mma_halves(to, a, high[0], high[1]);
        y[2 * c + 1][r] = to[0], y[2 * c + 1][r + 2] = to[1];
      }
#pragma unroll
    for (int s = 0; s < steps; ++s)
#pragma unroll
      for (int r = 0; r < 2; ++r) butterfly(y[s][r], y[s][r + 2]);
    over_fragments<2>();
  }
  /// For values, H X^T: an mma with H_16 over the slots of a fragment, butterflies over the fragments. operand(s): the
  /// registers of A, with the signs of fragment s.
  template <class Operand>
  __device__ __forceinline__ void rotate(row_pairs<Dim> const& x, Operand operand) {
    static_assert(S == side::value);
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      uint4 const h = operand(s);
      std::uint32_t const a[4] = {h.x, h.y, h.z, h.w};
      std::uint32_t c[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        ptx::mma_halves(c, a, x[r][2 * s], x[r][2 * s + 1]);
        y[s][2 * r] = c[0], y[s][2 * r + 1] = c[1];
      }
    }
    over_fragments<1>();
  }

  /// Words and scalars of what was rotated. norm: <row, row>; back: what a row was divided by; both of rows g and g + 8
  /// in all lanes 4g + t.
  __device__ __forceinline__ void code(float const (&norm)[2], float const (&back)[2], std::uint32_t one, int lane) {
    search_pair by[4];
    search_for(norm, by);
    std::uint32_t codes[steps];
    std::conditional_t<S == side::key, key_sums, value_sums> sums{};
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      std::uint32_t l[4];
      codes[s] = quantize::code(y[s], by, one, l);
      sums.add(y[s], l);
    }
#pragma unroll
    for (int u = 0; u < units; ++u)
      quantize::pack(codes + u * quantize::fragments_per_unit, word + u * quantize::words_per_unit);
    fit(sums, norm, back, lane);
  }

 private:
  static __device__ __forceinline__ void butterfly(std::uint32_t& a, std::uint32_t& b) {
    std::uint32_t const sum = ptx::add2(a, b);
    b = ptx::sub2(a, b), a = sum;
  }
  template <int First>
  __device__ __forceinline__ void over_fragments() {
#pragma unroll
    for (int step = First; step < steps; step *= 2)
#pragma unroll
      for (int s = 0; s < steps; ++s)
        if (!(s & step))
#pragma unroll
          for (int i = 0; i < 4; ++i) butterfly(y[s][i], y[s + step][i]);
  }

  /// A row's coordinates have its norm for root mean square: H is not orthonormal.
  static __device__ __forceinline__ void search_for(float const (&norm)[2], search_pair (&by)[4]) {
    using table = codebook_table<codec::bits>;
    constexpr float largest = static_cast<float>(table::largest) * table::step;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float const inverse = norm[r] > 0.f ? ptx::rsqrt(norm[r]) : 0.f;
      float const slope = __fmul_rn(inverse, search::slope / gain),
                  limit = __fmul_rn(__fmul_rn(norm[r], inverse), largest * gain);
      search_pair const row{ptx::half2_bits(slope, slope), ptx::half2_bits(limit, limit)};
      if constexpr (S == side::key)  // registers i and i + 2 are of token g + 8i
        by[r] = by[r + 2] = row;
      else  // 2r and 2r + 1 of tokens 2t + j + 8r
        by[2 * r] = by[2 * r + 1] = {ptx::movmatrix(row.slope), ptx::movmatrix(row.limit)};
    }
  }

  /// <l, l> and <y, l> from diagonals: rows 0..7 of A are levels, rows 8..15 coordinates of the same tokens.
  struct key_sums {
    float c[2][4];
    __device__ __forceinline__ void add(std::uint32_t const (&y)[4], std::uint32_t const (&l)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::mma_k8(c[i & 1], l[i], y[i], l[i]);
    }
  };
  /// Over the dims of a lane, in fp16: [token / 8], a pair of tokens each.
  struct value_sums {
    std::uint32_t yl[2], ll[2];
    static constexpr float level_scale = 32768.f;
    __device__ __forceinline__ void add(std::uint32_t const (&y)[4], std::uint32_t const (&l)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        yl[i / 2] = ptx::fma2(y[i], l[i], yl[i / 2]);
        if constexpr (level_squares) {
          std::uint32_t const m = ptx::mul2(l[i], half_pair(level_scale));
          ll[i / 2] = ptx::fma2(m, m, ll[i / 2]);
        }
      }
    }
  };

  /// From sums over entries and over coordinates that were rotated.
  static __device__ __forceinline__ half fit_one(float norm, float back, float yl, float ll) {
    constexpr float unit = quantize::level_unit, inverse_root = 0.08838834764f;  // 1 / sqrt(Dim)
    return codec::template fit<rule>(basic_moments<rough_float>{Dim, norm * back * back,
                                                                yl * back * (unit * inverse_root / gain),
                                                                ll * unit * unit})
        .scalar[0];
  }
  __device__ __forceinline__ void fit(key_sums const& sums, float const (&norm)[2], float const (&back)[2], int lane) {
    bool const odd = lane & 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      auto const& c = sums.c[r];
      scalar[r] = fit_one(norm[r], back[r], odd ? c[3] : c[2], odd ? c[1] : c[0]);
    }
  }
  /// Sums over lanes in fp32, each step halving the tokens of a lane.
  __device__ __forceinline__ void fit(value_sums const& sums, float const (&norm)[2], float const (&back)[2],
                                      int lane) {
    int const t = lane & 3, r = lane >> 4, holder = 8 * t + 4 * ((lane >> 3) & 1) + r;
    float const n = __shfl_sync(~0u, lane & 1 ? norm[1] : norm[0], holder);
    float const b = __shfl_sync(~0u, lane & 1 ? back[1] : back[0], holder);
    constexpr float scale = 1.f / (value_sums::level_scale * value_sums::level_scale);
    float const ll = level_squares ? over_lanes(sums.ll, lane) * scale : 0.f;
    scalar[0] = fit_one(n, b, over_lanes(sums.yl, lane), ll);
  }
  static __device__ __forceinline__ float over_lanes(std::uint32_t const (&v)[2], int lane) {
    bool const r = lane & 16, j = lane & 8;
    std::uint32_t const other = __shfl_xor_sync(~0u, r ? v[0] : v[1], 16), own = r ? v[1] : v[0];
    float const a0 = __fadd_rn(ptx::low_half(own), ptx::low_half(other)),
                a1 = __fadd_rn(ptx::high_half(own), ptx::high_half(other));
    float const b = __fadd_rn(j ? a1 : a0, __shfl_xor_sync(~0u, j ? a0 : a1, 8));
    return __fadd_rn(b, __shfl_xor_sync(~0u, b, 4));
  }
};

}  // namespace kvant::inline v0::detail
