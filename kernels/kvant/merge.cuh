#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include <cuda_runtime_api.h>

#include <kvant/block/architecture.cuh>
#include <kvant/block/overlap.cuh>
#include <kvant/config.hpp>
#include <kvant/half.hpp>

namespace kvant::inline v0 {

/// Attention over a part of a context: outputs and the natural-log log-sum-exps of the logits.
template <element T>
struct attention_state {
  T const* out = nullptr;              // [rows, q heads, value_dim]
  float const* log_sum_exp = nullptr;  // [rows, q heads]
};

/// States of the same rows over disjoint parts of their context. More than `most` are joined in several calls.
template <element T>
struct attention_states {
  static constexpr int most = 16;
  attention_state<T> part[most];
  std::int32_t count = 0;
  std::int64_t rows = 0;
  std::int32_t q_heads = 0, value_dim = 0;
};

/// What joining writes. May be one of the states that are joined.
template <element O>
struct merged_state {
  O* out = nullptr;              // [rows, q heads, value_dim]
  float* log_sum_exp = nullptr;  // [rows, q heads]; may be null
};

namespace detail {

inline constexpr int merge_warps = 4;
/// CTAs that shall fit an SM, 0: as many as the compiler likes. For sm_80 it would like more than registers allow.
inline constexpr int merge_ctas_per_sm = architecture == 80 ? 5 : 0;

template <class T>
struct alignas(4 * sizeof(T)) four {
  T at[4];
};

/// A warp joins one row and head, four channels a lane.
template <class T, class O>
__launch_bounds__(merge_warps * 32, merge_ctas_per_sm) __global__
    void merge_states_kernel(__grid_constant__ attention_states<T> const states, merged_state<O> const merged) {
  constexpr int most = attention_states<T>::most;
  float const empty = -INFINITY;
  std::int64_t const i = std::int64_t{blockIdx.x} * merge_warps + threadIdx.x / 32;  // (row, q head)
  int const lane = static_cast<int>(threadIdx.x % 32);
  wait_for_previous_launch();
  if (i >= states.rows * states.q_heads) return;

  float weight[most];  // of part s; at first its log-sum-exp
  float largest = empty;
#pragma unroll
  for (int s = 0; s < most; ++s) weight[s] = s < states.count ? states.part[s].log_sum_exp[i] : empty;
#pragma unroll
  for (int s = 0; s < most; ++s) largest = fmaxf(largest, weight[s]);
  std::uint32_t present = 0;
  float sum = 0;
#pragma unroll
  for (int s = 0; s < most; ++s) {
    bool const here = weight[s] != empty;
    present |= static_cast<std::uint32_t>(here) << s;
    weight[s] = here ? expf(weight[s] - largest) : 0.f;
    sum += weight[s];
  }
  float const inverse = present != 0 ? 1.f / sum : 0.f;
#pragma unroll
  for (int s = 0; s < most; ++s) weight[s] *= inverse;

  for (int c = 4 * lane; c < states.value_dim; c += 128) {
    std::int64_t const at = i * states.value_dim + c;
    float out[4] = {};
#pragma unroll
    for (int s = 0; s < most; ++s)
      if (present >> s & 1u) {
        auto const x = *reinterpret_cast<four<T> const*>(states.part[s].out + at);
#pragma unroll
        for (int k = 0; k < 4; ++k) out[k] = fmaf(weight[s], static_cast<float>(x.at[k]), out[k]);
      }
    four<O> y;
#pragma unroll
    for (int k = 0; k < 4; ++k) y.at[k] = O(out[k]);
    *reinterpret_cast<four<O>*>(merged.out + at) = y;
  }
  __syncwarp();  // log_sum_exp may be one of those that the other lanes read
  if (lane == 0 && merged.log_sum_exp != nullptr) merged.log_sum_exp[i] = present != 0 ? largest + logf(sum) : empty;
}

}  // namespace detail

/// Joins attention over disjoint parts of a context into attention over all of it, in fp32 and in the order of the
/// parts: the same bits from run to run. A state with log-sum-exp minus infinity is empty: its output is not read;
/// where all are empty the output is zeros and the log-sum-exp minus infinity. A sink logit belongs to one of the
/// states, not to each. Reads every state once. Stream-ordered; allocates nothing; graphs may capture it. `merged` may
/// be one of the parts, if T and O are the same type.
///
/// cudaErrorInvalidValue: a null pointer, rows that are not 16-byte aligned, log-sum-exps that are not 4-byte aligned,
/// value_dim no multiple of 8, no part or more than `most`, counts below 0, more rows than a grid has CTAs for.
template <element T, element O>
[[nodiscard]] cudaError_t merge_states_async(attention_states<T> states, merged_state<O> merged,
                                             cudaStream_t stream) noexcept {
  auto const aligned = [](void const* p, std::uint64_t bytes) {
    return p != nullptr && reinterpret_cast<std::uint64_t>(p) % bytes == 0;
  };
  if (states.count < 1 || states.count > attention_states<T>::most || states.rows < 0 || states.q_heads < 1 ||
      states.value_dim < 8 || states.value_dim % 8 != 0)
    return cudaErrorInvalidValue;
  for (int s = 0; s < states.count; ++s)
    if (!aligned(states.part[s].out, 16) || !aligned(states.part[s].log_sum_exp, 4)) return cudaErrorInvalidValue;
  if (!aligned(merged.out, 16) || (merged.log_sum_exp != nullptr && !aligned(merged.log_sum_exp, 4)))
    return cudaErrorInvalidValue;
  constexpr std::int64_t most_ctas = std::numeric_limits<std::int32_t>::max();
  if (states.rows > most_ctas * detail::merge_warps / states.q_heads) return cudaErrorInvalidValue;
  if (states.rows == 0) return cudaSuccess;
  std::int64_t const ctas = (states.rows * states.q_heads + detail::merge_warps - 1) / detail::merge_warps;
  return detail::launch_overlapped(detail::merge_states_kernel<T, O>, dim3(static_cast<unsigned>(ctas)),
                                   detail::merge_warps * 32, stream, states, merged);
}

}  // namespace kvant::inline v0
