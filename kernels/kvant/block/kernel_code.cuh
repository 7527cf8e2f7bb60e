#pragma once

#include <cuda_runtime_api.h>

namespace kvant::inline v0::detail {

/// The code of a kernel that the current device runs: a program may hold several, and PTX for an older architecture.
struct kernel_code {
  int architecture = 0;          // `architecture` in the kernel's body
  int dynamic_shared_bytes = 0;  // that a launch may ask for so far
};

template <class Kernel>
[[nodiscard]] cudaError_t code_of(Kernel kernel, kernel_code& code) {
  cudaFuncAttributes attributes{};
  cudaError_t const e = cudaFuncGetAttributes(&attributes, kernel);
  code = {attributes.ptxVersion, attributes.maxDynamicSharedSizeBytes};
  return e;
}

}  // namespace kvant::inline v0::detail
