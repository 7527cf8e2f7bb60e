#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include <kvant/cache/kv_cache.hpp>

#include "support/catch.hpp"

namespace {

/// What the calls since the last reset would have moved, in tokens.
struct moved {
  std::int64_t appended = 0, quantized = 0, restored = 0, window_rows = 0, sink_rows = 0, calls = 0;
} total;

/// A back end without bytes, as one of a device would stand there: the bookkeeping above it is the same.
class counting_backend {
 public:
  using half = kvant::half;
  using status = kvant::status;
  static kvant::result<counting_backend> create(kvant::cache_geometry const& geometry, std::pmr::memory_resource*) {
    counting_backend b;
    b.geometry_ = geometry;
    return b;
  }
  kvant::layer_view<half> view(int layer) const {
    kvant::layer_view<half> v;
    v.window.rows = geometry_.group_of(static_cast<std::size_t>(layer)).ring_rows;
    return v;
  }
  kvant::group_tables publish(std::int32_t, kvant::group_tables const& tables, std::int32_t) { return tables; }
  template <kvant::element T>
  status append(int, kvant::layer_view<half> const& v, kvant::new_rows_view<T> const& rows) {
    return count(total.appended, rows.row_offsets[v.sequences.count]);
  }
  status commit(int layer, kvant::layer_view<half> const& v, std::int32_t window_tokens) {
    return count(total.quantized, pages(layer, v, window_tokens));
  }
  template <kvant::element T>
  status prefill(int layer, kvant::layer_view<half> const& v, kvant::new_rows_view<T> const& rows,
                 std::int32_t window) {
    total.appended += rows.row_offsets[1];
    return count(total.quantized, pages(layer, v, window));
  }
  status restore(int, kvant::layer_view<half> const&, std::int32_t, std::int32_t begin, std::int32_t end) {
    return count(total.restored, end - begin);
  }
  status copy_window(int, std::int32_t, std::int32_t, std::int32_t begin, std::int32_t end) {
    return count(total.window_rows, end - begin);
  }
  status copy_sinks(int, std::int32_t, std::int32_t, std::int32_t rows) { return count(total.sink_rows, rows); }
  kvant::cache_memory memory() const { return {}; }
  std::int64_t not_finite() const { return 0; }
  static constexpr std::string_view path() { return "none"; }

 private:
  status count(std::int64_t& what, std::int64_t tokens) {
    what += tokens, ++total.calls;
    return {};
  }
  std::int64_t pages(int layer, kvant::layer_view<half> const& v, std::int32_t window) const {
    std::int32_t const p = geometry_.group_of(static_cast<std::size_t>(layer)).page_tokens;
    std::int64_t sum = 0;
    for (std::int32_t i = 0; i < v.sequences.count; ++i)
      if (v.sequences.slot_of(i) >= 0)
        sum += kvant::history_after_commit(v.sequences.history[i], v.sequences.length[i], window, p) -
               v.sequences.history[i];
    return sum;
  }
  kvant::cache_geometry geometry_;
};

using one_layer = kvant::plan<kvant::turboquant_3bit>;
using cache_type = kvant::kv_cache<one_layer, kvant::half, counting_backend>;

cache_type make(std::int32_t max_tokens, std::int32_t sequences) {
  kvant::layer_options const layer{{8, 128, 128, 0}, 0};
  kvant::cache_options o;
  o.layers = {&layer, 1}, o.max_tokens = max_tokens, o.max_sequences = sequences;
  return *cache_type::create(o);
}
auto const no_rows = [](int) { return kvant::layer_rows<kvant::half>{}; };

/// The fastest of many runs.
template <class F>
double seconds(F const& f) {
  double best = 1;
  for (int i = 0; i < 200; ++i) {
    auto const begin = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

}  // namespace

TEST_CASE("a fork moves the window, and nothing that grows with the sequence", "[cache]") {
  auto cache = make(1 << 21, 3);
  auto const id = *cache.add();
  for (int const tokens : {3, 1000, 1000000}) {
    CAPTURE(tokens);
    REQUIRE(cache.truncate(id, 0).ok());
    REQUIRE(cache.prefill(id, tokens, no_rows).ok());
    int const exact = cache.length(id) - cache.history(id, 0);
    total = {};
    auto const child = *cache.fork(id);
    CHECK(total.window_rows == exact);
    CHECK(total.sink_rows == (tokens < 128 ? std::min(tokens, 4) : 0));  // shared with page 0
    CHECK(total.restored + total.quantized + total.appended == 0);
    CHECK(cache.stats().pages_used == cache.history(id, 0) / 64);

    total = {};
    REQUIRE(cache.append({child, 5}, no_rows).ok());
    REQUIRE(cache.commit(child).ok());
    REQUIRE(cache.truncate(child, std::max(0, tokens - 70)).ok());
    CHECK(total.appended == 5);
    CHECK(total.quantized <= 64);
    CHECK(total.restored <= 63);
    REQUIRE(cache.release(child).ok());
    CHECK(cache.stats().pages_used == cache.history(id, 0) / 64);
  }
}

TEST_CASE("a step takes no longer in a long sequence, nor beside many", "[cache]") {
  auto small = make(1 << 21, 16), large = make(1 << 21, 1000);
  auto const step_time = [](cache_type& cache, int tokens) {
    auto const id = *cache.add();
    REQUIRE(cache.prefill(id, tokens, no_rows).ok());
    double const best = seconds([&] {
      for (int i = 0; i < 64; ++i) {
        (void)cache.append({id, 2}, no_rows);
        (void)cache.truncate(id, cache.length(id) - 1);
        (void)cache.commit(id);
        (void)cache.view(0, id);
      }
    });
    REQUIRE(cache.length(id) == tokens + 200 * 64);
    REQUIRE(cache.history(id, 0) == (cache.length(id) - 128) / 64 * 64);
    return best;
  };
  for (int i = 0; i < 900; ++i) REQUIRE(large.prefill(*large.add(), 1000, no_rows).ok());
  double const in_short = step_time(small, 1000), in_long = step_time(small, 1000000), beside = step_time(large, 1000);
  CAPTURE(in_short, in_long, beside);
  CHECK(in_long < 4 * in_short);
  CHECK(beside < 4 * in_short);
}
