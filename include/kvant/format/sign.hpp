#pragma once

#include <cstdint>

#include <kvant/config.hpp>
#include <kvant/format/scale.hpp>
#include <kvant/half.hpp>

namespace kvant::inline v0 {

/// The scale rule of sign codes: the mean absolute value, which is the least-squares scale of a sign code.
struct mean_magnitude {};

/// One bit a value, set when x >= 0 (so for +0 and -0), and one half: the mean absolute value of the group (Q1_0 of
/// llama.cpp, blocks of 128). Decoded: +scale or -scale.
///
/// Special values: a group of zeros has scale 0 and decodes to zeros; the scale saturates at 65504, below 2^-25 the group
/// decodes to zeros. A value that is not finite was made 0 before it came here.
struct sign {
  using default_scale = mean_magnitude;
  using code = std::uint8_t;
  static constexpr int bits = 1, scalars = 1;
  static constexpr bool exact = false;

  struct params {
    half scalar[scalars];  // scale
  };
  struct stats {
    double sum = 0;
    KVANT_HD constexpr void observe(float x) { sum += static_cast<double>(x < 0.f ? -x : x); }
  };
  struct grid {};

  [[nodiscard]] KVANT_HD static constexpr params fit(stats s, int n) {
    return {{saturate_to_half(static_cast<float>(s.sum / n))}};
  }
  [[nodiscard]] KVANT_HD static constexpr grid make_grid(stats, int) { return {}; }
  [[nodiscard]] KVANT_HD static constexpr std::uint32_t encode(float x, grid) { return x >= 0.f ? 1u : 0u; }
  [[nodiscard]] KVANT_HD static constexpr float decode(std::uint32_t c, params p) {
    return c != 0 ? static_cast<float>(p.scalar[0]) : -static_cast<float>(p.scalar[0]);
  }
};

}  // namespace kvant::inline v0
