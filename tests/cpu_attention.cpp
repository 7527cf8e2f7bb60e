#include <kvant/attention/cpu_attention.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include <kvant/plan/layer.hpp>

#include "support/attention_fixture.hpp"
#include "support/catch.hpp"

namespace {

using kvant::attention_options;
using kvant::bfloat16;
using kvant::half;
using support::history_of;
using support::request;

constexpr float infinity = std::numeric_limits<float>::infinity();

/// What cpu_attention wrote; all NaN before.
struct result {
  kvant::status status;
  std::vector<float> out, log_sum_exp;
};

template <class K, class V, class T, class Q, class Executor = kvant::calling_thread>
result on_cpu(support::attention_cache<K, V, T> const& cache, support::query_rows_of<Q> const& queries,
              attention_options const& options = {}, Executor execute = {}, std::int64_t span = 4096) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  auto const places = static_cast<std::size_t>(queries.rows() * queries.view.q_heads);
  result r{{},
           std::vector<float>(places * static_cast<std::size_t>(cache.options.shape.value_dim), nan),
           std::vector<float>(places, nan)};
  r.status = kvant::cpu_attention<K, V>(cache.options.shape, cache.view, queries.view, options,
                                        {r.out.data(), r.log_sum_exp.data()}, execute, span);
  return r;
}

/// The largest error of a row and head beside its largest value, and of a log-sum-exp beside 1 or its size.
template <class K, class V, class T, class Q>
double difference(support::attention_cache<K, V, T> const& cache, support::query_rows_of<Q> const& queries,
                  attention_options const& options = {}, std::int64_t span = 4096) {
  auto const expected = support::attend(cache, queries, options);
  auto const came = on_cpu(cache, queries, options, kvant::calling_thread{}, span);
  REQUIRE(expected.status.message() == "");
  REQUIRE(came.status.message() == "");
  auto const dim = static_cast<std::size_t>(cache.options.shape.value_dim);
  double worst = 0;
  for (std::size_t place = 0; place < expected.log_sum_exp.size(); ++place) {
    double largest = 0, error = 0;
    for (std::size_t c = place * dim; c < (place + 1) * dim; ++c) {
      largest = std::max(largest, std::abs(expected.out[c]));
      double const e = std::abs(expected.out[c] - static_cast<double>(came.out[c]));
      error = std::isnan(e) ? infinity : std::max(error, e);
    }
    if (error > 0) worst = std::max(worst, error / largest);
    double const lse = expected.log_sum_exp[place];
    auto const got = static_cast<double>(came.log_sum_exp[place]);
    if (lse != got) worst = std::max(worst, std::abs(lse - got) / std::max(1.0, std::abs(lse)));
    if (std::isnan(got)) worst = infinity;
  }
  return worst;
}

template <class Layer, class T = half>
using cache_of = support::attention_cache<typename Layer::key, typename Layer::value, T>;

std::vector<request> lengths(int window) {
  std::vector<request> batch;
  for (int const length : {0, 1, 63, 64, 65, 191, 192, 193, 450})
    batch.push_back({.length = length,
                     .history = history_of(length, window, 128),
                     .rows = length == 0 ? 1 : std::min(length, 3),
                     .content = static_cast<std::uint64_t>(length + 1)});
  return batch;
}

constexpr double tolerance = 1e-5;

/// Tasks by as many threads as a test asks for, each taking the next one.
struct threads {
  int count;
  template <class Task>
  void operator()(std::int64_t tasks, Task&& task) const {
    std::atomic<std::int64_t> next{0};
    std::vector<std::thread> running;
    for (int i = 0; i < count; ++i)
      running.emplace_back([&] {
        for (std::int64_t t = next++; t < tasks; t = next++) task(t);
      });
    for (std::thread& t : running) t.join();
  }
};
static_assert(kvant::executor<kvant::calling_thread> && kvant::executor<threads>);

using affine_keys = kvant::layer<kvant::kivi_value<2, 32>, kvant::kivi_key<2, 32>>;  // groups the other way round
using eight_bit = kvant::layer<kvant::kivi_key<8, 32>, kvant::kivi_value<8, 32>>;
using rotated_exact = kvant::layer<
    kvant::format<kvant::term<kvant::randomized_hadamard<>, kvant::per_token<>, kvant::exact_codec<float>>>,
    kvant::turboquant<2>>;

}  // namespace

TEMPLATE_TEST_CASE("attention on the CPU equals the double reference", "[cpu_attention]", kvant::turboquant_4bit,
                   kvant::turboquant_3bit, kvant::turboquant_2bit, kvant::turboquant_1bit, kvant::k4v2,
                   kvant::plain_turboquant_4bit, kvant::plain_turboquant_3bit, kvant::kivi_2bit, kvant::kivi_2bit_g64,
                   kvant::kivi_4bit, kvant::bonsai_1bit, kvant::bonsai_1bit_rotated, kvant::exact_layer, affine_keys,
                   eight_bit, rotated_exact) {
  auto const batch = lengths(16);
  auto const dims = GENERATE(std::array{64, 128}, std::array{128, 64}, std::array{256, 256});
  CAPTURE(dims);
  cache_of<TestType> const cache(
      {.shape = {.kv_heads = 2, .key_dim = dims[0], .value_dim = dims[1], .page_tokens = 128}, .sinks = 4}, batch);
  support::query_rows_of<half> const q(batch, 8, dims[0]);
  CHECK(difference(cache, q) < tolerance);
}

TEMPLATE_TEST_CASE("every option, ratio and element on the CPU", "[cpu_attention]", kvant::turboquant_4bit,
                   kvant::kivi_2bit) {
  auto const ratio = GENERATE(1, 2, 3, 7, 16, 24);
  CAPTURE(ratio);
  std::vector<request> const batch{{.length = 450, .history = 384, .first = 128, .rows = 3},
                                   {.length = 0, .rows = 2, .content = 2},
                                   {.length = 90, .history = 64, .rows = 2, .content = 3}};
  kvant::page_shape const shape{.kv_heads = 2, .key_dim = 64, .value_dim = 128};
  cache_of<TestType, bfloat16> const cache({.shape = shape, .sinks = 4}, batch);
  support::query_rows_of<float> const q(batch, 2 * ratio, shape.key_dim);
  std::vector<float> sink(static_cast<std::size_t>(2 * ratio)), slope(sink.size());
  for (std::size_t i = 0; i < sink.size(); ++i) {
    sink[i] = i % 3 == 0 ? -infinity : static_cast<float>(i) - 4.f;
    slope[i] = 1.f / static_cast<float>(i + 2);
  }
  CHECK(difference(cache, q) < tolerance);
  CHECK(difference(cache, q, {.softmax_scale = 0.3}) < tolerance);
  CHECK(difference(cache, q, {.soft_cap = 5}) < tolerance);
  CHECK(difference(cache, q, {.sink_logits = sink.data()}) < tolerance);
  CHECK(difference(cache, q, {.alibi_slopes = slope.data()}) < tolerance);
  auto const rows = GENERATE(kvant::query_rows::causal_tail, kvant::query_rows::new_chunk);
  for (int const window : {1, 2, 17, 64, 100, 300}) {
    CAPTURE(window);
    CHECK(difference(cache, q, {.sliding_window = window, .rows = rows}) < tolerance);
    CHECK(difference(cache, q,
                     {.soft_cap = 8,
                      .sliding_window = window,
                      .rows = rows,
                      .sink_logits = sink.data(),
                      .alibi_slopes = slope.data()},
                     64) < tolerance);
  }
}

TEST_CASE("a chunk of many rows over the whole cache", "[cpu_attention]") {
  auto const rows = GENERATE(kvant::query_rows::causal_tail, kvant::query_rows::new_chunk);
  std::vector<request> const batch{{.length = 300, .history = 192, .rows = 150}};
  cache_of<kvant::turboquant_4bit> const cache({.shape = {.kv_heads = 1, .key_dim = 128, .value_dim = 128}, .sinks = 4},
                                               batch);
  support::query_rows_of<half> const q(batch, 3, 128);
  CHECK(difference(cache, q, {.rows = rows}, 128) < tolerance);
}

TEST_CASE("spans and threads change nothing but the rounding of the merge", "[cpu_attention]") {
  std::vector<request> const batch{{.length = 3000, .history = 2816, .rows = 2},
                                   {.length = 70, .history = 0, .content = 5}};
  cache_of<kvant::turboquant_3bit> const cache({.shape = {.kv_heads = 2, .key_dim = 128, .value_dim = 64}, .sinks = 4},
                                               batch);
  support::query_rows_of<half> const q(batch, 4, 128);
  for (std::int64_t const span : {1, 64, 1000, 4096}) {
    CAPTURE(span);
    CHECK(difference(cache, q, {}, span) < tolerance);
    auto const alone = on_cpu(cache, q, {}, kvant::calling_thread{}, span);
    auto const together = on_cpu(cache, q, {}, threads{3}, span);
    CHECK(alone.out == together.out);
    CHECK(alone.log_sum_exp == together.log_sum_exp);
  }
}

TEST_CASE("keys with a large constant vector, values of every size, on the CPU", "[cpu_attention]") {
  std::vector<request> const batch{{.length = 500, .history = 448, .rows = 2}};
  for (float const size : {1e-4f, 1.f, 1e4f}) {
    CAPTURE(size);
    cache_of<kvant::turboquant_4bit, float> const cache(
        {.shape = {.kv_heads = 2, .key_dim = 128, .value_dim = 128}, .sinks = 4, .value_scale = size}, batch);
    CHECK(difference(cache, support::query_rows_of<half>(batch, 8, 128)) < tolerance);
  }
  // Logits of some hundred: each is rounded to 24 bits, which moves probabilities by as much as it moves itself.
  cache_of<kvant::turboquant_4bit, float> const cache(
      {.shape = {.kv_heads = 2, .key_dim = 128, .value_dim = 128}, .sinks = 4, .key_bias = 600}, batch);
  CHECK(difference(cache, support::query_rows_of<half>(batch, 8, 128)) < 2e-3);
}

TEMPLATE_TEST_CASE("what no row sees never matters, what one sees and another does not only to the one",
                   "[cpu_attention]", kvant::turboquant_4bit, kvant::kivi_2bit, kvant::bonsai_1bit) {
  std::vector<request> batch{{.length = 300, .history = 256, .rows = 2}, {.length = 129, .history = 128, .content = 2}};
  kvant::page_shape const shape{.kv_heads = 2, .key_dim = 128, .value_dim = 128, .page_tokens = 128};
  cache_of<TestType> const zeros({.shape = shape, .sinks = 4, .fill = std::byte{0}}, batch);
  cache_of<TestType> const poisoned({.shape = shape, .sinks = 4, .fill = std::byte{0xff}}, batch);
  support::query_rows_of<half> const q(batch, 4, shape.key_dim);
  auto const a = on_cpu(zeros, q), b = on_cpu(poisoned, q);
  CHECK(a.out == b.out);
  CHECK(a.log_sum_exp == b.log_sum_exp);
  CHECK(std::none_of(a.out.begin(), a.out.end(), [](float x) { return std::isnan(x); }));

  // The newest token, which only the second of the two rows sees.
  for (int h = 0; h < 2; ++h)
    for (int c = 0; c < 128; ++c)
      poisoned.view.window.row(poisoned.slot[0], kvant::side::value, h, 299)[c] = half::from_bits(0x7e00);
  auto const with_nan = on_cpu(poisoned, q);
  std::size_t const row = 4 * 128;
  CHECK(std::equal(a.out.begin(), a.out.begin() + row, with_nan.out.begin()));
  CHECK(std::all_of(with_nan.out.begin() + row, with_nan.out.begin() + 2 * row, [](float x) { return std::isnan(x); }));
}

TEST_CASE("attention on the CPU refuses what it cannot do, and writes nothing", "[cpu_attention]") {
  std::vector<request> const batch{{.length = 100, .history = 64}};
  cache_of<kvant::turboquant_4bit> cache({.shape = {.kv_heads = 2, .key_dim = 64, .value_dim = 64}, .sinks = 4}, batch);
  support::query_rows_of<half> q(batch, 4, 64);
  auto const refused = [&](attention_options const& options, std::string const& what, std::int64_t span = 4096) {
    auto const came = on_cpu(cache, q, options, kvant::calling_thread{}, span);
    INFO(came.status.message());
    CHECK(!came.status.ok());
    CHECK(came.status.message().find(what) != std::string::npos);
    CHECK(std::all_of(came.out.begin(), came.out.end(), [](float x) { return std::isnan(x); }));
  };
  refused({.soft_cap = -1}, "soft_cap: expected");
  refused({}, "span_tokens: expected at least 1, got 0", 0);
  q.view.q_heads = 3;
  refused({}, "q_heads: expected a multiple of the 2 kv_heads, got 3");
  q.view.q_heads = 4;
  cache.ids[0] = 1 << 20;
  refused({}, "page 0: expected an id from 0 to");
}

TEST_CASE("exp2 of what softmax asks for", "[cpu_attention]") {
  double worst = 0;
  for (int i = 0; i <= 124000; ++i) {
    float const x = -static_cast<float>(i) * 1e-3f;
    double const expected = std::exp2(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(kvant::simd::exp2_negative(x)) / expected - 1));
  }
  CHECK(worst < 2.5e-7);
  CHECK(kvant::simd::exp2_negative(0.f) == 1.f);
  CHECK(kvant::simd::exp2_negative(-127.f) == 0.f);
  CHECK(kvant::simd::exp2_negative(-infinity) == 0.f);
  CHECK(std::isnan(kvant::simd::exp2_negative(std::numeric_limits<float>::quiet_NaN())));
}
