#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include <kvant/block/overlap.cuh>
#include <kvant/cache/step.hpp>

namespace kvant::inline v0 {

namespace detail {

inline constexpr int step_threads = 128;

// Templates, so that two units may include them.
template <class Step>
__launch_bounds__(step_threads) __global__ void begin_step_kernel(Step const step) {
  auto const i = static_cast<std::int32_t>(blockIdx.x * step_threads + threadIdx.x);
  wait_for_previous_launch();
  if (i >= step.count || step.is_padding(i)) return;
  std::int32_t const rows = step.row_offsets[i + 1] - step.row_offsets[i];
  if (rows > 0) step.length[i] += rows;
}

template <class Step>
__launch_bounds__(step_threads) __global__
    void end_step_kernel(Step const step, std::int32_t window_tokens, std::int32_t page_tokens) {
  auto const i = static_cast<std::int32_t>(blockIdx.x * step_threads + threadIdx.x);
  wait_for_previous_launch();
  if (i >= step.count || step.is_padding(i)) return;
  step.history[i] = history_after_commit(step.history[i], step.length[i], window_tokens, page_tokens);
}

inline dim3 step_grid(std::int32_t count) {
  return dim3(static_cast<unsigned>((std::int64_t{count} + step_threads - 1) / step_threads));
}

}  // namespace detail

/// Begins a step: every length grows by the new rows of its sequence; padding keeps its own. Before the step's appends.
/// Stream-ordered; allocates nothing, and the grid depends on `count` alone: graphs may capture it, and slots and row
/// offsets may change between replays. cudaErrorInvalidValue: null length or row_offsets, a negative count.
[[nodiscard]] inline cudaError_t begin_step_async(step_view step, cudaStream_t stream) noexcept {
  if (step.length == nullptr || step.row_offsets == nullptr || step.count < 0) return cudaErrorInvalidValue;
  if (step.count == 0) return cudaSuccess;
  return detail::launch_overlapped(detail::begin_step_kernel<step_view>, detail::step_grid(step.count),
                                   detail::step_threads, stream, step);
}

/// Ends a step: every history becomes history_after_commit; padding keeps its own. After the step's commits, which read
/// the old history. Does not read row_offsets. Stream-ordered, capturable as begin_step_async is.
/// cudaErrorInvalidValue: null length or history, a negative count, window_tokens below 0, page_tokens below 1.
[[nodiscard]] inline cudaError_t end_step_async(step_view step, std::int32_t window_tokens, std::int32_t page_tokens,
                                                cudaStream_t stream) noexcept {
  if (step.length == nullptr || step.history == nullptr || step.count < 0 || window_tokens < 0 || page_tokens < 1)
    return cudaErrorInvalidValue;
  if (step.count == 0) return cudaSuccess;
  return detail::launch_overlapped(detail::end_step_kernel<step_view>, detail::step_grid(step.count),
                                   detail::step_threads, stream, step, window_tokens, page_tokens);
}

}  // namespace kvant::inline v0
