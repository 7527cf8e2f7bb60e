#pragma once

#include <kvant/config.hpp>

namespace kvant::inline v0 {

namespace detail {

struct compiled_codebook {
  float step;
  int magnitudes[8];  // ascending; 2^(bits - 1) of them
};

/// What search_integer_table(bits) finds (lloyd_max_search.hpp); `make_codebooks --tables` prints these lines.
/// A function, not an array: device code cannot index a static constexpr array at run time.
KVANT_HD constexpr compiled_codebook compiled_codebook_of(int bits) {
  if (bits == 1) return {0.799560546875f, {1}};
  if (bits == 2) return {0.49658203125f, {1, 3}};
  if (bits == 3) return {0.017578125f, {14, 43, 76, 121}};
  return {0.0107421875f, {12, 36, 61, 87, 116, 149, 190, 250}};
}

}  // namespace detail

/// The levels of a width, one table for all head sizes: value = integer level * step, for vectors of rms 1.
/// half * step * level is exact in float: step and the largest level have at most 13 significant bits together.
/// Costs 1.16 % of D against the real-valued optimum of a head size at 2 bits, 0.11 % elsewhere (d 64 to 576).
template <int Bits>
struct codebook_table {
  static_assert(Bits >= 1 && Bits <= 4, "a Lloyd-Max codebook has 1 to 4 bits");
  static constexpr int bits = Bits, levels = 1 << Bits, magnitudes = levels / 2;
  static constexpr float step = detail::compiled_codebook_of(Bits).step;

  /// The i-th positive level, ascending; 0 <= i < magnitudes.
  [[nodiscard]] KVANT_HD static constexpr int magnitude(int i) {
    constexpr auto table = detail::compiled_codebook_of(Bits);
    return table.magnitudes[i];
  }
  static constexpr int largest = detail::compiled_codebook_of(Bits).magnitudes[magnitudes - 1];

  /// The signed integer of a code, 0 <= code < levels. 4 bits: the low three are the index of the magnitude, bit 3 is
  /// set for negative ones. Fewer bits: codes count the levels in ascending order.
  [[nodiscard]] KVANT_HD static constexpr int level(int code) {
    bool const upper = code >= magnitudes;
    if constexpr (Bits == 4) {
      return upper ? -magnitude(code - magnitudes) : magnitude(code);
    } else if constexpr (Bits == 3) {
      return upper ? magnitude(code - magnitudes) : -magnitude(magnitudes - 1 - code);
    } else {
      return 2 * code - (levels - 1);
    }
  }

  /// Where magnitude i ends and i + 1 begins, for vectors of rms 1; exact. 0 <= i < magnitudes - 1.
  [[nodiscard]] KVANT_HD static constexpr float boundary(int i) {
    return 0.5f * static_cast<float>(magnitude(i) + magnitude(i + 1)) * step;
  }
};

}  // namespace kvant::inline v0
