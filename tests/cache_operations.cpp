#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <kvant/cache/kv_cache.hpp>
#include <kvant/plan/plan.hpp>

#include "support/cache_rows.hpp"
#include "support/catch.hpp"
#include "support/small_cache.hpp"

namespace {

using kvant::truncation;
using support::position_rows;
using support::small_cache;
using support::snapshot;
constexpr int window = support::small_window, page = 64;

/// A sequence of `tokens` in runs of `chunk`, committed after each; 0: in one prefill.
kvant::sequence_id fill(small_cache& cache, position_rows<> const& rows, int tokens, int chunk) {
  auto const id = *cache.add();
  if (chunk == 0) {
    REQUIRE(cache.prefill(id, tokens, rows.from(0)).message() == "");
    return id;
  }
  for (int at = 0; at < tokens; at += chunk) {
    int const run = std::min(chunk, tokens - at);
    REQUIRE(cache.append({id, run}, rows.from(at)).message() == "");
    REQUIRE(cache.commit(id).message() == "");
  }
  return id;
}

}  // namespace

TEST_CASE("pages and window hold the same bytes in whatever runs the tokens came", "[cache]") {
  auto cache = support::make_small_cache({.max_sequences = 5});
  position_rows const rows(cache.geometry(), 600);
  int const tokens = GENERATE(0, 1, 4, window, window + page - 1, window + page, 333, 600);
  CAPTURE(tokens);
  auto const at_once = snapshot(cache, fill(cache, rows, tokens, 0));
  CHECK(snapshot(cache, fill(cache, rows, tokens, 1)) == at_once);
  CHECK(snapshot(cache, fill(cache, rows, tokens, 37)) == at_once);
  auto const mixed = fill(cache, rows, tokens / 3, 0);
  REQUIRE(cache.append({mixed, tokens / 7}, rows.from(tokens / 3)).ok());  // uncommitted: it begins in the ring
  int const done = tokens / 3 + tokens / 7;
  REQUIRE(cache.prefill(mixed, tokens - done, rows.from(done)).ok());
  CHECK(snapshot(cache, mixed) == at_once);
}

TEST_CASE("the newest W tokens and the sinks stay exact, and no more than W + P - 1 do", "[cache]") {
  auto cache = support::make_small_cache({});
  position_rows const rows(cache.geometry(), 300);
  auto const id = *cache.add();
  for (int n = 0; n < 300; ++n) {
    REQUIRE(cache.append({id, 1}, rows.from(n)).ok());
    REQUIRE(cache.commit(id).ok());
    int const exact = cache.length(id) - cache.history(id, 0);
    CAPTURE(n);
    REQUIRE(exact <= window + page - 1);
    REQUIRE(exact >= std::min(n + 1, window));
    REQUIRE(cache.history(id, 0) % page == 0);
  }
}

TEST_CASE("a draft that is taken back was never there", "[cache]") {
  auto cache = support::make_small_cache({.max_sequences = 2});
  position_rows const rows(cache.geometry(), 400), drafts(cache.geometry(), 400, 2);
  int const before = GENERATE(0, 3, 60, window + page - 2, 200), draft = GENERATE(1, 3, 15), kept = GENERATE(0, 1);
  CAPTURE(before, draft, kept);
  auto const plain = fill(cache, rows, before, 11), drafted = fill(cache, rows, before, 11);
  REQUIRE(cache.append({drafted, kept}, rows.from(before)).ok());
  REQUIRE(cache.append({drafted, draft}, drafts.from(before + kept)).ok());
  auto const back = cache.truncate(drafted, before + kept);
  REQUIRE(back.message() == "");
  CHECK(*back == truncation::exact);
  REQUIRE(cache.append({plain, kept}, rows.from(before)).ok());
  CHECK(snapshot(cache, drafted) == snapshot(cache, plain));
  for (auto const id : {plain, drafted})
    for (int at = before + kept; at < before + kept + 100; at += 10) {
      REQUIRE(cache.append({id, 10}, rows.from(at)).ok());
      REQUIRE(cache.commit(id).ok());
    }
  CHECK(snapshot(cache, drafted) == snapshot(cache, plain));
}

TEST_CASE("truncation into a page says what it is, and brings the rest of the page back", "[cache]") {
  auto cache = support::make_small_cache({});
  position_rows const rows(cache.geometry(), 400);
  auto const id = fill(cache, rows, 400, 0);
  int const history = cache.history(id, 0);
  REQUIRE(history == (400 - window) / page * page);
  CHECK(*cache.truncate(id, history + 3) == truncation::exact);  // history stays: fewer than W are exact now
  CHECK(cache.history(id, 0) == history);
  CHECK(*cache.truncate(id, history - page) == truncation::exact);  // the end of a page
  CHECK(cache.history(id, 0) == history - page);
  CHECK(*cache.truncate(id, 100) == truncation::approximate);
  CHECK(cache.length(id) == 100);
  CHECK(cache.history(id, 0) == page);
  CHECK(*cache.truncate(id, 4) == truncation::exact);  // sinks are exact
  CHECK(cache.history(id, 0) == 0);
  CHECK(*cache.truncate(id, 0) == truncation::exact);
  CHECK(cache.stats().pages_used == 0);
  // As if it had never been longer.
  auto fresh = support::make_small_cache({});
  REQUIRE(cache.prefill(id, 300, rows.from(0)).ok());
  CHECK(snapshot(cache, id) == snapshot(fresh, fill(fresh, rows, 300, 0)));
}

TEST_CASE("a fork shares pages and nothing else", "[cache]") {
  auto cache = support::make_small_cache({.max_sequences = 3});
  position_rows const rows(cache.geometry(), 500), other(cache.geometry(), 500, 9);
  // In the sinks, in the window, where a page ends, within a page.
  int const length = GENERATE(0, 2, 50, 64 + window, 150, 400), cut = GENERATE(0, 1, 70);
  CAPTURE(length, cut);
  auto const parent = fill(cache, rows, length, 13);
  auto const before = snapshot(cache, parent);
  auto const child = cache.fork(parent);
  REQUIRE(child.message() == "");
  CHECK(snapshot(cache, *child) == before);
  CHECK(cache.stats().pages_shared == cache.stats().pages_used);

  REQUIRE(cache.truncate(*child, std::max(0, length - cut)).ok());
  REQUIRE(cache.append({*child, 10}, other.from(0)).ok());
  REQUIRE(cache.prefill(*child, 90, other.from(10)).ok());
  CHECK(snapshot(cache, parent) == before);
  auto const of_child = snapshot(cache, *child);
  REQUIRE(cache.prefill(parent, 70, rows.from(length)).ok());
  CHECK(snapshot(cache, *child) == of_child);
  REQUIRE(cache.release(parent).ok());
  CHECK(snapshot(cache, *child) == of_child);
  REQUIRE(cache.release(*child).ok());
  CHECK(cache.stats().pages_used == 0);
  CHECK(cache.stats().pages_shared == 0);
}

TEST_CASE("dropped context leaves positions, sinks and the rest as they were", "[cache]") {
  auto cache = support::make_small_cache({});
  position_rows const rows(cache.geometry(), 600);
  auto const id = fill(cache, rows, 400, 0);
  auto const used = cache.stats().pages_used;
  REQUIRE(cache.drop(id, 200).ok());
  CHECK(cache.first(id, 0) == 192);
  CHECK(cache.length(id) == 400);
  CHECK(cache.stats().pages_used == used - 2 * 3);  // of two groups
  REQUIRE(cache.drop(id, 10).ok());                 // nothing older is left
  CHECK(cache.first(id, 0) == 192);
  REQUIRE(cache.append({id, 5}, rows.from(400)).ok());
  CHECK(cache.length(id) == 405);
  auto const refused = cache.truncate(id, 150);
  CHECK(refused.message().find("at least 192 or at most 4") != std::string::npos);
  CHECK(cache.length(id) == 405);
  CHECK(cache.truncate(id, 3).message() != "");  // one group has no more than two sinks
  CHECK(*cache.truncate(id, 2) == truncation::exact);
  CHECK(cache.first(id, 0) == 0);
}

TEST_CASE("a table is a ring once old pages go: no length is too long", "[cache]") {
  auto cache = support::make_small_cache({.max_tokens = 256});
  position_rows const rows(cache.geometry(), 700);
  auto const id = *cache.add();
  for (int n = 0; n < 700; n += 7) {
    REQUIRE(cache.append({id, 7}, rows.from(n)).message() == "");
    REQUIRE(cache.commit(id).ok());
    REQUIRE(cache.drop(id, std::max(0, cache.length(id) - 180)).ok());
  }
  auto whole = support::make_small_cache({.max_tokens = 700});
  auto const other = fill(whole, rows, 700, 0);
  REQUIRE(whole.drop(other, 700 - 180).ok());
  CHECK(snapshot(cache, id) == snapshot(whole, other));
}

TEST_CASE("values that are not finite are counted and spoil no other page", "[cache]") {
  auto cache = support::make_small_cache({.max_sequences = 2});
  position_rows rows(cache.geometry(), 300);
  auto const plain = fill(cache, rows, 300, 0);
  for (auto& keys : rows.keys()) keys[5 * 32] = kvant::half{std::numeric_limits<float>::quiet_NaN()};
  CHECK(cache.stats().not_finite == 0);
  auto const odd = fill(cache, rows, 300, 0);
  CHECK(cache.stats().not_finite > 0);
  auto const a = cache.view(1, plain), b = cache.view(1, odd);
  auto const unit = static_cast<std::size_t>(cache.geometry().layers[1].unit_bytes);
  // Balance factors come from the first page, so a later page differs by them alone: look at the exact layer.
  CHECK(std::memcmp(a->pages.unit(a->table.page(0, 2), 0), b->pages.unit(b->table.page(0, 2), 0), unit) == 0);
}
