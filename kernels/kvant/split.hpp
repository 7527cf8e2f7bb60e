#pragma once

#include <cstdint>

#include <kvant/config.hpp>

namespace kvant::inline v0 {

// How the work of a decode launch is cut. The work of a sequence and kv head (a segment) is its exact rows (sinks, then
// window) in tiles of 16 and its pages in tiles; a unit is what one tile of a page costs, and 16 exact rows count two.
// The warps of a CTA work in teams of 16, 8 or 4; the units of a team are consecutive. Plain arithmetic, tested on the
// host.

inline constexpr int cta_warps = 16, exact_tile_rows = 16, exact_tile_units = 2;

/// What a team's going on to another segment costs it (queries, a merge), in units.
inline constexpr int segment_overhead_units = 64;

/// The tiles of a segment, and what tells where they lie.
struct segment_work {
  std::int32_t exact = 0, tiles = 0;
  std::int32_t length = 0, history = 0;  // of the sequence
  [[nodiscard]] KVANT_HD constexpr std::int32_t units() const { return exact_tile_units * exact + tiles; }
  /// Its length in the list of all segments: where it has units, they are followed by the overhead.
  [[nodiscard]] KVANT_HD constexpr std::int32_t listed() const {
    return units() == 0 ? 0 : units() + segment_overhead_units;
  }
};

/// What a team does of one segment.
struct decode_span {
  std::int32_t sequence = 0, head = 0;
  std::int32_t exact_begin = 0, exact_end = 0;
  std::int32_t tiles_begin = 0, tiles_end = 0;
  std::int32_t part = 0, parts = 1;  // of the segment's teams
  std::int32_t first_team = 0;       // of the segment
  std::int32_t length = 0, history = 0;
};

/// The cut itself.
struct work_split {
  std::int32_t team_warps = cta_warps;
  std::int32_t granule = 1;  // tiles that stay together: those of a page, or one
  std::int32_t share = 1;    // units of a team, where all segments are cut as one list
  std::int32_t whole = 0;    // teams of a segment, where no team has work of two segments; 0: one list

  /// a / b for a >= 0, b > 0, b small beside 2^31: on the device by a reciprocal and corrections (one at most where the
  /// quotient is below 2^20), since a step waits for the plan.
  KVANT_HD static constexpr std::int32_t quotient(std::int32_t a, std::int32_t b) {
#if defined(__CUDA_ARCH__)
    std::int32_t q = static_cast<std::int32_t>(__fdividef(static_cast<float>(a), static_cast<float>(b)));
    while (q * b > a) --q;
    while (a - q * b >= b) ++q;
    return q;
#else
    return a / b;
#endif
  }
  KVANT_HD static constexpr std::int32_t ceil_div(std::int32_t a, std::int32_t b) { return quotient(a + b - 1, b); }
  KVANT_HD static constexpr std::int32_t least(std::int32_t a, std::int32_t b) { return a < b ? a : b; }
  KVANT_HD static constexpr std::int32_t most(std::int32_t a, std::int32_t b) { return a > b ? a : b; }

  /// Up to whole granules; a granule is a power of two.
  [[nodiscard]] KVANT_HD constexpr std::int32_t rounded(std::int32_t tiles) const {
    return (tiles + granule - 1) & -granule;
  }
  [[nodiscard]] KVANT_HD constexpr std::int32_t teams(std::int32_t ctas) const {
    return team_warps == 16 ? ctas : team_warps == 8 ? 2 * ctas : 4 * ctas;
  }

  /// What there is to cut.
  struct amount {
    std::int32_t segments = 0, total = 0, largest = 0;  // all, their length in units, units of the largest
    std::int32_t ctas = 1, page_tiles = 1;              // page_tiles: tiles of a page
    std::int32_t least_team = 4;                        // 4 or 8 warps
  };
  static constexpr std::int32_t candidates = 4, never = 0x7fffffff;

  /// Cut `which` of the candidates: one list for teams of 16 warps, then whole segments for teams of 16, 8 and 4. cost:
  /// units until the last team ends, `never` where it cannot be.
  KVANT_HD static constexpr work_split candidate(std::int32_t which, amount const& all, std::int32_t& cost) {
    work_split s;
    s.granule = all.total >= all.ctas * cta_warps * 2 * all.page_tiles ? all.page_tiles : 1;
    if (which == 0) {
      s.share = s.rounded(most(1, ceil_div(all.total, all.ctas)));
      cost = s.share + 3 * segment_overhead_units;  // most teams have a part of one more segment
      return s;
    }
    std::int32_t const of_cta = 1 << (which - 1);
    cost = never;
    s.share = 0, s.team_warps = cta_warps >> (which - 1);
    s.whole = all.segments > 0 && s.team_warps >= all.least_team ? quotient(of_cta * all.ctas, all.segments) : 0;
    if (s.whole == 0) return s;
    // Half a tile a warp: fewer would only make more parts to join, which the team that comes last does, 16 at a time.
    s.whole = least(s.whole, most(1, ceil_div(all.largest, s.team_warps / 2)));
    cost = s.part_units(all.largest) * of_cta + segment_overhead_units + (s.whole > 1 ? (s.whole + 15) / 16 * 8 : 0);
    return s;
  }
  /// The candidate expected to end first.
  [[nodiscard]] KVANT_HD static constexpr work_split choose(amount const& all) {
    std::int32_t cost = never;
    work_split best = candidate(0, all, cost);
    for (std::int32_t which = 1; which < candidates; ++which) {
      std::int32_t other_cost = never;
      work_split const other = candidate(which, all, other_cost);
      if (other_cost < cost) best = other, cost = other_cost;
    }
    return best;
  }

  /// Units of a part, where a segment of `units` is cut into `whole` parts.
  [[nodiscard]] KVANT_HD constexpr std::int32_t part_units(std::int32_t units) const {
    return rounded(most(1, ceil_div(units, whole)));
  }

  /// What `team` does of the segment that begins at place `begin` of the list.
  [[nodiscard]] KVANT_HD constexpr decode_span span(std::int32_t team, std::int32_t sequence, std::int32_t head,
                                                    std::int32_t begin, segment_work work) const {
    decode_span s;
    s.sequence = sequence, s.head = head, s.length = work.length, s.history = work.history;
    if (whole > 0) {
      // Exact rows and pages are shared out apart: each is a round of loads that a team's warps go through together.
      std::int32_t const most_parts = most(1, ceil_div(work.units(), part_units(work.units())));
      std::int32_t const exact = ceil_div(work.exact, most_parts), tiles = rounded(ceil_div(work.tiles, most_parts));
      s.parts = most(1, most(exact > 0 ? ceil_div(work.exact, exact) : 0, tiles > 0 ? ceil_div(work.tiles, tiles) : 0));
      s.part = team - quotient(team, whole) * whole, s.first_team = team - s.part;
      s.exact_begin = least(work.exact, s.part * exact), s.exact_end = least(work.exact, s.exact_begin + exact);
      s.tiles_begin = least(work.tiles, s.part * tiles), s.tiles_end = least(work.tiles, s.tiles_begin + tiles);
      return s;
    }
    std::int32_t const units = work.units();
    s.first_team = quotient(begin, share);
    s.part = team - s.first_team, s.parts = quotient(begin + most(1, units) - 1, share) - s.first_team + 1;
    std::int32_t const from = most(0, least(units, team * share - begin)),
                       to = most(from, least(units, team * share - begin + share));
    // A tile belongs to the team that has its first unit.
    std::int32_t const exact_units = exact_tile_units * work.exact;
    s.exact_begin = (least(from, exact_units) + exact_tile_units - 1) / exact_tile_units;
    s.exact_end = (least(to, exact_units) + exact_tile_units - 1) / exact_tile_units;
    s.tiles_begin = least(work.tiles, rounded(most(0, from - exact_units)));
    s.tiles_end = least(work.tiles, rounded(most(0, to - exact_units)));
    return s;
  }
};

}  // namespace kvant::inline v0
