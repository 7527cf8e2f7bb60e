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

/// std::bit_cast and std::is_constant_evaluated, which device code cannot call.
template <class To, class From>
[[nodiscard]] KVANT_HD constexpr To bit_cast(From const& from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}
[[nodiscard]] KVANT_HD constexpr bool is_constant_evaluated() { return __builtin_is_constant_evaluated(); }

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
