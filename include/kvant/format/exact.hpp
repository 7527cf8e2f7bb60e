#pragma once

#include <cstdint>
#include <type_traits>

#include <kvant/config.hpp>
#include <kvant/format/scale.hpp>
#include <kvant/half.hpp>

namespace kvant::inline v0 {

/// No scale at all.
struct no_scale {};

/// Values as elements of type T; nothing is quantized and no bit is changed when the input is of type T. Codes lie in
/// plain rows [token, channel], not in fragment order. NaN, infinities and subnormals are kept;
/// what a wider type holds beyond T's range becomes infinity.
template <element T>
struct exact_codec {
  using default_scale = no_scale;
  using element_type = T;
  using code = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;
  static constexpr int bits = 8 * static_cast<int>(sizeof(T)), scalars = 0;
  static constexpr bool exact = true;

  [[nodiscard]] KVANT_HD static constexpr code encode(float x) { return detail::bit_cast<code>(static_cast<T>(x)); }
  [[nodiscard]] KVANT_HD static constexpr float decode(code c) { return static_cast<float>(detail::bit_cast<T>(c)); }
};

}  // namespace kvant::inline v0
