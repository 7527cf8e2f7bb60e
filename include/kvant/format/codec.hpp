#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include <kvant/format/scale.hpp>

namespace kvant::inline v0 {

/// What a codec of single values gives: `stats` gather a group of n values, `make_grid` says what encode() needs of it, `params` are
/// the halves that the group stores, decode() reads nothing but a code and them.
template <class C>
concept scalar_codec = std::is_empty_v<C> && !C::exact && requires(float x, std::uint32_t c, typename C::stats s,
                                                                   typename C::grid g, typename C::params p, int n) {
  requires C::bits >= 1 && C::bits <= 8 && C::scalars >= 1;
  requires sizeof(typename C::params) == 2 * C::scalars;
  s.observe(x);
  { C::make_grid(s, n) } -> std::same_as<typename C::grid>;
  { C::encode(x, g) } -> std::same_as<std::uint32_t>;
  { C::decode(c, p) } -> std::same_as<float>;
};

/// A codec whose levels are integers times a step: its scalar follows a scale rule, fitted to what was encoded.
template <class C>
concept level_codec = scalar_codec<C> && requires(float x, typename C::grid g, moments m) {
  { C::encode_level(x, g).level } -> std::convertible_to<int>;
  { C::template fit<least_squares>(m) } -> std::same_as<typename C::params>;
};

}  // namespace kvant::inline v0
