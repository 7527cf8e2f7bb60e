#pragma once

#include <kvant/config.hpp>

namespace kvant::inline v0 {

/// Position p of a vector in memory holds slot slot_of(p, dim): the order in which a lane (t = lane % 4) that loads 8
/// consecutive values (the last 16 of an odd multiple of 16: 4 values) finds the operands of two m16n8k16 fragments.
/// Rotations number their coordinates by slot, page headers and per-channel parameters lie in this order, and q is
/// loaded in it, so no kernel shuffles:
///   position 32c + 8t + 4b + 2hi + j <-> slot 16(2c + b) + 8hi + 2t + j;  tail: 32c + 4t + 2hi + j <-> 32c + 8hi + 2t + j
/// A permutation of 0 .. dim - 1 within aligned runs of 32 (16 at the tail). dim is a multiple of 16.
[[nodiscard]] KVANT_HD constexpr int slot_of(int position, int dim) {
  int const base = position & ~31, p = position & 31, j = p & 1, hi = (p >> 1) & 1;
  if (base + 32 > dim) return base + 8 * hi + 2 * ((p >> 2) & 3) + j;
  return base + 16 * ((p >> 2) & 1) + 8 * hi + 2 * (p >> 3) + j;
}

/// The inverse of slot_of.
[[nodiscard]] KVANT_HD constexpr int position_of(int slot, int dim) {
  int const base = slot & ~31, s = slot & 31, j = s & 1, t = (s >> 1) & 3, hi = (s >> 3) & 1;
  if (base + 32 > dim) return base + 4 * t + 2 * hi + j;
  return base + 8 * t + 4 * (s >> 4) + 2 * hi + j;
}

}  // namespace kvant::inline v0
