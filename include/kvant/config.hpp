#pragma once

/// KVANT_HD marks what runs on the host and, under nvcc, on the device too.
#if defined(__CUDACC__)
#define KVANT_HD __host__ __device__
#else
#define KVANT_HD
#endif

/// What the pointer reaches is reached through no other pointer of its scope.
#if defined(__GNUC__) || defined(__CUDACC__)
#define KVANT_RESTRICT __restrict__
#elif defined(_MSC_VER)
#define KVANT_RESTRICT __restrict
#else
#define KVANT_RESTRICT
#endif

namespace kvant::inline v0::detail {

/// What lies behind `memory` is written before this point and read again after it. The host encoder sets it between a
/// loop that multiplies and a loop that adds, so that no compiler contracts the two into one fused operation: the bytes
/// of a page must not depend on -march or -ffp-contract. Costs nothing inside the loops.
template <class T>
inline void settle([[maybe_unused]] T* memory) {
#if defined(__GNUC__) && !defined(__CUDA_ARCH__)
  asm volatile("" : : "g"(memory) : "memory");
#endif
}

}  // namespace kvant::inline v0::detail
