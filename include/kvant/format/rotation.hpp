#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include <kvant/config.hpp>
#include <kvant/format/hadamard.hpp>
#include <kvant/layout/slot_order.hpp>

namespace kvant::inline v0 {

/// The sign that randomized_hadamard<Seed> puts before channel c: true for -1. It depends on seed and channel alone,
/// never on head, layer or rank. The top bit of splitmix64 (Steele, Lea, Flood 2014).
[[nodiscard]] KVANT_HD constexpr bool negative_sign(std::uint64_t seed, int channel) {
  std::uint64_t z = seed + (static_cast<std::uint64_t>(channel) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return ((z ^ (z >> 31)) >> 63) != 0;
}

namespace detail {
template <int Lanes, class Real>
inline void scaled_row(Real const* KVANT_RESTRICT from, Real* KVANT_RESTRICT to, Real factor) {  // [Lanes]
  for (int lane = 0; lane < Lanes; ++lane) to[lane] = factor * from[lane];
}
}  // namespace detail

/// Channels are coded as they come: coordinate = channel.
struct no_rotation {
  static constexpr bool rotates = false;
  [[nodiscard]] KVANT_HD static constexpr bool supports(int dim) { return dim > 0 && dim % 16 == 0; }
  /// What supports() expects beside a multiple of 16, for messages.
  [[nodiscard]] static std::string also_expected() { return {}; }

  /// Lanes vectors side by side, `from` by channel, `to` by coordinate. Not in place.
  template <int Lanes = 1, class Real>
  static void forward(Real const* from, Real* to, int dim) {  // [dim, Lanes]
    for (std::int64_t i = 0; i < std::int64_t{dim} * Lanes; ++i) to[i] = from[i];
  }
  /// The inverse of forward(). `from` may be overwritten.
  template <int Lanes = 1, class Real>
  static void inverse(Real* from, Real* to, int dim) {  // [dim, Lanes]
    forward<Lanes>(from, to, dim);
  }
};

/// y = H S x / sqrt(dim): random signs on the channels, then a Hadamard matrix over the slots (layout/slot_order.hpp), so
/// that kernels need no shuffles. Orthonormal for every dim = m 2^k, m in {1, 12, 20, 28, 36}, that is a multiple of 16;
/// other head sizes are refused (check supports()), none is padded. One Hadamard is not a Haar rotation: a vector with a
/// single channel set becomes flat.
template <std::uint64_t Seed = 0x6b76616e74>
struct randomized_hadamard {
  static constexpr bool rotates = true;
  static constexpr std::uint64_t seed = Seed;
  [[nodiscard]] KVANT_HD static constexpr bool supports(int dim) { return dim % 16 == 0 && hadamard_factor(dim) != 0; }
  [[nodiscard]] static std::string also_expected() {
    return " that is 1, 12, 20, 28 or 36 times a power of two (the format rotates)";
  }

  /// Lanes vectors side by side, `from` by channel, `to` by slot. Not in place. Every result is one rounded product of
  /// sums taken in an order that depends on dim alone: the same bits under every compiler option.
  template <int Lanes = 1, class Real>
  static void forward(Real const* from, Real* to, int dim) {  // [dim, Lanes]
    for (int p = 0; p < dim; ++p) {
      Real const sign = negative_sign(Seed, p) ? Real{-1} : Real{1};
      detail::scaled_row<Lanes>(from + std::int64_t{p} * Lanes, to + std::int64_t{slot_of(p, dim)} * Lanes, sign);
    }
    hadamard_transform<Lanes>(to, dim);
    auto const scale = static_cast<Real>(1 / std::sqrt(static_cast<double>(dim)));
    for (std::int64_t i = 0; i < std::int64_t{dim} * Lanes; ++i) to[i] *= scale;
    detail::settle(to);
  }

  /// The inverse, which is the transpose. `from` is overwritten.
  template <int Lanes = 1, class Real>
  static void inverse(Real* from, Real* to, int dim) {  // [dim, Lanes]
    hadamard_transform<Lanes, true>(from, dim);
    auto const scale = static_cast<Real>(1 / std::sqrt(static_cast<double>(dim)));
    for (int p = 0; p < dim; ++p) {
      Real const factor = negative_sign(Seed, p) ? -scale : scale;
      detail::scaled_row<Lanes>(from + std::int64_t{slot_of(p, dim)} * Lanes, to + std::int64_t{p} * Lanes, factor);
    }
    detail::settle(to);
  }
};

/// Rotation over the first Channels channels alone; the rest pass as they are (latent attention: 512 of 576).
template <int Channels, class Rotation>
struct first_channels {
  static constexpr bool rotates = Rotation::rotates;
  [[nodiscard]] KVANT_HD static constexpr bool supports(int dim) {
    return dim % 16 == 0 && dim >= Channels && Rotation::supports(Channels);
  }
  [[nodiscard]] static std::string also_expected() {
    return " that is at least " + std::to_string(Channels) + " (the channels that are rotated)";
  }
  template <int Lanes = 1, class Real>
  static void forward(Real const* from, Real* to, int dim) {  // [dim, Lanes]
    Rotation::template forward<Lanes>(from, to, Channels);
    for (std::int64_t i = std::int64_t{Channels} * Lanes; i < std::int64_t{dim} * Lanes; ++i) to[i] = from[i];
  }
  template <int Lanes = 1, class Real>
  static void inverse(Real* from, Real* to, int dim) {  // [dim, Lanes]
    Rotation::template inverse<Lanes>(from, to, Channels);
    for (std::int64_t i = std::int64_t{Channels} * Lanes; i < std::int64_t{dim} * Lanes; ++i) to[i] = from[i];
  }
};

}  // namespace kvant::inline v0
