#pragma once

#include <cstddef>
#include <cstdint>

#include <kvant/block/queries.cuh>
#include <kvant/warp/softmax.cuh>

namespace kvant::inline v0::detail {

/// Scores and output of 16 exact half rows (window, sinks): keys in one stage, values in the next, rows padded by 16 bytes
/// so that ldmatrix meets no bank conflict.
template <int Dim, int Columns>
struct exact_tile {
  using state = softmax_state<Dim, Columns>;
  static constexpr int row_bytes = Dim * 2 + 16, stage_bytes = 16 * row_bytes, steps = Dim / 16, own = state::own;

  std::uint32_t q[steps][2];
  float a[own];
  float x[2][own];
  int const lane;

  __device__ __forceinline__ exact_tile(query_storage<Dim> const& qs, float scale, int lane_index) : lane(lane_index) {
    int const g = lane >> 2, t = lane & 3, column = Columns == 4 ? g >> 1 : g;
#pragma unroll
    for (int s = 0; s < steps; ++s)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float2 const v = *reinterpret_cast<float2 const*>(&qs.plain[column][16 * s + 8 * i + 2 * t]);
        std::uint32_t h = ptx::half2_bits(v.x, v.y);
        if (Columns == 4 && (g & 1)) h = ptx::half2_bits(v.x - ptx::low_half(h), v.y - ptx::high_half(h));
        q[s][i] = h;
      }
#pragma unroll
    for (int c = 0; c < own; ++c) a[c] = scale * qs.plain_scale[own * t + c];
  }

  /// Scores of rows at positions first .. first + count - 1; column c sees those up to `newest` + its row.
  __device__ __forceinline__ void score(std::byte const* stage, std::int32_t first, std::int32_t count,
                                        std::int32_t newest, std::int32_t ratio) {
    int const g = lane >> 2, t = lane & 3;
    std::uint32_t const base =
        ptx::shared_address(stage) +
        static_cast<std::uint32_t>(((lane & 7) + 8 * ((lane >> 3) & 1)) * row_bytes + 16 * (lane >> 4));
    float s[4] = {};
#pragma unroll
    for (int k = 0; k < steps; ++k) {
      std::uint32_t frag[4];
      ptx::ldmatrix(frag, base + 32 * k);
      ptx::mma(s, frag, q[k][0], q[k][1]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int c = 0; c < own; ++c) {
        int const row = g + 8 * r, column = own * t + c;
        bool const seen = row < count && first + row <= newest + column / ratio;
        x[r][c] = seen ? (own == 1 ? s[2 * r] + s[2 * r + 1] : s[2 * r + c]) : -INFINITY;
      }
  }

  __device__ __forceinline__ void accumulate(state& st, std::byte const* stage) {
    float largest[own];
#pragma unroll
    for (int c = 0; c < own; ++c) largest[c] = fmaxf(x[0][c], x[1][c]);
    st.raise(largest, 1.f);
    std::uint32_t p[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float e[2] = {0.f, 0.f};
#pragma unroll
      for (int c = 0; c < own; ++c) {
        e[c] = ptx::exp2(fmaf(x[r][c], st.a[c], st.shift(c)));
        st.sum[c] += e[c];
      }
      p[r] = ptx::movmatrix(ptx::half2_bits(e[0], e[1]));
    }
    std::uint32_t const base =
        ptx::shared_address(stage) +
        static_cast<std::uint32_t>(((lane & 7) + 8 * (lane >> 4)) * row_bytes + 16 * ((lane >> 3) & 1));
#pragma unroll
    for (int k = 0; k < steps; ++k) {
      std::uint32_t frag[4];
      ptx::ldmatrix_transposed(frag, base + 32 * k);
      ptx::mma(st.out[k], frag, p[0], p[1]);
    }
  }

  __device__ __forceinline__ void finish(state&) const {}
};

}  // namespace kvant::inline v0::detail
