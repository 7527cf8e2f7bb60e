#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <kvant/block/queries.cuh>
#include <kvant/warp/rotate.cuh>
#include <kvant/warp/softmax.cuh>

namespace kvant::inline v0::detail {

/// Scores and output of 16 exact rows of T, half or bfloat16 (window, sinks, exact pages), read straight into the
/// fragments' registers: 16 bytes a load, four neighbouring lanes 64 bytes of a row of keys, eight lanes 128 bytes of a
/// row of values.
///
/// Keys, tokens as rows: the queries follow the order of positions (layout/slot_order.hpp). Values, channels as rows:
/// output row 16k + g + 8h is channel exact_channel of it (warp/rotate.cuh).
///
/// Tight: the state beside it leaves no registers, so values wait, the second half of a row of half until the first is
/// done with, both halves of bfloat16 until the probabilities are made; above 1, the second half of bfloat16 keys, too,
/// until the first is done with.
template <class T, int Dim, int Columns, int Tight = 0>
struct exact_tile {
  static_assert(Dim == 128, "exact_tile: head_dim 128");
  using state = softmax_state<Dim, Columns>;
  static constexpr int tokens = 16, own = state::own;

  pair_columns<Dim> const& queries;
  float a[own];  // log2 units of a raw score
  int const lane;

  template <class Key>
  __device__ __forceinline__ exact_tile(query_storage<Key, Dim, Columns> const& storage, float scale, int lane_index)
      : queries(storage.plain), lane(lane_index) {
#pragma unroll
    for (int c = 0; c < own; ++c) a[c] = scale * storage.plain_scale[own * (lane & 3) + c];
  }

  /// 16 rows; row(side, i) is where row i lies, for i < count. seen(i, column): whether the column's query sees row i.
  template <class Row, class Seen>
  __device__ __forceinline__ void attend(state& st, std::int32_t count, Row row, Seen seen) const {
    int const g = lane >> 2, t = lane & 3;
    uint4 k[2][4];
    auto const load_keys = [&](int from, int to) {
      auto const* const upper = reinterpret_cast<uint4 const*>(row(side::key, min(g, count - 1)));
      auto const* const lower = reinterpret_cast<uint4 const*>(row(side::key, min(g + 8, count - 1)));
#pragma unroll
      for (int c = from; c < to; ++c) k[0][c] = __ldcs(upper + 4 * c + t), k[1][c] = __ldcs(lower + 4 * c + t);
    };
    constexpr bool keys_in_halves = std::is_same_v<T, bfloat16> && own == 1 && Tight > 1;
    load_keys(0, keys_in_halves ? 2 : 4);
    // Half of each row of values is asked for with the keys, half when the keys have left their registers.
    constexpr bool two = std::is_same_v<T, bfloat16>;  // two operands a probability, below: no registers to spare
    uint4 v[2][4];                                     // halves of a row; tokens 2t, 2t + 1, 2t + 8, 2t + 9
    int const eighth = 4 * (g & 1) + 2 * (g >> 2) + ((g >> 1) & 1);
    auto const load_values = [&](int half_of_row) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        v[half_of_row][i] =
            __ldcs(reinterpret_cast<uint4 const*>(row(side::value, min(2 * t + (i & 1) + 8 * (i >> 1), count - 1))) +
                   8 * half_of_row + eighth);
    };
    if constexpr (!two) load_values(0);
    float s[4] = {};
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      if constexpr (keys_in_halves)
        if (step == 4) {
          __syncwarp();
          load_keys(2, 4);
        }
      uint2 const q = queries.at[step][lane];
      std::uint32_t const fragment[4] = {word(k[0][step / 2], 2 * (step % 2)), word(k[1][step / 2], 2 * (step % 2)),
                                         word(k[0][step / 2], 2 * (step % 2) + 1),
                                         word(k[1][step / 2], 2 * (step % 2) + 1)};
      ptx::mma(T{}, s, fragment, q.x, q.y);
    }
    constexpr bool late = Tight > 0;
    if constexpr (!late) load_values(two ? 0 : 1);
    float x[2][own], largest[own];
#pragma unroll
    for (int c = 0; c < own; ++c) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        int const i = g + 8 * r;
        float const raw = own == 1 ? s[2 * r] + s[2 * r + 1] : s[2 * r + c];
        x[r][c] = i < count && seen(i, own * t + c) ? raw : -INFINITY;
      }
      largest[c] = fmaxf(x[0][c], x[1][c]) * a[c];
    }
    if (st.is_behind(largest, 0, false)) st.raise(largest, 0);
    // A probability is one half, or two bfloat16 whose sum has as many bits, the low one in a second operand.
    std::uint32_t p[2], low[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float e[2] = {0.f, 0.f};
#pragma unroll
      for (int c = 0; c < own; ++c) {
        e[c] = ptx::exp2(fmaf(x[r][c], a[c], st.shift[c]));
        st.sum[c] += e[c];
      }
      std::uint32_t const pair = ptx::pair_bits(T{}, e[0], e[1]);
      if constexpr (two) {
        float2 const kept = ptx::pair_values(T{}, pair);
        low[r] = ptx::movmatrix(ptx::pair_bits(T{}, e[0] - kept.x, e[1] - kept.y));
      }
      p[r] = ptx::movmatrix(pair);
    }
    if constexpr (late && two) {
      __syncwarp();
      load_values(0);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if constexpr (late || two)
        if (k == 4) {
          __syncwarp();
          load_values(1);
        }
      std::uint32_t fragment[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)  // both tokens' channel 2 (k % 4) + i % 2 of eight
        fragment[i] = ptx::prmt(word(v[k / 4][i / 2 * 2], k % 4), word(v[k / 4][i / 2 * 2 + 1], k % 4),
                                i % 2 == 0 ? 0x5410 : 0x7632);
      ptx::mma(T{}, st.out[k], fragment, p[0], p[1]);
      if constexpr (two) ptx::mma(T{}, st.out[k], fragment, low[0], low[1]);
    }
  }

  /// From exact rows to pages of Value in the same state: `unit` is what the pages' output will be multiplied by.
  template <class Value>
  __device__ __forceinline__ void join_pages(state& st, float unit) const {
    if constexpr (rotation_of<Value>::rotates) {
      rotate_output_128<rotation_of<Value>, own>(st.out, inverse_root_128 / unit, lane);
      st.forget_scales();
    }
  }

 private:
  static __device__ __forceinline__ std::uint32_t word(uint4 const& v, int i) {
    return i < 2 ? (i == 0 ? v.x : v.y) : (i == 2 ? v.z : v.w);
  }
};

}  // namespace kvant::inline v0::detail
