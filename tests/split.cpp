// How the work of a decode launch is cut, whatever the batch: every tile in one span, parts and their slots in order.
#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include <kvant/split.hpp>

#include "support/catch.hpp"

namespace {

using kvant::segment_work;
using kvant::work_split;

struct batch {
  std::vector<segment_work> work;  // of each sequence
  int heads = 1, ctas = 132, page_tiles = 2, least_team = 4;

  [[nodiscard]] work_split split() const {
    std::int32_t total = 0, largest = 0;
    for (segment_work const& w : work) total += w.listed() * heads, largest = std::max(largest, w.units());
    return work_split::choose(
        {static_cast<std::int32_t>(work.size()) * heads, total, largest, ctas, page_tiles, least_team});
  }
};

/// Whether a team has a part of the segment that begins at `begin`, as the plan and the kernel find out.
bool takes_part(work_split const& s, int team, int segment, int begin, segment_work w) {
  if (s.whole > 0) return team / s.whole == segment;
  return team * s.share < begin + w.units() && (team + 1) * s.share > begin;
}

void check_cover(batch const& b) {
  work_split const s = b.split();
  int const teams = s.teams(b.ctas);
  REQUIRE((s.team_warps == 16 || s.team_warps == 8 || (s.team_warps == 4 && b.least_team == 4)));
  std::set<int> slots;
  int begin = 0, segment = 0;
  for (segment_work const& w : b.work)
    for (int h = 0; h < b.heads; ++h, begin += w.listed(), ++segment) {
      if (w.units() == 0) continue;
      int exact = 0, tiles = 0, parts = 0;
      for (int team = 0; team < teams; ++team) {
        if (!takes_part(s, team, segment, begin, w)) continue;
        auto const span = s.span(team, 0, h, begin, w);
        if (span.part >= span.parts) continue;
        REQUIRE(span.part == parts++);
        REQUIRE(span.first_team + span.part == team);
        REQUIRE((span.exact_begin == exact || span.exact_begin == span.exact_end));
        REQUIRE((span.tiles_begin == tiles || span.tiles_begin == span.tiles_end));
        if (span.tiles_begin < span.tiles_end) REQUIRE(span.tiles_begin % s.granule == 0);
        exact = std::max(exact, span.exact_end), tiles = std::max(tiles, span.tiles_end);
        if (span.parts > 1) {
          if (span.part > 0) REQUIRE(slots.insert(team).second);
        }
      }
      REQUIRE(exact == w.exact);
      REQUIRE(tiles == w.tiles);
      REQUIRE(parts >= 1);
    }
}

}  // namespace

TEST_CASE("every tile belongs to one span, in any batch", "[split]") {
  for (int seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    auto const below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    batch b;
    b.heads = 1 + below(8), b.ctas = seed % 2 == 0 ? 132 : 1 + below(140);
    b.page_tiles = 1 << below(2), b.least_team = below(2) == 0 ? 4 : 8;
    int const sequences = 1 + below(seed % 3 == 0 ? 200 : 8), longest = 1 + below(2000);
    bool const alike = below(2) == 0;
    for (int i = 0; i < sequences; ++i) {
      segment_work const w{below(13), b.page_tiles * below(longest)};
      b.work.push_back(alike && i > 0 ? b.work[0] : !alike && below(7) == 0 ? segment_work{} : w);
    }
    CAPTURE(seed);
    check_cover(b);
  }
}

TEST_CASE("no team has parts of two segments where segments fill the teams", "[split]") {
  // 32 sequences of 4K tokens and 8 heads: teams of 8 warps; 64: of 4; one: of 16, as few parts as CTAs allow.
  auto const of = [](int sequences, int tiles, int least_team = 4) {
    batch b;
    b.work.assign(static_cast<std::size_t>(sequences), segment_work{11, tiles}), b.heads = 8, b.least_team = least_team;
    return b.split();
  };
  CHECK((of(32, 124).whole == 1 && of(32, 124).team_warps == 8));
  CHECK((of(64, 124).whole == 1 && of(64, 124).team_warps == 4));
  CHECK((of(64, 124, 8).whole == 0 && of(64, 124, 8).team_warps == 16));
  CHECK((of(1, 1020).whole == 16 && of(1, 1020).team_warps == 16));
  CHECK(of(1, 4).whole <= 4);  // half a tile a warp, and no more parts than that
}

TEST_CASE("a list of unlike sequences is cut into equal shares", "[split]") {
  batch b;
  for (int i = 0; i < 32; ++i) b.work.push_back({11, 36 << (i % 8)});
  b.heads = 8;
  auto const s = b.split();
  CHECK(s.whole == 0);
  CHECK(s.team_warps == 16);
  CHECK(s.granule == 2);
}
