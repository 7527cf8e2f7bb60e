#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <kvant/format/policies.hpp>
#include <kvant/layout/page_layout.hpp>

#include "support/rotation_matrix.hpp"

/// What the bytes of a unit must be and what they mean, written from the definitions: plain loops in double, rotations by
/// explicit matrices, every code and parameter read through the maps of the layout. Slow, and independent of page_codec.
namespace support {

using kvant::side;

// ---- codecs by their definitions: levels of the scalars that a group stores, and what the scalars must be ----

/// A group of coordinates with the codes and scalars found for it. `noise`: what a coordinate computed in float may miss.
struct group {
  std::vector<double> y;
  std::vector<std::uint32_t> codes;
  double scalar[2] = {};
  double noise = 0;
};

/// Whether `stored` is `exact` rounded to half, if exact is known up to `noise`.
inline bool is_rounded(double stored, double exact, double noise) {
  if (std::abs(exact) > 65504) return std::abs(stored) == 65504;
  return std::abs(stored - exact) <= std::abs(exact) * 0x1.001p-11 + 0x1p-25 + noise;
}

inline double scale_by(kvant::plain_norm, double n, double xx, double, double) { return std::sqrt(xx / n); }
inline double scale_by(kvant::norm_corrected, double, double xx, double, double cc) { return std::sqrt(xx / cc); }
inline double scale_by(kvant::least_squares, double, double, double xc, double cc) { return xc / cc; }
inline double scale_by(kvant::unbiased, double, double xx, double xc, double) { return xx / xc; }

template <class Codec>
struct definition;
template <int Bits>
struct definition<kvant::lloyd_max<Bits>> {
  static double centroid(std::uint32_t code) {
    using table = kvant::codebook_table<Bits>;
    return static_cast<double>(table::level(static_cast<int>(code))) * static_cast<double>(table::step);
  }
  static double value(std::uint32_t code, double const* scalar) { return centroid(code) * scalar[0]; }
  template <class Rule>
  static int faults(group const& g) {
    double n = 0, xx = 0, xc = 0, cc = 0;
    for (std::size_t i = 0; i < g.y.size(); ++i) {
      double const c = centroid(g.codes[i]);
      n += 1, xx += g.y[i] * g.y[i], xc += g.y[i] * c, cc += c * c;
    }
    double const rms = std::sqrt(xx / n);
    int faults = is_rounded(g.scalar[0], xx > 0 ? scale_by(Rule{}, n, xx, xc, cc) : 0, g.noise) ? 0 : 1;
    for (std::size_t i = 0; i < g.y.size(); ++i) {
      double nearest = 1e300;
      for (std::uint32_t c = 0; c < 1u << Bits; ++c) nearest = std::min(nearest, std::abs(g.y[i] - rms * centroid(c)));
      faults += std::abs(g.y[i] - rms * centroid(g.codes[i])) <= nearest + 2 * g.noise ? 0 : 1;
    }
    return faults;
  }
};
template <int Bits>
struct definition<kvant::affine<Bits>> {
  static double value(std::uint32_t code, double const* scalar) { return code * scalar[0] + scalar[1]; }
  template <class>
  static int faults(group const& g) {
    double const lo = *std::min_element(g.y.begin(), g.y.end()), hi = *std::max_element(g.y.begin(), g.y.end());
    double const top = (1 << Bits) - 1, scale = g.scalar[0], zero = g.scalar[1];
    int faults = is_rounded(zero, lo, g.noise) && is_rounded(scale, (hi - lo) / top, g.noise) ? 0 : 1;
    for (std::size_t i = 0; i < g.y.size(); ++i) {
      double const place = scale > 0 ? std::clamp((g.y[i] - zero) / scale, 0.0, top) : 0;
      faults += std::abs(place - g.codes[i]) <= 0.5 + (scale > 0 ? g.noise / scale : 0) ? 0 : 1;
    }
    return faults;
  }
};
template <>
struct definition<kvant::sign> {
  static double value(std::uint32_t code, double const* scalar) { return code != 0 ? scalar[0] : -scalar[0]; }
  template <class>
  static int faults(group const& g) {
    double sum = 0;
    int faults = 0;
    for (std::size_t i = 0; i < g.y.size(); ++i) {
      sum += std::abs(g.y[i]);
      faults += std::abs(g.y[i]) <= g.noise || (g.y[i] >= 0) == (g.codes[i] == 1) ? 0 : 1;
    }
    return faults + (is_rounded(g.scalar[0], sum / static_cast<double>(g.y.size()), g.noise) ? 0 : 1);
  }
};

// ---- one side of a unit ----

template <class Key, class Value, side S>
class unit_side {
 public:
  using format = std::conditional_t<S == side::key, Key, Value>;
  using codec = kvant::codec_of<format>;
  using grouping = kvant::grouping_of<format>;
  using layout_type = kvant::page_layout<Key, Value>;

  unit_side(layout_type layout, std::byte const* unit)
      : layout_(layout),
        unit_(unit),
        dim_(S == side::key ? layout.shape.key_dim : layout.shape.value_dim),
        tokens_(layout.shape.page_tokens) {}

  [[nodiscard]] std::uint32_t code(int token, int channel) const {
    std::uint32_t c = 0;
    for (int k = 0; k < codec::bits; ++k) {
      auto const at = layout_.template code_bit<S>(token, channel, k);
      c |= (std::to_integer<std::uint32_t>(unit_[at.byte]) >> at.bit & 1u) << k;
    }
    return c;
  }
  /// Scalar s of the group that holds a code.
  [[nodiscard]] double scalar(int token, int channel, int s) const {
    if constexpr (grouping::along_tokens)
      return half_at(layout_.template channel_scalar_byte<S>(token, channel, s));
    else
      return half_at(layout_.template token_scalar_byte<S>(token, channel / run() * codec::scalars + s));
  }
  [[nodiscard]] double mean(int coordinate) const { return mean_byte(coordinate) * half_at(layout_.mean_scale_byte()); }
  [[nodiscard]] int mean_byte(int coordinate) const {
    return std::to_integer<std::int8_t>(unit_[layout_.mean_byte(coordinate)]);
  }
  [[nodiscard]] double mean_scale() const { return half_at(layout_.mean_scale_byte()); }
  /// The coordinate that a code stands for, without the mean.
  [[nodiscard]] double coordinate(int token, int channel) const {
    std::uint32_t const c = code(token, channel);
    if constexpr (codec::exact) {
      return static_cast<double>(codec::decode(static_cast<typename codec::code>(c)));
    } else {
      double scalars[2] = {};
      for (int s = 0; s < codec::scalars; ++s) scalars[s] = scalar(token, channel, s);
      return definition<codec>::value(c, scalars);
    }
  }

  /// What the unit stands for: [tokens, dim]. factors: [dim], read if the format is balanced.
  [[nodiscard]] std::vector<double> decode(kvant::half const* factors) const {
    std::vector<double> rows;
    for (int token = 0; token < tokens_; ++token) {
      std::vector<double> y(static_cast<std::size_t>(dim_));
      for (int c = 0; c < dim_; ++c) {
        y[at(c)] = coordinate(token, c);
        if constexpr (format::is_centered) y[at(c)] += mean(c);
      }
      std::vector<double> x = matrix().rotate_back(y.data());
      if constexpr (format::is_balanced)
        for (int c = 0; c < dim_; ++c) x[at(c)] *= factor(factors, c);
      rows.insert(rows.end(), x.begin(), x.end());
    }
    return rows;
  }

  /// How many codes, parameters and mean bytes are not what encoding these rows gives, or are not zero where tokens are
  /// masked. rows: [tokens, dim].
  [[nodiscard]] int faults(std::vector<float> const& rows, int masked, kvant::half const* factors) const {
    int faults = masked_faults(masked);
    if constexpr (kvant::is_exact<format>) {
      for (int token = masked; token < tokens_; ++token)
        for (int c = 0; c < dim_; ++c) {
          auto const expected = static_cast<typename codec::element_type>(rows[at(token * dim_ + c)]);
          faults += code(token, c) == std::bit_cast<typename codec::code>(expected) ? 0 : 1;
        }
    } else {
      std::vector<double> x(rows.begin(), rows.end());
      double largest = 0;
      for (int i = masked * dim_; i < tokens_ * dim_; ++i) {
        if constexpr (format::is_balanced) x[at(i)] /= factor(factors, i % dim_);
        largest = std::max(largest, std::abs(x[at(i)]));
      }
      double const noise = 2e-6 * largest;
      if constexpr (format::is_centered) faults += mean_faults(x, masked, noise);
      std::vector<double> y;
      for (int token = 0; token < tokens_; ++token) {
        auto const rotated = matrix().rotate(x.data() + token * dim_);
        y.insert(y.end(), rotated.begin(), rotated.end());
        if constexpr (format::is_centered)
          for (int c = 0; c < dim_; ++c) y[at(token * dim_ + c)] -= mean(c);
      }
      faults += code_faults(y, masked, noise);
    }
    return faults;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  static double factor(kvant::half const* factors, int c) {
    return static_cast<double>(static_cast<float>(factors[c]));
  }
  [[nodiscard]] auto const& matrix() const { return rotation_matrix<kvant::rotation_of<format>>::of(dim_); }
  [[nodiscard]] int run() const { return grouping::group_channels(dim_); }
  [[nodiscard]] double half_at(int byte) const {
    kvant::half h;
    std::memcpy(&h, unit_ + byte, 2);
    return static_cast<double>(static_cast<float>(h));
  }

  [[nodiscard]] int masked_faults(int masked) const {
    int faults = 0;
    for (int token = 0; token < masked; ++token)
      for (int c = 0; c < dim_; ++c) {
        faults += code(token, c) == 0 ? 0 : 1;
        bool const own_scalars =
            !grouping::along_tokens || token / grouping::group_tokens < masked / grouping::group_tokens;
        for (int s = 0; own_scalars && s < codec::scalars; ++s) faults += scalar(token, c, s) == 0 ? 0 : 1;
      }
    return faults;
  }

  /// x: [tokens, dim], balanced. The mean lies in the header, rotated, each byte within one of the nearest.
  [[nodiscard]] int mean_faults(std::vector<double> const& x, int masked, double noise) const {
    std::vector<double> sums(at(dim_));
    for (int token = masked; token < tokens_; ++token)
      for (int c = 0; c < dim_; ++c) sums[at(c)] += x[at(token * dim_ + c)] / (tokens_ - masked);
    auto const rotated = matrix().rotate(sums.data());
    double largest = 0;
    for (double const m : rotated) largest = std::max(largest, std::abs(m));
    int faults = is_rounded(mean_scale(), largest / 127, noise) ? 0 : 1;
    for (int c = 0; c < dim_; ++c) faults += std::abs(mean(c) - rotated[at(c)]) <= 0.501 * mean_scale() + noise ? 0 : 1;
    return faults;
  }

  [[nodiscard]] int code_faults(std::vector<double> const& y, int masked, double noise) const {
    int faults = 0;
    if constexpr (codec::exact) {
      for (int i = masked * dim_; i < tokens_ * dim_; ++i)
        faults += std::abs(coordinate(i / dim_, i % dim_) - y[at(i)]) <= noise ? 0 : 1;
    } else {
      int const token_run = grouping::along_tokens ? grouping::group_tokens : 1;
      for (int first = 0; first < tokens_; first += token_run)
        for (int begin = 0; begin < dim_; begin += run()) {
          group g;
          g.noise = noise;
          for (int token = std::max(first, masked); token < first + token_run; ++token)
            for (int c = begin; c < std::min(dim_, begin + run()); ++c) {
              g.y.push_back(y[at(token * dim_ + c)]);
              g.codes.push_back(code(token, c));
            }
          for (int s = 0; s < codec::scalars; ++s) g.scalar[s] = scalar(first, begin, s);
          if (!g.y.empty()) faults += definition<codec>::template faults<kvant::scale_of<format, S>>(g);
        }
    }
    return faults;
  }

  layout_type layout_;
  std::byte const* unit_;
  int dim_, tokens_;
};

}  // namespace support
