#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <kvant/attention/reference.hpp>
#include <kvant/format/policies.hpp>

#include "support/attention_fixture.hpp"
#include "support/catch.hpp"
#include "support/plain_attention.hpp"

namespace {

using kvant::attention_options;
using support::exact_cache;
using support::exact_format;
using support::queries;
using support::request;
using support::small;

std::vector<request> const batch{{.length = 5, .rows = 2, .content = 1}, {.length = 200, .history = 192, .rows = 2}};

struct setting {
  exact_cache cache{{.shape = small, .sinks = 4}, batch};
  queries q{batch, 4, small.key_dim};
  attention_options options;

  /// The message of a call, which must not have written anything.
  template <class Cache>
  std::string refusal(Cache const& from) {
    auto const came = support::attend(from, q, options);
    auto const untouched = [](std::vector<double> const& x) {
      return std::all_of(x.begin(), x.end(), [](double y) { return std::isnan(y); });
    };
    REQUIRE_FALSE(came.status.ok());
    REQUIRE(untouched(came.out));
    REQUIRE(untouched(came.log_sum_exp));
    REQUIRE(untouched(came.weights));
    return came.status.message();
  }
  std::string refusal() { return refusal(cache); }
};

}  // namespace

TEST_CASE("a call that nothing is wrong with is not refused", "[attention][refusal]") {
  setting s;
  REQUIRE(support::attend(s.cache, s.q, s.options).status.message() == "");
}

TEST_CASE("attention refuses shapes and options it cannot serve", "[attention][refusal]") {
  setting s;
  SECTION("shape") {
    s.cache.options.shape.key_dim = 24;
    REQUIRE(s.refusal() == "key_dim: expected a multiple of 16 up to 1024, got 24");
  }
  SECTION("heads") {
    s.q.view.q_heads = 3;
    REQUIRE(s.refusal() == "q_heads: expected a multiple of the 2 kv_heads, got 3");
    s.q.view.q_heads = 0;
    REQUIRE(s.refusal() == "q_heads: expected a multiple of the 2 kv_heads, got 0");
  }
  SECTION("sinks") {
    s.cache.view.side.sinks = 64;
    REQUIRE(s.refusal() == "sinks: expected 0 to 63 (less than a page), got 64");
    s.cache.view.side.sinks = -1;
    REQUIRE(s.refusal() == "sinks: expected 0 to 63 (less than a page), got -1");
  }
  SECTION("options") {
    s.options = {.softmax_scale = std::numeric_limits<double>::quiet_NaN()};
    REQUIRE(s.refusal() == "softmax_scale: expected a finite number (0: 1 / sqrt(key_dim)), got nan");
    s.options = {.soft_cap = -1};
    REQUIRE(s.refusal() == "soft_cap: expected a finite number above 0 (0: none), got -1.000000");
    s.options = {.soft_cap = std::numeric_limits<double>::infinity()};
    REQUIRE(s.refusal() == "soft_cap: expected a finite number above 0 (0: none), got inf");
    s.options = {.sliding_window = -2};
    REQUIRE(s.refusal() == "sliding_window: expected at least 1 (0: none), got -2");
  }
}

TEST_CASE("attention refuses lengths that contradict each other", "[attention][refusal]") {
  setting s;
  SECTION("length") {
    s.cache.length[1] = -1;
    REQUIRE(s.refusal() == "sequence 1: length: expected at least 0, got -1");
  }
  SECTION("history above the length") {
    s.cache.history[0] = 64;
    REQUIRE(s.refusal() == "sequence 0: history: expected 0 to the length 5, got 64");
    s.cache.history[0] = -64;
    REQUIRE(s.refusal() == "sequence 0: history: expected 0 to the length 5, got -64");
  }
  SECTION("history within a page") {
    s.cache.history[1] = 130;
    REQUIRE(s.refusal() == "sequence 1: history: expected a multiple of the page's 64 tokens, got 130");
  }
  SECTION("first") {
    s.cache.first[1] = 256;
    REQUIRE(s.refusal() == "sequence 1: first: expected 0 to the history 192, got 256");
    s.cache.first[1] = -64;
    REQUIRE(s.refusal() == "sequence 1: first: expected 0 to the history 192, got -64");
    s.cache.first[1] = 32;
    REQUIRE(s.refusal() == "sequence 1: first: expected a multiple of the page's 64 tokens, got 32");
  }
  SECTION("window") {
    s.cache.history[1] = 64;
    REQUIRE(s.refusal() == "sequence 1: window rows: expected at least 136 (length 200 - history 64), got 16");
  }
  SECTION("rows of queries") {
    s.cache.length[0] = 1;
    REQUIRE(s.refusal() == "sequence 0: query rows: expected at most 1, its tokens, got 2");
    s.options.rows = kvant::query_rows::new_chunk;
    REQUIRE(support::attend(s.cache, s.q, s.options).status.ok());
  }
  SECTION("row offsets") {
    std::vector<std::int32_t> offsets{0, 2, 1};
    s.q.view.row_offsets = offsets.data();
    REQUIRE(s.refusal() == "row_offsets[2]: expected at least 2, the offset before it, got 1");
    offsets = {-1, 2, 4};
    REQUIRE(s.refusal() == "row_offsets[0]: expected at least 0, got -1");
  }
  SECTION("count") {
    s.cache.view.sequences.count = -1;
    REQUIRE(s.refusal() == "sequences: expected a count of at least 0, got -1");
  }
}

TEST_CASE("attention refuses pages that are not there", "[attention][refusal]") {
  setting s;
  auto const entry = static_cast<std::size_t>(s.cache.view.table.row_stride + 2);  // the third page of sequence 1
  SECTION("id below the pages") {
    s.cache.ids[entry] = -7;
    REQUIRE(s.refusal() == "sequence 1: page 2: expected an id from 0 to 5, got -7");
  }
  SECTION("id above the pages") {
    s.cache.ids[entry] = 6;
    REQUIRE(s.refusal() == "sequence 1: page 2: expected an id from 0 to 5, got 6");
  }
  SECTION("a dropped page is not looked up") {
    s.cache.ids[entry - 2] = -7;
    s.cache.first[1] = 64;
    REQUIRE(support::attend(s.cache, s.q, s.options).status.message() == "");
  }
  SECTION("capacity") {
    s.cache.view.table.capacity = 2;
    REQUIRE(s.refusal() ==
            "sequence 1: block table: expected a capacity of at least 3 entries (pages of positions 0 to 191), got 2");
  }
  SECTION("stride") {
    s.cache.view.pages.head_stride = 64;
    REQUIRE(s.refusal() == "head stride of pages: expected at least 12288 bytes (a unit), got 64");
  }
}

TEST_CASE("attention refuses null pointers where it would read or write", "[attention][refusal]") {
  setting s;
  auto const null = [&](auto& pointer) {
    pointer = nullptr;
    return s.refusal();
  };
  SECTION("lengths") {
    REQUIRE(null(s.cache.view.sequences.length) ==
            "sequences: expected arrays of length and history, got a null pointer");
  }
  SECTION("histories") {
    REQUIRE(null(s.cache.view.sequences.history) ==
            "sequences: expected arrays of length and history, got a null pointer");
  }
  SECTION("queries") { REQUIRE(null(s.q.view.data) == "queries: expected rows, got a null pointer"); }
  SECTION("window") {
    REQUIRE(null(s.cache.view.window.base) == "sequence 0: window: expected memory, got a null pointer");
  }
  SECTION("sinks") {
    REQUIRE(null(s.cache.view.side.sink_rows) == "sequence 0: sinks: expected rows, got a null pointer");
  }
  SECTION("pages") {
    REQUIRE(null(s.cache.view.pages.base) == "sequence 1: pages: expected memory, got a null pointer");
  }
  SECTION("table") {
    REQUIRE(null(s.cache.view.table.ids) == "sequence 1: block table: expected page ids, got a null pointer");
  }
  SECTION("record") {
    s.cache.records[1] = -3;
    REQUIRE(s.refusal() == "sequence 1: side record: expected at least 0, got -3");
  }
  SECTION("output") {
    auto const status = kvant::reference_attention<exact_format, exact_format>(small, s.cache.view, s.q.view, {}, {});
    REQUIRE(status.message() == "output: expected memory for out, got a null pointer");
  }
  SECTION("weights") {
    std::vector<double> out(2048, -1.), weights(4096, -1.);
    auto const status = kvant::reference_attention<exact_format, exact_format>(
        small, s.cache.view, s.q.view, {}, {out.data(), nullptr, weights.data(), 199});
    REQUIRE(status.message() == "weight stride: expected at least 200, the longest length, got 199");
    REQUIRE(out == std::vector<double>(2048, -1.));
    REQUIRE(weights == std::vector<double>(4096, -1.));
  }
}

TEST_CASE("balanced keys need their factors where there are pages", "[attention][refusal]") {
  using cache_type = support::attention_cache<kvant::balanced<kvant::centered<exact_format>>, exact_format, float>;
  cache_type cache({.shape = small}, batch);
  setting s;
  cache.view.side.factors = nullptr;
  REQUIRE(s.refusal(cache) ==
          "sequence 1: balance factors: expected [kv_heads, key_dim] halves for balanced keys, got a null pointer");
  cache.first[1] = 192;
  REQUIRE(support::attend(cache, s.q, s.options).status.message() == "");
}

TEST_CASE("what is not needed may be null", "[attention]") {
  exact_cache const cache({.shape = small}, {{.length = 5, .rows = 1}});
  queries const q(cache.requests, 4, small.key_dim);
  auto const expected = support::attend(cache, q);
  kvant::layer_view<float> view;
  view.window = cache.view.window;
  view.sequences = {cache.length.data(), cache.history.data(), nullptr, nullptr, nullptr, nullptr, 1};
  std::vector<double> out(expected.out.size());
  auto const status = kvant::reference_attention<exact_format, exact_format>(small, view, q.view, {}, {out.data()});
  REQUIRE(status.message() == "");
  REQUIRE(out == expected.out);

  view = {};  // a batch of no sequences
  REQUIRE(kvant::reference_attention<exact_format, exact_format>(small, view, q.view, {}, {}).ok());
}
