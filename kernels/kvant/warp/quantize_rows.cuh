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

/// H_16 as operands of m16n8k16 in lane 4g + t, its columns with the signs of fragment s: one table a side and CTA.
struct hadamard_operand {
  std::uint32_t low, high;  // k = 2t, 2t + 1 and k + 8, of row (or column) g; g + 8 has -high
};
__device__ __forceinline__ hadamard_operand make_operand(int lane, std::uint32_t sign_low, std::uint32_t sign_high) {
  int const g = lane >> 2, t = lane & 3;
  // H_16 has four equal quarters, one of them negated.
  std::uint32_t const h =
      (__popc(g & (2 * t)) & 1 ? 0xbc00u : 0x3c00u) | (__popc(g & (2 * t + 1)) & 1 ? 0xbc000000u : 0x3c000000u);
  return {h ^ sign_low, h ^ sign_high};
}
/// In the order of registers that the side's mma takes: keys B, B; values A.
template <side S>
__device__ __forceinline__ uint4 operand_registers(hadamard_operand o) {
  std::uint32_t const minus = o.high ^ 0x80008000u;
  return S == side::key ? make_uint4(o.low, o.high, o.low, minus) : make_uint4(o.low, o.low, o.high, minus);
}

/// Rows that were scaled to a norm near the codec's input_rms: rotated, coded and packed.
template <class Format, side S, int Dim>
struct row_quantizer {
  using codec = codec_of<Format>;
  using quantize = fragment_quantize<codec>;
  using rule = scale_of<Format, S>;
  static_assert(rotation_of<Format>::rotates && grouping_of<Format>::group_channels(Dim) == Dim,
                "row_quantizer: formats that rotate, one group a head");
  static_assert(Dim == 128, "row_quantizer: head_dim 128");
  static constexpr int steps = Dim / 16, units = steps / quantize::fragments_per_unit;
  static constexpr int words = units * quantize::words_per_unit;
  static constexpr bool level_squares =  // values spend registers on <l, l> only if their rule reads it
      S == side::key || !(std::is_same_v<rule, unbiased> || std::is_same_v<rule, plain_norm>);

  std::uint32_t word[words];
  /// Stored scalars: keys, in lanes 4g + g / 2, of tokens g and g + 8; values, in every lane, of token
  /// 2t + (g >> 1 & 1) + 8 (g >> 2), in scalar[0].
  half scalar[2];

  std::uint32_t y[steps][4];

  /// y <- H x in fragment order: an mma with H_16 over the slots of a fragment, butterflies over the fragments. Keys
  /// are X H, values H X^T, so either comes out as its page wants it. x: the rows times s; operand(s):
  /// operand_registers.
  template <class Operand>
  __device__ __forceinline__ void rotate(row_pairs<Dim> const& x, Operand operand) {
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      uint4 const h = operand(s);
      std::uint32_t c0[2], c1[2];
      if constexpr (S == side::key) {
        std::uint32_t const a[4] = {x[0][2 * s], x[1][2 * s], x[0][2 * s + 1], x[1][2 * s + 1]};
        ptx::mma_halves(c0, a, h.x, h.y);
        ptx::mma_halves(c1, a, h.z, h.w);
      } else {
        std::uint32_t const a[4] = {h.x, h.y, h.z, h.w};
        ptx::mma_halves(c0, a, x[0][2 * s], x[0][2 * s + 1]);
        ptx::mma_halves(c1, a, x[1][2 * s], x[1][2 * s + 1]);
      }
      y[s][0] = c0[0], y[s][1] = c0[1], y[s][2] = c1[0], y[s][3] = c1[1];
    }
#pragma unroll
    for (int step = 1; step < steps; step *= 2)
#pragma unroll
      for (int s = 0; s < steps; ++s)
        if (!(s & step))
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            std::uint32_t const a = y[s][i], b = y[s + step][i];
            y[s][i] = ptx::add2(a, b), y[s + step][i] = ptx::sub2(a, b);
          }
  }

  /// Words and scalars of what was rotated. norm: <row, row>; inverse: 1 / (sqrt(Dim) s), both of rows g and g + 8 in
  /// all lanes 4g + t.
  __device__ __forceinline__ void code(float const (&norm)[2], float const (&inverse)[2], std::uint32_t one, int lane) {
    std::uint32_t codes[steps];
#pragma unroll
    for (int s = 0; s < steps; ++s) codes[s] = quantize::codes(y[s]);
#pragma unroll
    for (int u = 0; u < units; ++u)
      quantize::pack(codes + u * quantize::fragments_per_unit, word + u * quantize::words_per_unit);
    if constexpr (S == side::key)
      fit_keys(codes, norm, inverse, one, lane);
    else
      fit_values(codes, norm, inverse, one, lane);
  }

 private:
  static __device__ __forceinline__ half fit(float xx, float xl, float ll, float inverse) {
    constexpr float unit = quantize::level_unit;
    return codec::template fit<rule>(basic_moments<float>{Dim, xx, xl * unit * inverse, ll * unit * unit}).scalar[0];
  }

  /// <l, l> and <y, l> from diagonals: rows 0..7 of A are levels, rows 8..15 coordinates of the same tokens.
  __device__ __forceinline__ void fit_keys(std::uint32_t const (&codes)[steps], float const (&norm)[2],
                                           float const (&inverse)[2], std::uint32_t one, int lane) {
    float c[2][4] = {};
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      std::uint32_t l[4];
      quantize::levels(codes[s], one, l);
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::mma_k8(c[i & 1], l[i], y[s][i], l[i]);
    }
    bool const odd = lane & 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) scalar[r] = fit(norm[r], odd ? c[r][3] : c[r][2], odd ? c[r][1] : c[r][0], inverse[r]);
  }

  /// Sums over the dims of a lane in fp16 by fours, then in fp32; then over lanes, each step halving the tokens of a
  /// lane.
  __device__ __forceinline__ void fit_values(std::uint32_t const (&codes)[steps], float const (&norm)[2],
                                             float const (&inverse)[2], std::uint32_t one, int lane) {
    float xl[2][2] = {}, ll[2][2] = {};  // [token / 8][token % 2]
    constexpr float level_scale = quantize::level_unit == 1.f ? 0.0625f : 32768.f;
#pragma unroll
    for (int s = 0; s < steps; s += 2) {
      std::uint32_t l[2][4];
      quantize::levels(codes[s], one, l[0]);
      quantize::levels(codes[s + 1], one, l[1]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        std::uint32_t p = ptx::mul2(y[s][2 * r], l[0][2 * r]);
        p = ptx::fma2(y[s][2 * r + 1], l[0][2 * r + 1], p);
        p = ptx::fma2(y[s + 1][2 * r], l[1][2 * r], p);
        p = ptx::fma2(y[s + 1][2 * r + 1], l[1][2 * r + 1], p);
        xl[r][0] = __fadd_rn(xl[r][0], ptx::low_half(p)), xl[r][1] = __fadd_rn(xl[r][1], ptx::high_half(p));
        if constexpr (level_squares) {
          std::uint32_t q = 0;
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            std::uint32_t const m = ptx::mul2(l[k / 2][2 * r + k % 2], half_pair(level_scale));
            q = ptx::fma2(m, m, q);
          }
          ll[r][0] = __fadd_rn(ll[r][0], ptx::low_half(q)), ll[r][1] = __fadd_rn(ll[r][1], ptx::high_half(q));
        }
      }
    }
    int const t = lane & 3, r = lane >> 4, holder = 8 * t + 4 * ((lane >> 3) & 1);
    float const n[2] = {__shfl_sync(~0u, norm[0], holder), __shfl_sync(~0u, norm[1], holder)};
    float const i[2] = {__shfl_sync(~0u, inverse[0], holder), __shfl_sync(~0u, inverse[1], holder)};
    float const sum_ll = level_squares ? over_lanes(ll, lane) / (level_scale * level_scale) : 0.f;
    scalar[0] = fit(r ? n[1] : n[0], over_lanes(xl, lane), sum_ll, r ? i[1] : i[0]);
  }
  static __device__ __forceinline__ float over_lanes(float const (&v)[2][2], int lane) {
    bool const r = lane & 16, j = lane & 8;
    float a[2];
#pragma unroll
    for (int k = 0; k < 2; ++k)
      a[k] = __fadd_rn(r ? v[1][k] : v[0][k], __shfl_xor_sync(~0u, r ? v[0][k] : v[1][k], 16));
    float const b = __fadd_rn(j ? a[1] : a[0], __shfl_xor_sync(~0u, j ? a[0] : a[1], 8));
    return __fadd_rn(b, __shfl_xor_sync(~0u, b, 4));
  }
};

}  // namespace kvant::inline v0::detail
