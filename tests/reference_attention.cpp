#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <kvant/attention/reference.hpp>
#include <kvant/format/policies.hpp>

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

/// Sets every bit that the sinks have in the page of positions 0 to 63: their codes and the scalars of these tokens.
template <kvant::side S, class Cache>
void poison_masked_tokens(Cache& cache, int sequence, int dim, int code_bits, int scalars) {
  auto const& layout = cache.codec.layout();
  for (int h = 0; h < cache.options.shape.kv_heads; ++h) {
    std::byte* const unit = cache.view.pages.unit(cache.view.table.page(sequence, 0), h);
    for (int t = 0; t < cache.options.sinks; ++t) {
      for (int c = 0; c < dim; ++c)
        for (int k = 0; k < code_bits; ++k) {
          auto const at = layout.template code_bit<S>(t, c, k);
          unit[at.byte] |= std::byte{1} << at.bit;
        }
      for (int s = 0; s < scalars; ++s)
        std::fill_n(unit + layout.template token_scalar_byte<S>(t, s), 2, std::byte{0xff});
    }
  }
}

template <class Key, class Value, class T>
void poison_masked_tokens(support::attention_cache<Key, Value, T>& cache, int sequence) {
  using layout = kvant::page_layout<Key, Value>;
  auto const [kv_heads, key_dim, value_dim, page_tokens] = cache.options.shape;
  poison_masked_tokens<kvant::side::key>(cache, sequence, key_dim, kvant::codec_of<Key>::bits,
                                         layout::key::token_scalars(key_dim));
  poison_masked_tokens<kvant::side::value>(cache, sequence, value_dim, kvant::codec_of<Value>::bits,
                                           layout::value::token_scalars(value_dim));
}

template <class Key, class Value, class Element>
struct formats {
  using key = Key;
  using value = Value;
  using element = Element;
};
using balanced_4bit =
    formats<kvant::balanced<kvant::centered<kvant::turboquant<4>>>, kvant::turboquant<3>, kvant::half>;
using kivi_2bit = formats<kvant::kivi_key<2, 32>, kvant::kivi_value<2, 32>, kvant::bfloat16>;
using plain_half = formats<kvant::exact<kvant::half>, kvant::exact<kvant::half>, kvant::half>;

}  // namespace

TEST_CASE("every group ratio gives plain attention", "[attention]") {
  auto const ratio = GENERATE(1, 2, 3, 5, 6, 7, 8, 12, 16, 71);
  CAPTURE(ratio);
  auto shape = small;
  if (ratio == 71) shape.kv_heads = 1;
  exact_cache const cache({.shape = shape, .sinks = 4},
                          {{.length = 1}, {.length = 150, .history = 128, .rows = 2, .content = 2}});
  queries const q(cache.requests, ratio * shape.kv_heads, shape.key_dim);
  REQUIRE(difference(cache, q) < tolerance);
}

TEST_CASE("every split of a length into sinks, pages and window gives plain attention", "[attention]") {
  auto const sinks = GENERATE(0, 4, 63);
  auto const window = GENERATE(0, 16, 100);
  CAPTURE(sinks, window);
  std::vector<request> batch;
  for (int const length : {0, 1, 63, 64, 65, 191, 192, 193})
    batch.push_back(
        {.length = length, .history = history_of(length, window), .content = static_cast<std::uint64_t>(length)});
  exact_cache const cache({.shape = small, .sinks = sinks}, batch);
  queries const q(batch, 4, small.key_dim);
  REQUIRE(difference(cache, q) < tolerance);
}

TEST_CASE("dropped tokens are not visible, sinks are", "[attention]") {
  auto const sinks = GENERATE(0, 4);
  auto const first = GENERATE(64, 128, 192);
  CAPTURE(sinks, first);
  exact_cache const cache({.shape = small, .sinks = sinks},
                          {{.length = 200, .history = 192, .first = first, .rows = 2}});
  queries const q(cache.requests, 2, small.key_dim);
  REQUIRE(difference(cache, q) < tolerance);
  auto const came = support::attend(cache, q);
  for (int p = 0; p < 202; ++p)
    REQUIRE((came.weights[static_cast<std::size_t>(p)] > 0) == (p < sinks || (p >= first && p < 199)));
}

TEST_CASE("a block table is a ring of pages", "[attention]") {
  exact_cache const cache({.shape = small, .table_capacity = 3},
                          {{.length = 700, .history = 640, .first = 448, .rows = 2}});
  queries const q(cache.requests, 2, small.key_dim);
  REQUIRE(difference(cache, q) < tolerance);
}

TEST_CASE("a window that has wrapped holds the newest tokens", "[attention]") {
  auto const length = GENERATE(79, 80, 81, 300, 383);
  CAPTURE(length);
  exact_cache const cache({.shape = small, .ring_rows = 80},
                          {{.length = length, .history = history_of(length, 16), .rows = 3}});
  queries const q(cache.requests, 2, small.key_dim);
  REQUIRE(difference(cache, q) < tolerance);
}

TEST_CASE("the last rows of a sequence are causal among themselves", "[attention]") {
  auto const cached = GENERATE(0, 1, 12, 63, 64);
  auto const rows = GENERATE(1, 2, 3, 4, 5);
  CAPTURE(cached, rows);
  std::vector<request> const batch{{.length = cached + rows, .history = history_of(cached, 0), .rows = rows},
                                   {.length = 2, .rows = 2, .content = 2}};  // rows of two sequences in one call
  exact_cache const cache({.shape = small}, batch);
  queries const q(batch, 6, small.key_dim);
  REQUIRE(difference(cache, q) < tolerance);
  auto const came = support::attend(cache, q);
  for (int r = 0; r < rows; ++r) {
    auto const begin = came.weights.begin() + r * q.view.q_heads * came.weight_stride;
    REQUIRE(std::count_if(begin, begin + came.weight_stride, [](double w) { return w > 0; }) == cached + r + 1);
  }
}

TEST_CASE("rows of a new chunk see the whole cache", "[attention]") {
  auto const window = GENERATE(0, 1, 30);
  CAPTURE(window);
  std::vector<request> const batch{
      {.length = 90, .history = 64, .rows = 7}, {.length = 0, .rows = 2}, {.length = 3, .rows = 5}};
  exact_cache const cache({.shape = small, .sinks = 4}, batch);
  queries const q(batch, 4, small.key_dim);
  std::array<float, 4> const slopes{0.5f, 0.25f, 0.125f, 0.f};
  REQUIRE(
      difference(cache, q, {.sliding_window = window, .rows = query_rows::new_chunk, .alibi_slopes = slopes.data()}) <
      tolerance);
  if (window != 0) return;
  auto const came = support::attend(cache, q, {.rows = query_rows::new_chunk});
  REQUIRE(std::count_if(came.weights.begin(), came.weights.end(), [](double w) { return w > 0; }) ==
          4 * (7 * 90 + 5 * 3));
}

TEST_CASE("a sequence does not depend on its place in the batch", "[attention]") {
  std::vector<request> batch;
  for (int const length : {1, 5, 33, 0, 128})
    batch.push_back(
        {.length = length, .history = history_of(length, 20), .content = static_cast<std::uint64_t>(length)});
  auto swapped = batch;
  std::swap(swapped[1], swapped[4]);
  exact_cache const a({.shape = small, .sinks = 4}, batch), b({.shape = small, .sinks = 4}, swapped);
  auto const x = support::attend(a, queries(batch, 4, small.key_dim));
  auto const y = support::attend(b, queries(swapped, 4, small.key_dim));
  REQUIRE(x.status.ok());
  REQUIRE(y.status.ok());
  std::size_t const heads = 4, dim = 32;
  for (std::size_t i = 0; i < 5; ++i) {
    std::size_t const j = i == 1 ? 4 : i == 4 ? 1 : i;
    for (std::size_t k = 0; k < heads * dim; ++k) REQUIRE(x.out[i * heads * dim + k] == y.out[j * heads * dim + k]);
    for (std::size_t h = 0; h < heads; ++h) REQUIRE(x.log_sum_exp[i * heads + h] == y.log_sum_exp[j * heads + h]);
  }
}

TEST_CASE("padding sequences give zeros, and nothing of them is read", "[attention]") {
  exact_cache cache({.shape = small, .sinks = 4}, {{.length = 70, .history = 64, .rows = 2}, {.length = 9, .rows = 2}});
  queries const q(cache.requests, 2, small.key_dim);
  auto const before = support::attend(cache, q);
  cache.slot[1] = -1, cache.length[1] = 1 << 20, cache.history[1] = 1 << 30, cache.first[1] = 7, cache.records[1] = -9;
  auto const came = support::attend(cache, q);
  REQUIRE(came.status.message() == "");
  std::size_t const half = came.out.size() / 2;
  for (std::size_t k = 0; k < half; ++k) {
    REQUIRE(came.out[k] == before.out[k]);
    REQUIRE(came.out[half + k] == 0);
  }
  for (std::size_t k = 4; k < 8; ++k) REQUIRE(came.log_sum_exp[k] == -infinity);
}

TEMPLATE_TEST_CASE("attention over quantized pages is attention over what they decode to", "[attention]", balanced_4bit,
                   kivi_2bit, plain_half) {
  using cache_type =
      support::attention_cache<typename TestType::key, typename TestType::value, typename TestType::element>;
  kvant::page_shape const shape{.kv_heads = 2, .key_dim = 64, .value_dim = 128};
  int const window = 64;
  std::vector<request> batch{{.length = 300, .history = 256, .first = 64, .rows = 3}};
  for (int const length : {window - 1, window, window + 1, 2 * window + 3})
    batch.push_back(
        {.length = length, .history = history_of(length, 1), .rows = 2, .content = static_cast<std::uint64_t>(length)});
  cache_type const cache({.shape = shape, .sinks = 4}, batch);
  support::query_rows_of<kvant::bfloat16> const q(batch, 6, shape.key_dim);
  std::array<float, 6> const logits{0.f, 1.f, 2.f, 3.f, 4.f, 5.f};
  REQUIRE(difference(cache, q) < tolerance);
  REQUIRE(difference(cache, q, {.soft_cap = 5, .sliding_window = window, .sink_logits = logits.data()}) < tolerance);
}

TEMPLATE_TEST_CASE("bytes that hold no visible token never matter", "[attention]", balanced_4bit, kivi_2bit,
                   plain_half) {
  using cache_type =
      support::attention_cache<typename TestType::key, typename TestType::value, typename TestType::element>;
  kvant::page_shape const shape{.kv_heads = 2, .key_dim = 64, .value_dim = 64};
  std::vector<request> batch{
      {.length = 200, .history = 192, .first = 128, .rows = 3}, {.length = 0}, {.length = 65, .history = 64}};
  for (int length = 1; length <= 33; ++length)
    batch.push_back({.length = length, .content = static_cast<std::uint64_t>(length)});
  cache_type const zeros({.shape = shape, .sinks = 4, .fill = std::byte{0}}, batch);
  cache_type poisoned({.shape = shape, .sinks = 4, .fill = std::byte{0xff}}, batch);
  poison_masked_tokens(poisoned, 2);
  support::query_rows_of<kvant::half> const q(batch, 4, shape.key_dim);
  auto const a = support::attend(zeros, q), b = support::attend(poisoned, q);
  REQUIRE(a.status.message() == "");
  REQUIRE(std::none_of(a.out.begin(), a.out.end(), [](double x) { return std::isnan(x); }));
  REQUIRE(a.out == b.out);
  REQUIRE(a.log_sum_exp == b.log_sum_exp);
  REQUIRE(a.weights == b.weights);
}

TEST_CASE("other values change the output and nothing else", "[attention]") {
  auto const dim = GENERATE(16, 512, 576);
  CAPTURE(dim);
  kvant::page_shape const shape{.kv_heads = 1, .key_dim = dim, .value_dim = dim};
  std::vector<request> const batch{{.length = 70, .history = 64}};
  exact_cache const a({.shape = shape, .sinks = 4}, batch), b({.shape = shape, .sinks = 4, .value_seed = 3}, batch);
  queries const q(batch, 2, dim);
  REQUIRE(difference(a, q) < tolerance);
  REQUIRE(difference(b, q) < tolerance);
  auto const x = support::attend(a, q), y = support::attend(b, q);
  REQUIRE(x.weights == y.weights);
  REQUIRE(x.log_sum_exp == y.log_sum_exp);
  for (std::size_t c = 0; c < x.out.size(); ++c) REQUIRE(x.out[c] != y.out[c]);
}
