#pragma once

#include <type_traits>

#include <kvant/config.hpp>
#include <kvant/half.hpp>

namespace kvant::inline v0 {

/// An element of a new row as a window of W keeps it: the same bits where the types agree, else rounded to nearest even.
/// What is too large for a half, infinities too, becomes the largest finite half of its sign; NaN stays NaN.
template <element W, element T>
[[nodiscard]] KVANT_HD constexpr W window_element(T x) {
  if constexpr (std::is_same_v<T, W>) {
    return x;
  } else if constexpr (std::is_same_v<W, half>) {
    float const v = static_cast<float>(x);
    return v != v ? half{v} : saturate_to_half(v);
  } else {
    return W{static_cast<float>(x)};
  }
}

static_assert(window_element<half>(half::from_bits(0x7c01)).bits == 0x7c01);  // a NaN as it came
static_assert(window_element<half>(bfloat16{70000.f}).bits == 0x7bff &&
              window_element<half>(bfloat16{1.f}).bits == 0x3c00);
static_assert(window_element<half>(bfloat16::from_bits(0xff80)).bits == 0xfbff);
static_assert(window_element<half>(bfloat16::from_bits(0xffc0)).bits == 0x7fff);
static_assert(window_element<bfloat16>(half::from_bits(0x7c00)).bits == 0x7f80);

}  // namespace kvant::inline v0
