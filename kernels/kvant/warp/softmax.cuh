#pragma once

#include <cstdint>

#include <kvant/warp/ptx.cuh>

namespace kvant::inline v0::detail {

/// Less than any score, and finite, so that differences of it are numbers.
inline constexpr float no_score = -1e30f;

/// One warp's online softmax over 8 columns of an mma. With 4 columns, column c is mma column 2c, and 2c + 1 carries
/// the low part of the query (of probabilities: zero); a lane then has one column, else two. The output is transposed:
/// rows are dims.
///
/// A probability is kept as 2^(score + shift), scores in log2 units. The shift is 4 less the largest score so far and
/// the exponent of the largest value scale, both allowed to lag behind, so that probability * value scale stays within
/// fp16.
template <int Dim, int Columns>
struct softmax_state {
  static constexpr int own = Columns == 4 ? 1 : 2;     // columns of a lane: 2t + c, or t
  static constexpr float headroom = 4.f, slack = 6.f;  // log2 units
  static constexpr float scale_slack = 16.f;
  float out[Dim / 16][4];
  float offset_out[4];  // the sum of probabilities * value scale, for codecs with an offset
  float shift[own];
  float sum[own];
  float limit;                // of score + shift: headroom + slack - exponent; beyond it the shift is made anew
  std::uint32_t scale_limit;  // half2: value scales beyond it raise the exponent

  __device__ __forceinline__ softmax_state() : limit(headroom + slack), scale_limit(0) {
#pragma unroll
    for (int i = 0; i < Dim / 16; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) out[i][j] = 0.f;
#pragma unroll
    for (int j = 0; j < 4; ++j) offset_out[j] = 0.f;
#pragma unroll
    for (int c = 0; c < own; ++c) shift[c] = -no_score, sum[c] = 0.f;
  }

  /// Whether the warp's scores or value scales have run ahead: one vote a tile. largest: the lane's largest scores,
  /// log2 units; scales: its value scales, or zeros.
  [[nodiscard]] __device__ __forceinline__ bool is_behind(float const (&largest)[own], std::uint32_t scales,
                                                          bool or_else) const {
    bool ahead = or_else || largest[0] + shift[0] > limit || ptx::any_greater(scales, scale_limit);
    if constexpr (own == 2) ahead = ahead || largest[1] + shift[1] > limit;
    return __any_sync(~0u, ahead);
  }
  /// Brings the shifts up to them.
  __device__ __forceinline__ void raise(float const (&largest)[own], std::uint32_t scales) {
    std::uint32_t most = scales;
#pragma unroll
    for (int step = 4; step < 32; step *= 2) most = ptx::max_halves(most, __shfl_xor_sync(~0u, most, step));
    float const old_exponent = headroom + slack - limit;
    float exponent = old_exponent;
    if (ptx::any_greater(most, scale_limit)) {
      exponent = ceilf(ptx::log2(fmaxf(ptx::low_half(most), ptx::high_half(most))));
      float const next = fminf(ptx::exp2(exponent) * scale_slack, 65504.f);
      scale_limit = ptx::half2_bits(next, next), limit = headroom + slack - exponent;
    }
#pragma unroll
    for (int c = 0; c < own; ++c) {
      float m = largest[c];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, step));
      float const raised = fminf(headroom - m, shift[c] + old_exponent) - exponent;
      float const by = shift[c] < -no_score ? ptx::exp2(raised - shift[c]) : 0.f;
      shift[c] = raised, sum[c] *= by;
#pragma unroll
      for (int i = 0; i < Dim / 16; ++i) out[i][c] *= by, out[i][2 + c] *= by;
      offset_out[c] *= by, offset_out[2 + c] *= by;
    }
  }
  /// The next value scales set the exponent anew.
  __device__ __forceinline__ void forget_scales() { scale_limit = 0; }

  /// Sums over the rows of the warp, then the state and the output into the warp's slots: (-shift, sum) a column, and
  /// [Dim / 16, lane, 2 or 4].
  __device__ __forceinline__ void store(float2* states, float* slot, int lane) {
#pragma unroll
    for (int c = 0; c < own; ++c)
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum[c] += __shfl_xor_sync(~0u, sum[c], step);
    if (lane < 4)
#pragma unroll
      for (int c = 0; c < own; ++c) states[own * lane + c] = make_float2(-shift[c], sum[c]);
#pragma unroll
    for (int i = 0; i < Dim / 16; ++i) {
      if constexpr (own == 1)
        reinterpret_cast<float2*>(slot)[i * 32 + lane] = make_float2(out[i][0], out[i][2]);
      else
        reinterpret_cast<float4*>(slot)[i * 32 + lane] = make_float4(out[i][0], out[i][1], out[i][2], out[i][3]);
    }
  }
  /// Elements 4i to 4i + 3 of a slot are of column quad_column(i) and the one behind it; the element j of them is of
  /// quad_column(i) + quad_next(j).
  static __device__ __forceinline__ int quad_column(int i) { return own == 1 ? 2 * (i & 1) : 2 * (i & 3); }
  static __device__ __forceinline__ constexpr int quad_next(int j) { return own == 1 ? j >> 1 : j & 1; }
  /// Column and output row of element x of a slot.
  static __device__ __forceinline__ void element(int x, int& column, int& row) {
    if constexpr (own == 1) {
      int const at = (x >> 1) & 31;
      column = at & 3, row = (x >> 6) * 16 + (at >> 2) + 8 * (x & 1);
    } else {
      int const at = (x >> 2) & 31;
      column = 2 * (at & 3) + (x & 1), row = (x >> 7) * 16 + (at >> 2) + 8 * ((x >> 1) & 1);
    }
  }
};

}  // namespace kvant::inline v0::detail
