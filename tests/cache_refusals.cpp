#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <kvant/cache/kv_cache.hpp>

#include "support/cache_rows.hpp"
#include "support/catch.hpp"
#include "support/small_cache.hpp"

namespace {

using support::position_rows;
using support::small_cache;
using support::snapshot;

bool says(kvant::status const& s, std::vector<std::string> const& words) {
  for (auto const& word : words)
    if (s.message().find(word) == std::string::npos) {
      UNSCOPED_INFO("\"" << s.message() << "\" does not say \"" << word << "\"");
      return false;
    }
  return !s.ok();
}

/// Everything a caller can see.
support::snapshot_bytes state(small_cache const& cache, std::vector<kvant::sequence_id> const& ids) {
  support::snapshot_bytes all;
  for (auto const id : ids) {
    auto const one = snapshot(cache, id);
    all.bytes.insert(all.bytes.end(), one.bytes.begin(), one.bytes.end());
  }
  auto const s = cache.stats();
  for (std::int64_t const n : {std::int64_t{s.sequences}, s.tokens, s.pages_used, s.pages_shared, s.pages_free})
    for (int b = 0; b < 8; ++b) all.bytes.push_back(static_cast<std::byte>(n >> (8 * b)));
  return all;
}

}  // namespace

TEST_CASE("a cache that cannot be is refused with what was expected and what came", "[cache]") {
  auto const create = [](auto change) {
    std::vector<kvant::layer_options> layers(std::begin(support::small_layers), std::end(support::small_layers));
    auto options = support::options_of({});
    change(options, layers);
    options.layers = layers;
    return small_cache::create(options).error();
  };
  using o = kvant::cache_options;
  using l = std::vector<kvant::layer_options>;
  CHECK(create([](o&, l&) {}).ok());
  CHECK(says(create([](o&, l& layers) { layers[1].shape.key_dim = 50; }),
             {"layer 1", "key_dim", "multiple of 16", "50"}));
  CHECK(says(create([](o&, l& layers) { layers[0].shape.page_tokens = 48; }), {"layer 0", "page_tokens", "64", "48"}));
  CHECK(says(create([](o&, l& layers) { layers[0].shape.kv_heads = 0; }), {"kv_heads", "at least 1", "0"}));
  CHECK(says(create([](o&, l& layers) { layers[1].sliding_window = -3; }), {"layer 1", "sliding_window", "-3"}));
  CHECK(says(create([](o&, l& layers) { layers.push_back({}); }), {"layers", "the plan's 2", "3"}));
  CHECK(says(create([](o&, l& layers) { layers.clear(); }), {"layers", "2", "0"}));
  CHECK(says(create([](o& all, l&) { all.max_sequences = 0; }), {"max_sequences", "at least 1", "0"}));
  CHECK(says(create([](o& all, l&) { all.max_tokens = 0; }), {"max_tokens", "0"}));
  CHECK(says(create([](o& all, l&) { all.pool_tokens = -1; }), {"pool_tokens", "-1"}));
  CHECK(says(create([](o& all, l&) { all.max_uncommitted = 0; }), {"max_uncommitted", "0"}));
  CHECK(says(create([](o& all, l&) { all.max_tokens = 1 << 30, all.max_sequences = 1 << 20; }), {"pages", "at most"}));
}

TEST_CASE("what cannot be done is refused, and nothing changes", "[cache]") {
  auto cache = support::make_small_cache({.max_sequences = 3, .max_tokens = 500, .pool_tokens = 640});
  position_rows const rows(cache.geometry(), 600);
  auto const a = *cache.add(), b = *cache.add(), gone = *cache.add();
  REQUIRE(cache.prefill(a, 400, rows.from(0)).ok());
  REQUIRE(cache.append({b, 30}, rows.from(0)).ok());
  REQUIRE(cache.release(gone).ok());
  auto const before = state(cache, {a, b});
  auto const all = rows.from(0);

  SECTION("sequences that are not there") {
    kvant::sequence_id const negative{-1, 0}, beyond{3, 0}, never{2, 7};
    for (auto const& [id, words] :
         std::vector<std::pair<kvant::sequence_id, std::vector<std::string>>>{{negative, {"0 to 2", "-1"}},
                                                                              {beyond, {"0 to 2", "3"}},
                                                                              {never, {"row 2", "7"}},
                                                                              {gone, {"row 2", "released"}}}) {
      CHECK(says(cache.release(id), words));
      CHECK(says(cache.commit(id), words));
      CHECK(says(cache.reserve(id, 1), words));
      CHECK(says(cache.begin({id, 1}), words));
      CHECK(says(cache.append({id, 1}, all), words));
      CHECK(says(cache.prefill(id, 1, all), words));
      CHECK(says(cache.truncate(id, 0).error(), words));
      CHECK(says(cache.fork(id).error(), words));
      CHECK(says(cache.drop(id, 0), words));
      CHECK(says(cache.set_position_base(id, 1), words));
      CHECK(says(cache.view(0, id).error(), words));
      CHECK_FALSE(cache.contains(id));
    }
    // A row is used again, and its old id is still unknown.
    auto const next = *cache.add();
    CHECK(next.row == gone.row);
    CHECK(says(cache.release(gone), {"row 2", "generation 1"}));
    CHECK(says(cache.add().error(), {"at most 3", "4"}));
    CHECK(says(cache.fork(a).error(), {"at most 3", "4"}));
    REQUIRE(cache.release(next).ok());
  }
  SECTION("lengths") {
    CHECK(says(cache.append({a, -1}, all), {"at least 0", "-1"}));
    CHECK(says(cache.append({a, 101}, all), {"at most 500", "501"}));
    CHECK(says(cache.prefill(a, 101, all), {"at most 500", "501"}));
    CHECK(says(cache.reserve(a, 101), {"at most 500", "501"}));
    CHECK(says(cache.prefill(a, 2000000000, all), {"at most", "2000000400"}));
    int const room = cache.group_of(0).room(b.row);
    CHECK(says(cache.append({b, room + 1}, all), {"at most " + std::to_string(room), std::to_string(room + 1)}));
    CHECK(says(cache.truncate(a, 401).error(), {"400", "401"}));
    CHECK(says(cache.truncate(a, -1).error(), {"400", "-1"}));
    CHECK(says(cache.drop(a, 401), {"400", "401"}));
  }
  SECTION("a full pool") {
    // 10 pages in each group; 5 are a's.
    CHECK(says(cache.prefill(b, 400, all), {"64 tokens", "expected 6", "of 10", "got 5"}));
    CHECK(says(cache.reserve(b, 400), {"expected 6", "got 5"}));
    std::vector<kvant::token_run> const batch{{a, 70}, {b, 60}};
    REQUIRE(cache.reserve(b, 330).ok());
    CHECK(says(cache.begin(batch), {"expected 1", "got 0"}));
    REQUIRE(cache.truncate(b, 30).ok());
    REQUIRE(cache.release(b).ok());
    CHECK(cache.stats().pages_free == 10);
    return;
  }
  SECTION("batches") {
    std::vector<kvant::token_run> const twice{{a, 1}, {b, 1}, {a, 1}};
    CHECK(says(cache.begin(twice), {"once", "twice"}));
    std::vector<kvant::token_run> const second_is_gone{{a, 1}, {gone, 1}};
    CHECK(says(cache.append(second_is_gone, all), {"row 2"}));
    CHECK(says(cache.append(0, all(0)), {"begun", "none"}));
    CHECK(says(cache.append(2, all(0)), {"layer", "0 to 1", "2"}));
    CHECK(says(cache.view(-1, a).error(), {"layer", "0 to 1", "-1"}));
  }
  SECTION("rows whose making throws") {
    auto const throwing = [&](int layer) {
      if (layer == 1) throw 7;
      return all(layer);
    };
    CHECK_THROWS_AS(cache.append({a, 3}, throwing), int);
    CHECK_THROWS_AS(cache.prefill(b, 100, throwing), int);
  }
  SECTION("rows that are not there") {
    auto const null_in = [&](int bad) {
      return [&, bad](int layer) {
        auto r = all(layer);
        if (layer == bad) r.values.data = nullptr;
        return r;
      };
    };
    for (int bad : {0, 1}) {
      CHECK(says(cache.append({a, 3}, null_in(bad)), {"new rows", "null"}));
      CHECK(cache.stats().pages_used == 2 * 5);
      CHECK(says(cache.prefill(b, 100, null_in(bad)), {"new rows", "null"}));
    }
    // What layer 0 had written of 100 tokens lay where b's window held nothing.
  }
  CHECK(state(cache, {a, b}) == before);
}

TEST_CASE("a sequence whose window a failed prefill has overwritten can only be released", "[cache]") {
  auto cache = support::make_small_cache({.max_sequences = 3, .max_tokens = 900, .pool_tokens = 2000});
  position_rows const rows(cache.geometry(), 900);
  auto const a = *cache.add(), other = *cache.add();
  REQUIRE(cache.prefill(a, 400, rows.from(0)).ok());
  REQUIRE(cache.prefill(other, 150, rows.from(0)).ok());
  auto const unharmed = state(cache, {other});
  auto const free = cache.stats().pages_free;
  auto const all = rows.from(400);
  auto const throwing = [&](int layer) {
    if (layer == 1) throw 7;
    return all(layer);
  };
  auto const null_values = [&](int layer) {
    auto r = all(layer);
    if (layer == 1) r.values.data = nullptr;
    return r;
  };
  int const room = std::min(cache.group_of(0).room(a.row), cache.group_of(1).room(a.row));

  SECTION("nothing is lost while the ring has room") {
    auto const before = state(cache, {a, other});
    CHECK_THROWS_AS(cache.prefill(a, room, throwing), int);
    CHECK(says(cache.prefill(a, room, null_values), {"null"}));
    CHECK(state(cache, {a, other}) == before);
    return;
  }
  SECTION("nothing is lost before a layer is written") {
    auto const before = state(cache, {a, other});
    CHECK_THROWS_AS(cache.prefill(a, 300, [&](int layer) { return layer == 0 ? throw 7 : all(layer); }), int);
    CHECK(state(cache, {a, other}) == before);
    return;
  }
  SECTION("rows whose making throws") { CHECK_THROWS_AS(cache.prefill(a, 300, throwing), int); }
  SECTION("rows that are not there") { CHECK(says(cache.prefill(a, 300, null_values), {"null"})); }

  std::vector<std::string> const words{"sequence " + std::to_string(a.row), "whole", "released"};
  CHECK(says(cache.commit(a), words));
  CHECK(says(cache.reserve(a, 1), words));
  CHECK(says(cache.append({a, 1}, all), words));
  CHECK(says(cache.prefill(a, 1, all), words));
  CHECK(says(cache.truncate(a, 10).error(), words));
  CHECK(says(cache.fork(a).error(), words));
  CHECK(says(cache.drop(a, 64), words));
  CHECK(says(cache.view(0, a).error(), words));
  // A view of all sequences shows the pages, which are whole, and no row of the window.
  for (int layer : {0, 1}) {
    auto const view = cache.view(layer);
    CHECK(view.sequences.length[a.row] == view.sequences.history[a.row]);
  }
  CHECK(cache.stats().pages_free == free);
  REQUIRE(cache.commit().ok());
  REQUIRE(cache.release(a).ok());
  CHECK(state(cache, {other}) == unharmed);
  auto const next = *cache.add();
  CHECK(next.row == a.row);
  CHECK(cache.prefill(next, 300, rows.from(0)).ok());
}

TEST_CASE("a step that was changed in between takes no rows", "[cache]") {
  auto cache = support::make_small_cache({.max_sequences = 2});
  position_rows const rows(cache.geometry(), 100);
  auto const a = *cache.add();
  REQUIRE(cache.begin({a, 5}).ok());
  REQUIRE(cache.append(0, rows.from(0)(0)).ok());
  REQUIRE(cache.append(1, rows.from(0)(1)).ok());
  REQUIRE(cache.truncate(a, 3).ok());
  CHECK(says(cache.append(1, rows.from(0)(1)), {"begun"}));
  REQUIRE(cache.commit().ok());
  CHECK(cache.length(a) == 3);
}
