#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include <kvant/config.hpp>
#include <kvant/format/codebook_tables.hpp>
#include <kvant/format/scale.hpp>
#include <kvant/half.hpp>

namespace kvant::inline v0 {

/// The MSE-optimal scalar codebook for coordinates of a randomly rotated vector (TurboQuant, arXiv 2504.19874, 3.1), as
/// small integers times a step (codebook_table<Bits>): code = nearest level of x / rms of the group, ties towards zero;
/// decoded = stored half * step * level, exact in float.
///
/// Special values: a group of zeros has scalar 0 and decodes to zeros; the scalar saturates at 65504, and below 2^-25 the
/// group decodes to zeros (so directions are kept for norms from 1e-5 to 1e5 at every head size). A value that is not
/// finite was made 0 before it came here.
template <int Bits>
struct lloyd_max {
  using table = codebook_table<Bits>;
  using default_scale = scale_by_side;
  using code = std::uint8_t;
  static constexpr int bits = Bits, scalars = 1;
  static constexpr bool exact = false;

  struct params {
    half scalar[scalars];
  };
  struct stats {
    double xx = 0;
    KVANT_HD constexpr void observe(float x) {
      xx += static_cast<double>(x) * static_cast<double>(x);  // exact product: fused or not, the same sum
    }
  };
  struct grid {
    float inverse_rms = 0;
  };
  struct coded {
    std::uint32_t code;
    std::int32_t level;
  };

  [[nodiscard]] static grid make_grid(stats s, int n) {
    return {s.xx > 0 ? static_cast<float>(std::fmin(3e38, 1 / std::sqrt(s.xx / n))) : 0.f};
  }
  [[nodiscard]] KVANT_HD static constexpr coded encode_level(float x, grid g) {
    // No branches: compilers make vectors of it.
    float const z = x * g.inverse_rms;
    float const magnitude = detail::bit_cast<float>(detail::bit_cast<std::uint32_t>(z) & 0x7fffffffu);
    std::int32_t index = 0, level = table::magnitude(0);
    [&]<int... I>(std::integer_sequence<int, I...>) {
      ((index += static_cast<std::int32_t>(magnitude > table::boundary(I)),
        level +=
        -static_cast<std::int32_t>(magnitude > table::boundary(I)) & (table::magnitude(I + 1) - table::magnitude(I))),
       ...);
    }
    (std::make_integer_sequence<int, table::magnitudes - 1>{});
    std::int32_t const negative = -static_cast<std::int32_t>(z < 0.f);  // all bits or none
    std::int32_t const code =
        Bits == 4 ? index | (negative & table::magnitudes) : table::magnitudes + (index ^ negative);
    return {static_cast<std::uint32_t>(code), (level ^ negative) - negative};
  }
  [[nodiscard]] KVANT_HD static constexpr std::uint32_t encode(float x, grid g) { return encode_level(x, g).code; }
  /// What the group stores under scale rule Rule.
  template <scale_rule Rule, class Real = double>
  [[nodiscard]] KVANT_HD static params fit(basic_moments<Real> m) {
    return {{saturate_to_half(static_cast<float>(Rule::scalar(m, static_cast<Real>(table::step))))}};
  }
  [[nodiscard]] KVANT_HD static constexpr float decode(std::uint32_t c, params p) {
    return static_cast<float>(table::level(static_cast<int>(c))) * table::step * static_cast<float>(p.scalar[0]);
  }
};

}  // namespace kvant::inline v0
