#pragma once

#include <cstdint>

#include <kvant/config.hpp>

namespace kvant::inline v0::simd {

/// 2^x for x <= 0 to 2 units in the last place, 0 below -125; NaN stays NaN. No branches: compilers make vectors of it.
[[nodiscard]] inline float exp2_negative(float x) {
  float const limited = x < -125.f ? -125.f : x;
  float const rounded = (limited + 12582912.f) - 12582912.f, r = limited - rounded;  // |r| <= 1/2
  // Taylor's series of 2^r: its seventh term is below 2^-25 of the sum.
  float p = 1.54035304e-4f;
  p = p * r + 1.33335581e-3f;
  p = p * r + 9.61812911e-3f;
  p = p * r + 5.55041087e-2f;
  p = p * r + 2.40226507e-1f;
  p = p * r + 6.93147181e-1f;
  p = p * r + 1.f;
  // The power of two from the low bits of the sum above, which NaN does not have.
  float const shifted = limited + 12582912.f;
  std::uint32_t const exponent = detail::bit_cast<std::uint32_t>(shifted) << 23;
  float const scaled = detail::bit_cast<float>(detail::bit_cast<std::uint32_t>(p) + exponent);
  return x != x ? x : x < -125.f ? 0.f : scaled;
}

}  // namespace kvant::inline v0::simd
