#pragma once

#include <cuda_runtime_api.h>

#include <kvant/block/architecture.cuh>
#include <kvant/block/kernel_code.cuh>
#include <kvant/config.hpp>

namespace kvant::inline v0::detail {

/// Whether code of an architecture can wait for the memory of the previous launch while it runs.
KVANT_HD constexpr bool can_overlap(int of_architecture) { return of_architecture >= 90; }

/// First statement of a kernel that launch_overlapped launched, by every thread: lets the next launch be scheduled and
/// waits for the memory of the previous one. No access to global memory may stand before it. `parameters` of the kernel
/// (__grid_constant__) are brought into the constant cache meanwhile.
template <class... Parameters>
__device__ __forceinline__ void wait_for_previous_launch([[maybe_unused]] Parameters const&... parameters) {
  if constexpr (can_overlap(architecture)) {
    auto const touch = [](void const* p, int bytes) {
#pragma unroll
      for (int at = 0; at < bytes; at += 64)
        asm volatile("" ::"r"(*reinterpret_cast<unsigned const*>(static_cast<char const*>(p) + at)));
    };
    (touch(&parameters, static_cast<int>(sizeof parameters)), ...);
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
  }
}

/// Launches a kernel that may be scheduled before the previous launch on the stream has ended, if its code waits for it.
/// What decides is the code, not the device: PTX for sm_80 does not wait on an H200 either.
template <class Kernel, class... Arguments>
cudaError_t launch_overlapped(Kernel kernel, kernel_code code, dim3 grid, int threads, int shared_bytes,
                              cudaStream_t stream, Arguments const&... arguments) {
  cudaLaunchConfig_t launch{};
  launch.gridDim = grid, launch.blockDim = static_cast<unsigned>(threads);
  launch.dynamicSmemBytes = static_cast<unsigned>(shared_bytes), launch.stream = stream;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  launch.attrs = &overlap, launch.numAttrs = can_overlap(code.architecture) ? 1 : 0;
  return cudaLaunchKernelEx(&launch, kernel, arguments...);
}
template <class Kernel, class... Arguments>
cudaError_t launch_overlapped(Kernel kernel, dim3 grid, int threads, cudaStream_t stream,
                              Arguments const&... arguments) {
  kernel_code code;
  if (cudaError_t const e = code_of(kernel, code); e != cudaSuccess) return e;
  return launch_overlapped(kernel, code, grid, threads, 0, stream, arguments...);
}

}  // namespace kvant::inline v0::detail
