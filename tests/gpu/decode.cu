#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <kvant/attention/reference.hpp>
#include <kvant/decode.cuh>
#include <kvant/plan/layer.hpp>

#include "gpu/device.cuh"
#include "support/attention_fixture.hpp"
#include "support/catch.hpp"

namespace {

using kvant::half;
using support::request;

constexpr int dim = 128;
constexpr std::uint64_t at(int i) { return static_cast<std::uint64_t>(i); }
bool const has_device = gpu::exit_without_device();  // before any test

template <class K, class V>
struct pair {
  using key = K;
  using value = V;
};

/// The largest relative error of a row and head against the double reference on the same bytes.
struct errors {
  double out = 0, log_sum_exp = 0;
};

template <class Pair>
errors decode_errors(support::attention_cache<typename Pair::key, typename Pair::value, half>& cache, int ratio,
                     bool captured, float query_size = 1.f, std::uint64_t seed = 5) {
  using K = typename Pair::key;
  using V = typename Pair::value;
  int const heads = cache.options.shape.kv_heads, q_heads = heads * ratio, n = cache.count();
  std::vector<std::int32_t> offsets{0};
  int longest = 1;
  for (request const& r : cache.requests)
    offsets.push_back(offsets.back() + r.rows), longest = std::max(longest, r.length);
  std::size_t const rows = static_cast<std::size_t>(offsets.back()), row = static_cast<std::size_t>(q_heads) * dim;
  std::vector<half> q(rows * row);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = half{query_size * support::noise(seed, i, 1, 2)};
  kvant::queries_view<half> queries{q.data(), static_cast<std::int64_t>(row), dim, offsets.data(), q_heads};
  for (request const& r : cache.requests) queries.max_rows = std::max(queries.max_rows, r.rows);

  std::vector<double> expected(rows * row), expected_lse(rows * static_cast<std::size_t>(q_heads));
  auto const s = kvant::reference_attention<K, V>(cache.options.shape, cache.view, queries, {},
                                                  {expected.data(), expected_lse.data(), nullptr, 0});
  INFO(s.message());
  REQUIRE(s.ok());

  gpu::mirror<half> device(cache);
  gpu::buffer<half> device_q(q);
  gpu::buffer<std::int32_t> device_offsets(offsets);
  gpu::buffer<float> out(rows * row), lse(rows * static_cast<std::size_t>(q_heads));
  out.fill(0xff), lse.fill(0xff);
  queries.data = device_q.get(), queries.row_offsets = device_offsets.get();
  int const ctas = gpu::multiprocessors();
  gpu::buffer<std::byte> workspace(kvant::decode_plan::workspace_bytes(n, heads, dim, ctas));
  workspace.fill(0);
  auto const plan = kvant::decode_plan::in(workspace.get(), n, heads, dim, ctas);
  gpu::run(captured, [&](cudaStream_t stream) {
    REQUIRE(kvant::make_decode_plan_async<K, V, dim>(plan, device.view.sequences, cache.options.sinks, stream) ==
            cudaSuccess);
    REQUIRE(kvant::decode_attention_async<K, V, dim>(device.view, queries, heads, kvant::attention_options{},
                                                     kvant::decode_output<float>{out.get(), lse.get()}, plan,
                                                     stream) == cudaSuccess);
  });
  auto const got = out.host(), got_lse = lse.host();
  errors e;
  for (std::size_t i = 0; i < rows * static_cast<std::size_t>(q_heads); ++i) {
    double difference = 0, norm = 0;
    for (std::size_t c = 0; c < dim; ++c) {
      double const x = expected[i * dim + c], y = static_cast<double>(got[i * dim + c]);
      difference += (x - y) * (x - y), norm += x * x;
    }
    bool const empty = norm == 0;
    double const error = empty ? std::sqrt(difference) : std::sqrt(difference / norm);
    e.out = std::max(e.out, std::isnan(error) ? 1e9 : error);
    double const lse_error = expected_lse[i] == static_cast<double>(got_lse[i])
                                 ? 0
                                 : std::abs(expected_lse[i] - static_cast<double>(got_lse[i]));
    e.log_sum_exp = std::max(e.log_sum_exp, std::isnan(lse_error) ? 1e9 : lse_error);
  }
  return e;
}

using c4 = kvant::turboquant_key<4>;
using c3 = kvant::turboquant_key<3>;
template <int B>
using tq = kvant::turboquant<B>;

}  // namespace

TEMPLATE_TEST_CASE("decode attention equals the double reference", "[gpu][decode]", (pair<tq<4>, tq<4>>),
                   (pair<tq<3>, tq<3>>), (pair<tq<4>, tq<3>>), (pair<tq<3>, tq<4>>),
                   (pair<kvant::centered<tq<4>>, tq<4>>), (pair<c4, tq<4>>), (pair<c3, tq<3>>), (pair<c4, tq<3>>),
                   (pair<c3, tq<4>>)) {
  auto const captured = GENERATE(false, true);
  auto const ratio = GENERATE(1, 2, 3, 4, 5, 7, 8);
  std::vector<request> batch;
  for (int length : {0, 1, 63, 64, 65, 191, 192, 193, 260, 4097, 777})
    batch.push_back({length, support::history_of(length, 128), 0, 1, static_cast<std::uint64_t>(length)});
  support::attention_cache<typename TestType::key, typename TestType::value, half> cache(
      {.shape = {2, dim, dim, 64}, .sinks = 4}, batch);
  auto const e = decode_errors<TestType>(cache, ratio, captured);
  CAPTURE(captured, ratio);
  CHECK(e.out <= 1e-3);
  CHECK(e.log_sum_exp <= 1e-3);
}

TEMPLATE_TEST_CASE("rows of a draft are causal among themselves", "[gpu][decode]", (pair<c4, tq<4>>),
                   (pair<tq<3>, tq<3>>)) {
  auto const rows = GENERATE(1, 2, 4);
  auto const ratio = GENERATE(1, 2);
  std::vector<request> batch;
  for (int length : {5, 64, 200, 1000})
    batch.push_back({length, support::history_of(length - rows, 64), 0, rows, static_cast<std::uint64_t>(length)});
  support::attention_cache<typename TestType::key, typename TestType::value, half> cache(
      {.shape = {3, dim, dim, 64}, .sinks = 4}, batch);
  auto const e = decode_errors<TestType>(cache, ratio, false);
  CAPTURE(rows, ratio);
  CHECK(e.out <= 1e-3);
}

TEMPLATE_TEST_CASE("window only, sinks only, no window", "[gpu][decode]", (pair<c4, tq<4>>), (pair<tq<3>, tq<3>>)) {
  auto const sinks = GENERATE(0, 1, 4, 17, 63);
  std::vector<request> batch{
      {3, 0, 0, 1, 1}, {40, 0, 0, 1, 2}, {128, 128, 0, 1, 3}, {640, 640, 0, 1, 4}, {650, 640, 128, 1, 5}};
  support::attention_cache<typename TestType::key, typename TestType::value, half> cache(
      {.shape = {1, dim, dim, 64}, .sinks = sinks}, batch);
  CAPTURE(sinks);
  CHECK(decode_errors<TestType>(cache, 4, false).out <= 1e-3);
}

TEST_CASE("large logits, and one long sequence over all CTAs", "[gpu][decode]") {
  std::vector<request> batch{{20000, support::history_of(20000, 128), 0, 1, 9}};
  support::attention_cache<c4, tq<4>, half> cache({.shape = {1, dim, dim, 64}, .sinks = 4}, batch);
  CHECK(decode_errors<pair<c4, tq<4>>>(cache, 4, false).out <= 1e-3);
  CHECK(decode_errors<pair<c4, tq<4>>>(cache, 4, true, 300.f).out <= 1e-3);
}

TEST_CASE("sequences of as many pieces but not as many pages", "[gpu][decode]") {
  // Three pages and eight tiles of exact rows, two pages and nine: equal sums, until pages are handed out by tiles.
  std::vector<request> batch{{300, 192, 0, 1, 1}, {256, 128, 0, 1, 2}};
  auto const heads = GENERATE(1, 2, 8);
  support::attention_cache<c4, tq<4>, half> cache({.shape = {heads, dim, dim, 64}, .sinks = 4}, batch);
  CAPTURE(heads);
  CHECK(decode_errors<pair<c4, tq<4>>>(cache, 4, false).out <= 1e-3);
}

TEST_CASE("a batch of many lengths", "[gpu][decode]") {
  auto const seed = GENERATE(1, 2, 3, 4, 5, 6);
  std::vector<request> batch;
  for (int i = 0; i < 40; ++i) {
    int const length = static_cast<int>(900 * (1 + support::noise(static_cast<std::uint64_t>(seed), at(i), 1, 2)));
    batch.push_back({length, support::history_of(length, 16 * (i % 9)), 0, 1, at(i)});
  }
  support::attention_cache<c3, tq<3>, half> cache({.shape = {2, dim, dim, 64}, .sinks = seed}, batch);
  CAPTURE(seed);
  CHECK(decode_errors<pair<c3, tq<3>>>(cache, 4, seed % 2 == 0).out <= 1e-3);
}
