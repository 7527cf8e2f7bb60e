#pragma once

#include <cstdint>
#include <limits>

#include <kvant/config.hpp>
#include <kvant/format/scale.hpp>
#include <kvant/half.hpp>

namespace kvant::inline v0 {

/// The scale rule of affine codecs: evenly spaced levels from the least to the greatest value of the group.
struct min_max {};

/// B-bit affine codes (KIVI, arXiv 2402.02750): zero = min, scale = (max - min) / (2^B - 1), both stored as half and
/// encoded against as stored; code = round half to even((x - zero) / scale), clamped; decoded code * scale + zero.
///
/// Special values: a constant group has scale 0 and code 0 and decodes to its zero point, a group of zeros to exactly 0;
/// scale and zero saturate at 65504, a range below 2^-25 * (2^B - 1) decodes to the zero point. A value that is not
/// finite was made 0 before it came here and spoils its own group at most.
template <int Bits>
struct affine {
  static_assert(Bits == 2 || Bits == 3 || Bits == 4 || Bits == 8, "affine<Bits>: Bits must be 2, 3, 4 or 8");
  using default_scale = min_max;
  using code = std::uint8_t;
  static constexpr int bits = Bits, scalars = 2;
  static constexpr bool exact = false;
  static constexpr int top = (1 << Bits) - 1;

  struct params {
    half scalar[scalars];  // scale, zero
  };
  struct stats {
    float lo = std::numeric_limits<float>::infinity(), hi = -std::numeric_limits<float>::infinity();
    KVANT_HD constexpr void observe(float x) {
      lo = x < lo ? x : lo;
      hi = x > hi ? x : hi;
    }
  };
  /// What encode() needs of a group.
  struct grid {
    float scale = 0, zero = 0;
  };

  [[nodiscard]] KVANT_HD static constexpr params fit(stats s, int) {
    return {{saturate_to_half((s.hi - s.lo) / static_cast<float>(top)), saturate_to_half(s.lo)}};
  }
  [[nodiscard]] KVANT_HD static constexpr grid make_grid(stats s, int n) {
    params const p = fit(s, n);
    return {static_cast<float>(p.scalar[0]), static_cast<float>(p.scalar[1])};
  }
  [[nodiscard]] KVANT_HD static constexpr std::uint32_t encode(float x, grid g) {
    float const q = g.scale > 0.f ? (x - g.zero) / g.scale : 0.f;
    float const clamped = q > 0.f ? (q < static_cast<float>(top) ? q : static_cast<float>(top)) : 0.f;
    return static_cast<std::uint32_t>(
        static_cast<std::int32_t>((clamped + 8388608.f) - 8388608.f));  // rounds half to even
  }
  /// The product is exact in float (8 + 11 bits), so a fused multiply-add gives the same value.
  [[nodiscard]] KVANT_HD static constexpr float decode(std::uint32_t c, params p) {
    return static_cast<float>(c) * static_cast<float>(p.scalar[0]) + static_cast<float>(p.scalar[1]);
  }
};

}  // namespace kvant::inline v0
