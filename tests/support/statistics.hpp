#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "support/catch.hpp"

namespace support {

/// Numbers that every compiler and library makes alike: splitmix64, Box-Muller.
class generator {
 public:
  explicit generator(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// In (0, 1).
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }
  double normal() {
    if (spare_) {
      spare_ = false;
      return kept_;
    }
    double const radius = std::sqrt(-2 * std::log(uniform())), angle = 2 * std::numbers::pi * uniform();
    kept_ = radius * std::sin(angle), spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  std::uint64_t state_;
  double kept_ = 0;
  bool spare_ = false;
};

/// Mean of independent measurements, and how far chance moves it.
class sample_mean {
 public:
  void add(double x) {
    ++n_;
    double const from_mean = x - mean_;
    mean_ += from_mean / n_;
    squares_ += from_mean * (x - mean_);
  }
  [[nodiscard]] double mean() const { return mean_; }
  [[nodiscard]] double standard_error() const { return n_ > 1 ? std::sqrt(squares_ / (n_ - 1.) / n_) : INFINITY; }

 private:
  double n_ = 0, mean_ = 0, squares_ = 0;
};

/// The mean is `expected` within max(tolerance, 4 standard errors), and 4 standard errors are at most `widest`: above,
/// the check could not see what it is for.
inline void require_mean(sample_mean const& measured, double expected, double tolerance, double widest) {
  double const mean = measured.mean(), standard_error = measured.standard_error();
  CAPTURE(mean, standard_error, expected, tolerance, widest);
  REQUIRE(4 * standard_error <= widest);
  REQUIRE(std::abs(mean - expected) <= std::max(tolerance, 4 * standard_error));
}

}  // namespace support
