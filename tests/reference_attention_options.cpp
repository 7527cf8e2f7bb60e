#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <kvant/attention/merge.hpp>
#include <kvant/attention/reference.hpp>

#include "support/attention_fixture.hpp"
#include "support/catch.hpp"
#include "support/plain_attention.hpp"

namespace {

using kvant::attention_options;
using kvant::query_rows;
using support::difference;
using support::exact_cache;
using support::history_of;
using support::queries;
using support::request;
using support::small;
using support::tolerance;

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("scale, soft cap and ALiBi apply in this order", "[attention]") {
  auto const scale = GENERATE(0., 0.05, 1., 2.);
  auto const cap = GENERATE(0., 0.5, 20.);
  CAPTURE(scale, cap);
  exact_cache const cache({.shape = small, .sinks = 4}, {{.length = 150, .history = 128, .rows = 2}});
  queries const q(cache.requests, 4, small.key_dim);
  std::array<float, 4> const slopes{0.5f, 0.25f, 0.125f, 0.f};
  attention_options options{.softmax_scale = scale, .soft_cap = cap};
  REQUIRE(difference(cache, q, options) < tolerance);
  options.alibi_slopes = slopes.data();
  REQUIRE(difference(cache, q, options) < tolerance);
  // one token at distance 1: the bias is outside the cap
  exact_cache const one({.shape = small}, {{.length = 1}});
  queries const ask(one.requests, 4, small.key_dim);
  options.rows = query_rows::new_chunk;
  double const with = support::attend(one, ask, options).log_sum_exp[0];
  options.alibi_slopes = nullptr;
  REQUIRE(std::abs(with - support::attend(one, ask, options).log_sum_exp[0] + 0.5) < 1e-12);
}

TEST_CASE("a sliding window hides keys, never rows", "[attention]") {
  auto const window = GENERATE(1, 8, 64);
  CAPTURE(window);
  std::vector<request> batch{{.length = 20, .rows = 20}};
  for (int const length : {window - 1, window, window + 1, 2 * window + 3})
    batch.push_back({.length = length, .history = history_of(length, 16), .rows = std::min(length, 2)});
  exact_cache const cache({.shape = small, .sinks = 4}, batch);
  queries const q(batch, 2, small.key_dim);
  REQUIRE(difference(cache, q, {.sliding_window = window}) < tolerance);
  auto const came = support::attend(cache, q, {.sliding_window = window});
  REQUIRE(std::none_of(came.out.begin(), came.out.end(), [](double x) { return std::isnan(x); }));
  for (int r = 0; r < 20; ++r) {
    auto const begin = came.weights.begin() + r * 2 * came.weight_stride;
    REQUIRE(std::count_if(begin, begin + came.weight_stride, [](double w) { return w > 0; }) ==
            std::min(window, r + 1));
  }
}

TEST_CASE("a sink logit takes part in the denominator alone", "[attention]") {
  exact_cache cache({.shape = small, .sinks = 4}, {{.length = 130, .history = 128, .rows = 2}, {.length = 0}});
  queries const q(cache.requests, 4, small.key_dim);
  std::array<float, 4> const logits{0.f, 3.f, -40.f, -std::numeric_limits<float>::infinity()};
  REQUIRE(difference(cache, q, {.sink_logits = logits.data()}) < tolerance);
  auto const with = support::attend(cache, q, {.sink_logits = logits.data()}), without = support::attend(cache, q);
  std::size_t const dim = 32, last_head = 3;
  for (std::size_t c = 0; c < dim; ++c) REQUIRE(with.out[last_head * dim + c] == without.out[last_head * dim + c]);
  REQUIRE(with.log_sum_exp[last_head] == without.log_sum_exp[last_head]);
  for (std::size_t h = 0; h < 4; ++h) {  // the sequence of no tokens: its third row of heads
    REQUIRE(with.log_sum_exp[8 + h] == static_cast<double>(logits[h]));
    REQUIRE(without.log_sum_exp[8 + h] == -infinity);
    for (std::size_t c = 0; c < dim; ++c) REQUIRE(with.out[(8 + h) * dim + c] == 0);
  }
}

TEST_CASE("one token of logit 0 beside a sink logit of 0 gives half of its value", "[attention]") {
  exact_cache cache({.shape = small}, {{.length = 1}});
  for (int h = 0; h < small.kv_heads; ++h)
    std::fill_n(cache.view.window.row(0, kvant::side::key, h, 0), small.key_dim, 0.f);
  queries const q(cache.requests, 2, small.key_dim);
  std::array<float, 2> const logits{0.f, 0.f};
  auto const came = support::attend(cache, q, {.sink_logits = logits.data()});
  for (int h = 0; h < 2; ++h)
    for (int c = 0; c < small.value_dim; ++c)
      REQUIRE(came.out[static_cast<std::size_t>(h * small.value_dim + c)] == cache.value(0, 0, h, c) / 2);
  REQUIRE(std::abs(came.log_sum_exp[0] - std::log(2.)) < 1e-15);
}

TEST_CASE("a position base changes nothing", "[attention]") {
  exact_cache cache({.shape = small}, {{.length = 70, .history = 64, .rows = 2}});
  queries const q(cache.requests, 2, small.key_dim);
  std::array<float, 2> const slopes{0.5f, 0.25f};
  attention_options const options{.sliding_window = 40, .alibi_slopes = slopes.data()};
  auto const before = support::attend(cache, q, options);
  std::int32_t const base = 100000;
  cache.view.sequences.position_base = &base;
  REQUIRE(support::attend(cache, q, options).out == before.out);
}

TEST_CASE("tokens that a row may not see never matter", "[attention]") {
  float const nan = std::numeric_limits<float>::quiet_NaN();
  exact_cache cache({.shape = small}, {{.length = 40, .rows = 2}});
  queries const q(cache.requests, 2, small.key_dim);
  attention_options const options{.sliding_window = 8};
  auto const before = support::attend(cache, q, options);
  for (auto const s : {kvant::side::key, kvant::side::value})
    for (int const position : {10, 39})
      cache.view.window.row(0, s, 0, position)[3] = nan;  // behind the window; the last
  auto const came = support::attend(cache, q, options);
  std::size_t const dim = 32;
  for (std::size_t c = 0; c < 2 * dim; ++c) REQUIRE(came.out[c] == before.out[c]);   // row 0 sees neither
  for (std::size_t c = 2 * dim; c < 3 * dim; ++c) REQUIRE(std::isnan(came.out[c]));  // row 1, head 0 sees the last
  for (std::size_t c = 3 * dim; c < 4 * dim; ++c) REQUIRE(came.out[c] == before.out[c]);
}

TEST_CASE("merged parts of a sequence are the whole", "[attention]") {
  kvant::page_shape const shape{.kv_heads = 2, .key_dim = 16, .value_dim = 32};
  exact_cache cache({.shape = shape}, {{.length = 200, .history = 192, .rows = 3}});
  queries const q(cache.requests, 4, shape.key_dim);
  attention_options const chunk{.rows = query_rows::new_chunk};
  auto const whole = support::attend(cache, q, chunk);

  auto parts = support::attend(cache, q, chunk);  // as memory for the result: an empty state with a stale output
  std::fill(parts.log_sum_exp.begin(), parts.log_sum_exp.end(), -infinity);
  std::fill(parts.out.begin(), parts.out.end(), std::numeric_limits<double>::quiet_NaN());
  for (std::int32_t const cut : {0, 64, 128, 192}) {  // pages [cut, cut + 64), at last the window
    cache.first[0] = cut, cache.history[0] = std::min(192, cut + 64), cache.length[0] = cut == 192 ? 200 : cut + 64;
    auto const part = support::attend(cache, q, chunk);
    REQUIRE(part.status.message() == "");
    kvant::merge_states(parts.out.data(), parts.log_sum_exp.data(), part.out.data(), part.log_sum_exp.data(),
                        std::int64_t{12}, 32);
  }
  for (std::size_t k = 0; k < whole.out.size(); ++k) REQUIRE(std::abs(parts.out[k] - whole.out[k]) < tolerance);
  for (std::size_t k = 0; k < 12; ++k) REQUIRE(std::abs(parts.log_sum_exp[k] - whole.log_sum_exp[k]) < tolerance);
}

TEMPLATE_TEST_CASE("three tokens in eight parts are three tokens", "[attention][merge]", float, double) {
  std::array<double, 3> const logits{700, -3, 699}, values{1, -2, 5};
  TestType constexpr nan = std::numeric_limits<TestType>::quiet_NaN();
  TestType constexpr none = -std::numeric_limits<TestType>::infinity();
  std::vector<int> order{0, 1, 2, 3, 4, 5, 6, 7};
  auto const expected = (std::exp(1.) * 1 + std::exp(-702.) * -2 + 5) / (std::exp(1.) + std::exp(-702.) + 1);
  for (int turn = 0; turn < 8; ++turn, std::rotate(order.begin(), order.begin() + 1, order.end())) {
    CAPTURE(turn);
    TestType out = nan, lse = none;
    for (int const part : order) {
      auto const p = static_cast<std::size_t>(part);
      TestType const other = part < 3 ? static_cast<TestType>(values[p]) : nan;  // an empty part's output is stale
      TestType const other_lse = part < 3 ? static_cast<TestType>(logits[p]) : none;
      kvant::merge_states(&out, &lse, &other, &other_lse, 1, 1);
    }
    double const enough = std::is_same_v<TestType, float> ? 1e-4 : 1e-12;
    REQUIRE(std::abs(static_cast<double>(out) - expected) < enough);
    REQUIRE(std::abs(static_cast<double>(lse) - (699 + std::log(std::exp(1.) + 1))) < enough);
  }
  TestType empty_out[2] = {nan, nan}, empty = none, other_out[2] = {nan, nan};
  kvant::merge_states(empty_out, &empty, other_out, &empty, 1, 2);
  REQUIRE(empty == none);
  REQUIRE(empty_out[0] == 0);
  REQUIRE(empty_out[1] == 0);
}
