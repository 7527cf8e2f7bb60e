#pragma once

#include <cstdint>

#include <kvant/warp/ptx.cuh>

namespace kvant::inline v0::detail {

/// Less than any score, and finite, so that differences of it are numbers.
inline constexpr float no_score = -1e30f;

/// One warp's online softmax over 8 columns of an mma. With 4 columns, column c is mma column 2c, and 2c + 1 carries the
/// low part of the query; a lane then has one column, else two. The output is transposed: rows are dims.
template <int Dim, int Columns>
struct softmax_state {
  static constexpr int own = Columns == 4 ? 1 : 2;  // columns of a lane: 2t + c, or t
  static constexpr float headroom = 4.f;            // probabilities are kept times 2^4 ...
  static constexpr float slack = 6.f;               // ... and the maximum may lag behind by 2^6
  static constexpr float most_scale = 16.f;         // ... and value scales by 2^4: products stay within fp16
  float out[Dim / 16][4];
  float offset_out[4];  // the sum of probabilities * value scale, for codecs with an offset
  float a[own];         // log2 units of a raw score, above 0
  float max[own];       // raw
  float sum[own];
  float value_power, value_unit;  // out is in units of the power, a power of two (0: nothing yet); unit = 1 / power

  __device__ __forceinline__ softmax_state(float const (&units)[own], float power)
      : value_power(power), value_unit(power) {
#pragma unroll
    for (int i = 0; i < Dim / 16; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) out[i][j] = 0.f;
#pragma unroll
    for (int j = 0; j < 4; ++j) offset_out[j] = 0.f;
#pragma unroll
    for (int c = 0; c < own; ++c) a[c] = units[c], max[c] = no_score, sum[c] = 0.f;
  }

  /// Brings the maxima up to the warp's scores, and the unit of the output to its value scales, where they have run
  /// ahead: one vote a tile, rarely a rescale. largest: the lane's largest raw scores; scale: its largest value scale.
  __device__ __forceinline__ void raise(float const (&largest)[own], float scale) {
    bool ahead = (largest[0] - max[0]) * a[0] > slack || scale > most_scale * value_power;
    if constexpr (own == 2) ahead = ahead || (largest[1] - max[1]) * a[1] > slack;
    if (!__any_sync(~0u, ahead)) return;
    float power = scale;
#pragma unroll
    for (int step = 4; step < 32; step *= 2) power = fmaxf(power, __shfl_xor_sync(~0u, power, step));
    power = power > most_scale * value_power ? exp2f(ceilf(log2f(power))) : value_power;
    float const unit = power > 0.f ? __frcp_rn(power) : 0.f, of_power = value_power * unit;
    value_power = power, value_unit = unit;
#pragma unroll
    for (int c = 0; c < own; ++c) {
      float m = largest[c];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, step));
      m = fmaxf(m, max[c]);
      float const by = ptx::exp2((max[c] - m) * a[c]);
      max[c] = m, sum[c] *= by;
#pragma unroll
      for (int i = 0; i < Dim / 16; ++i) {
        out[i][c] *= by * of_power, out[i][2 + c] *= by * of_power;
        if constexpr (own == 1) out[i][1] *= by * of_power, out[i][3] *= by * of_power;
      }
      offset_out[c] *= by * of_power, offset_out[2 + c] *= by * of_power;
    }
  }
  /// The constant of exp2(fma(raw, a, shift)), the probability of a raw score.
  __device__ __forceinline__ float shift(int c) const { return fmaf(-max[c], a[c], headroom); }

  /// Sums over the rows of the warp.
  __device__ __forceinline__ void reduce_lanes() {
#pragma unroll
    for (int c = 0; c < own; ++c)
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum[c] += __shfl_xor_sync(~0u, sum[c], step);
  }
  __device__ __forceinline__ void publish(float* warp_max, float* warp_sum, int lane) const {
    if (lane < 4)
#pragma unroll
      for (int c = 0; c < own; ++c) warp_max[own * lane + c] = max[c] * a[c], warp_sum[own * lane + c] = sum[c];
  }
  /// Adds the output, brought to the part's maximum, to a slot: [Dim / 16, lane, 2 or 4].
  __device__ __forceinline__ void store(float* slot, float const* part_max, bool add, int lane) const {
    float by[own];
#pragma unroll
    for (int c = 0; c < own; ++c) by[c] = ptx::exp2(max[c] * a[c] - part_max[own * (lane & 3) + c]) * value_power;
#pragma unroll
    for (int i = 0; i < Dim / 16; ++i) {
      if constexpr (own == 1) {
        float2* const at = reinterpret_cast<float2*>(slot) + i * 32 + lane;
        float2 v = make_float2(out[i][0] * by[0], out[i][2] * by[0]);
        if (add) v.x += at->x, v.y += at->y;
        *at = v;
      } else {
        float4* const at = reinterpret_cast<float4*>(slot) + i * 32 + lane;
        float4 v = make_float4(out[i][0] * by[0], out[i][1] * by[1], out[i][2] * by[0], out[i][3] * by[1]);
        if (add) v.x += at->x, v.y += at->y, v.z += at->z, v.w += at->w;
        *at = v;
      }
    }
  }
};

}  // namespace kvant::inline v0::detail
