#pragma once

#include <cuda_runtime_api.h>

#include <kvant/block/kernel_code.cuh>

namespace kvant::inline v0::detail {

template <class... Parameters>
void wait_for_previous_launch(Parameters const&...) {}

template <class Kernel, class... Arguments>
cudaError_t launch_overlapped(Kernel kernel, kernel_code, dim3 grid, int threads, int shared_bytes, cudaStream_t,
                              Arguments const&... arguments) {
  return emulated::submit([=] { emulated::run_grid(grid, threads, shared_bytes, [=] { kernel(arguments...); }); });
}
template <class Kernel, class... Arguments>
cudaError_t launch_overlapped(Kernel kernel, dim3 grid, int threads, cudaStream_t stream,
                              Arguments const&... arguments) {
  return launch_overlapped(kernel, {}, grid, threads, 0, stream, arguments...);
}

}  // namespace kvant::inline v0::detail
