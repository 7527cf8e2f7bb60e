#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include <kvant/config.hpp>

#if defined(__F16C__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

namespace kvant::inline v0 {

namespace detail {

/// IEEE binary16 bits of x: round to nearest even, overflow to infinity, every NaN to 0x7fff (as cvt.rn.f16.f32 does).
KVANT_HD constexpr std::uint16_t half_bits_portable(float x) {
  std::uint32_t const all = detail::bit_cast<std::uint32_t>(x);
  std::uint32_t const magnitude = all & 0x7fffffffu;
  auto const sign = static_cast<std::uint16_t>((all >> 16) & 0x8000u);
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65536 and above
  if (magnitude < 0x38800000u) {  // below 2^-14: the float adder rounds to multiples of 2^-24
    std::uint32_t const rounded = detail::bit_cast<std::uint32_t>(detail::bit_cast<float>(magnitude) + 0.5f);
    return static_cast<std::uint16_t>(sign | (rounded - 0x3f000000u));
  }
  std::uint32_t const odd = (magnitude >> 13) & 1u;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

KVANT_HD constexpr float half_value_portable(std::uint16_t bits) {
  std::uint32_t const sign = (std::uint32_t{bits} & 0x8000u) << 16, magnitude = std::uint32_t{bits} & 0x7fffu;
  if (magnitude >= 0x7c00u) return detail::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude < 0x400u) {  // subnormal: 2^-14 (1 + m / 1024) - 2^-14 is exact
    float const x = detail::bit_cast<float>(0x38800000u + (magnitude << 13)) - detail::bit_cast<float>(0x38800000u);
    return detail::bit_cast<float>(sign | detail::bit_cast<std::uint32_t>(x));
  }
  return detail::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

/// bfloat16 bits of x: round to nearest even, every NaN to 0x7fff (as __float2bfloat16_rn does).
KVANT_HD constexpr std::uint16_t bfloat16_bits(float x) {
  std::uint32_t const all = detail::bit_cast<std::uint32_t>(x);
  if ((all & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<std::uint16_t>((all + 0x7fffu + ((all >> 16) & 1u)) >> 16);
}

KVANT_HD constexpr std::uint16_t half_bits(float x) {
#if defined(__CUDA_ARCH__)
  if (!detail::is_constant_evaluated()) {
    std::uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
  }
#elif defined(__F16C__) && !defined(__CUDACC__)
  if (!detail::is_constant_evaluated())
    return x != x ? std::uint16_t{0x7fff}
                  : static_cast<std::uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), 0)));
#endif
  return half_bits_portable(x);
}

KVANT_HD constexpr float half_value(std::uint16_t bits) {
#if defined(__CUDA_ARCH__)
  if (!detail::is_constant_evaluated()) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
#elif defined(__F16C__) && !defined(__CUDACC__)
  if (!detail::is_constant_evaluated()) return _cvtsh_ss(bits);
#endif
  return half_value_portable(bits);
}

}  // namespace detail

/// IEEE binary16 storage, bit-compatible with CUDA's __half; no arithmetic. Needs no CUDA toolkit.
struct half {
  std::uint16_t bits;

  half() = default;
  KVANT_HD constexpr explicit half(float x) : bits(detail::half_bits(x)) {}
  KVANT_HD constexpr explicit operator float() const { return detail::half_value(bits); }
  [[nodiscard]] KVANT_HD static constexpr half from_bits(std::uint16_t b) {
    half h{};
    h.bits = b;
    return h;
  }
  KVANT_HD friend constexpr bool operator==(half a, half b) { return a.bits == b.bits; }  // of bits, not of values
};

/// bfloat16 storage, bit-compatible with CUDA's __nv_bfloat16; no arithmetic.
struct bfloat16 {
  std::uint16_t bits;

  bfloat16() = default;
  KVANT_HD constexpr explicit bfloat16(float x) : bits(detail::bfloat16_bits(x)) {}
  KVANT_HD constexpr explicit operator float() const { return detail::bit_cast<float>(std::uint32_t{bits} << 16); }
  [[nodiscard]] KVANT_HD static constexpr bfloat16 from_bits(std::uint16_t b) {
    bfloat16 h{};
    h.bits = b;
    return h;
  }
  KVANT_HD friend constexpr bool operator==(bfloat16 a, bfloat16 b) { return a.bits == b.bits; }  // of bits
};

/// What keys, values and queries may be made of.
template <class T>
concept element = std::same_as<T, half> || std::same_as<T, bfloat16> || std::same_as<T, float>;

/// x as a stored scalar: saturates at the largest finite half instead of overflowing; NaN becomes 0.
[[nodiscard]] KVANT_HD constexpr half saturate_to_half(float x) {
  if (x != x) return half{};
  return half{x > 65504.f ? 65504.f : x < -65504.f ? -65504.f : x};
}

}  // namespace kvant::inline v0
