#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <kvant/half.hpp>

#include "support/unit_fixture.hpp"

namespace support {

using codec_pointer = std::shared_ptr<any_codec>;
inline constexpr std::array sides{side::key, side::value};
inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// Every named layer, every alias, and pairs whose sides have nothing in common. Defined by
/// define_all_formats.hpp, which one file of a program includes.
std::vector<codec_pointer> all_formats();

inline constexpr std::array some_head_dims{64, 80, 96, 192};
inline constexpr std::array other_head_dims{112, 128, 160, 320, 576};

/// A group is one token's channels, or some of them.
inline bool token_alone(side_facts const& f) { return !f.along_tokens && !f.centered; }

/// The worst relative error of a token of normal values: what a format does to vectors it was made for.
inline double ordinary_error(any_codec& codec, kvant::page_shape shape, side s) {
  unit_of<float> unit{codec, shape};
  unit.fill_normal(1);
  unit.encode_and_decode();
  return unit.worst_error(s);
}

template <class T>
double mean_cosine(unit_of<T>& unit, side s) {
  double sum = 0;
  for (int t = 0; t < unit.tokens(); ++t) sum += unit.cosine(s, t);
  return sum / unit.tokens();
}

inline bool all_are(std::vector<float> const& x, float value) {
  return std::all_of(x.begin(), x.end(), [value](float v) { return v == value; });
}
inline bool all_finite(std::vector<float> const& x) {
  return std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
}

}  // namespace support
