#pragma once

namespace kvant::inline v0::detail {

/// The virtual architecture that this code is compiled for: 80, 90, 120. For kernels' bodies alone: 0 on the host, which
/// asks code_of() (kernel_code.cuh).
#if defined(__CUDA_ARCH__)
inline constexpr int architecture = __CUDA_ARCH__ / 10;
#else
inline constexpr int architecture = 0;
#endif

}  // namespace kvant::inline v0::detail
