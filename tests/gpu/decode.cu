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

/// Queries over a cache, on the host and on the device; rows and queries of T.
template <class Pair, class T = half>
class decoding {
  using K = typename Pair::key;
  using V = typename Pair::value;

 public:
  using cache_type = support::attention_cache<K, V, T>;

  decoding(cache_type& cache, int ratio, float query_size = 1.f)
      : cache_(cache),
        q_heads_(cache.options.shape.kv_heads * ratio),
        offsets_(offsets_of(cache)),
        places_(static_cast<std::size_t>(offsets_.back() * q_heads_)),
        q_(queries_of(places_, query_size)),
        device_(cache),
        device_q_(q_),
        device_offsets_(offsets_),
        out_(places_ * dim),
        lse_(places_),
        shape_{cache.count(), q_heads_, cache.options.shape.kv_heads, most_rows(cache), dim, gpu::multiprocessors()},
        workspace_(kvant::decode_plan::workspace_bytes(shape_)) {
    workspace_.fill(0);
  }

  /// Poisons the output, then plans and attends.
  void launch(cudaStream_t stream) { launch(stream, out_.get()); }
  template <class O>
  void launch(cudaStream_t stream, O* out) {
    gpu::check(cudaMemsetAsync(out, 0xff, places_ * dim * sizeof(O), stream));
    gpu::check(cudaMemsetAsync(lse_.get(), 0xff, places_ * sizeof(float), stream));
    auto const plan = kvant::decode_plan::in(workspace_.get(), shape_);
    REQUIRE(kvant::make_decode_plan_async<K, V, dim>(plan, device_.view.sequences, cache_.options.sinks, stream) ==
            cudaSuccess);
    REQUIRE(kvant::decode_attention_async<K, V, dim>(
                device_.view, queries(device_q_.get(), offsets_on_device_ ? device_offsets_.get() : nullptr),
                kvant::attention_options{}, kvant::decode_output<O>{out, lse_.get(), bad_page_id_.get()}, plan,
                stream) == cudaSuccess);
  }
  std::size_t places() const { return places_; }
  /// The layer as the kernels see it; a test may put the pages elsewhere.
  kvant::layer_view<T>& layer() { return device_.view; }
  /// From now on, without row offsets: one row each.
  void forget_offsets() { offsets_on_device_ = false; }
  void upload_lengths() { device_.length.upload(cache_.length); }
  std::vector<float> out() const { return out_.host(); }
  std::vector<float> log_sum_exp() const { return lse_.host(); }
  std::int32_t bad_page_id() const { return bad_page_id_.host()[0]; }

  errors against_reference() const {
    std::vector<double> expected(places_ * dim), expected_lse(places_);
    auto const s =
        kvant::reference_attention<K, V>(cache_.options.shape, cache_.view, queries(q_.data(), offsets_.data()), {},
                                         {expected.data(), expected_lse.data(), nullptr, 0});
    INFO(s.message());
    REQUIRE(s.ok());
    auto const got = out(), got_lse = log_sum_exp();
    errors e;
    for (std::size_t i = 0; i < places_; ++i) {
      double difference = 0, norm = 0;
      for (std::size_t c = 0; c < dim; ++c) {
        double const x = expected[i * dim + c], y = static_cast<double>(got[i * dim + c]);
        difference += (x - y) * (x - y), norm += x * x;
      }
      double const error = norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
      e.out = std::max(e.out, std::isnan(error) ? 1e9 : error);
      double const lse = static_cast<double>(got_lse[i]);
      double const lse_error = expected_lse[i] == lse ? 0 : std::abs(expected_lse[i] - lse);
      e.log_sum_exp = std::max(e.log_sum_exp, std::isnan(lse_error) ? 1e9 : lse_error);
    }
    return e;
  }

 private:
  static std::vector<std::int32_t> offsets_of(cache_type const& cache) {
    std::vector<std::int32_t> offsets{0};
    for (request const& r : cache.requests) offsets.push_back(offsets.back() + r.rows);
    return offsets;
  }
  static int most_rows(cache_type const& cache) {
    int most = 1;
    for (request const& r : cache.requests) most = std::max(most, r.rows);
    return most;
  }
  static std::vector<T> queries_of(std::size_t places, float size) {
    std::vector<T> q(places * dim);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = T{size * support::noise(5, i, 1, 2)};
    return q;
  }
  kvant::queries_view<T> queries(T const* data, std::int32_t const* offsets) const {
    kvant::queries_view<T> view{data, std::int64_t{q_heads_} * dim, dim, offsets, q_heads_};
    view.max_rows = shape_.max_rows;
    return view;
  }

  cache_type& cache_;
  int q_heads_;
  std::vector<std::int32_t> offsets_;
  std::size_t places_;
  std::vector<T> q_;
  gpu::mirror<T> device_;
  gpu::buffer<T> device_q_;
  gpu::buffer<std::int32_t> device_offsets_;
  gpu::buffer<float> out_, lse_;
  kvant::decode_shape shape_;
  gpu::buffer<std::byte> workspace_;
  gpu::buffer<std::int32_t> bad_page_id_{std::vector<std::int32_t>{0}};
  bool offsets_on_device_ = true;
};

template <class Pair, class T = half>
errors decode_errors(typename decoding<Pair, T>::cache_type& cache, int ratio, bool captured, float query_size = 1.f) {
  decoding<Pair, T> d(cache, ratio, query_size);
  gpu::launched once(captured, [&](cudaStream_t stream) { d.launch(stream); });
  if (captured) once.replay();
  return d.against_reference();
}

using c4 = kvant::turboquant_key<4>;
using c3 = kvant::turboquant_key<3>;
template <int B>
using tq = kvant::turboquant<B>;
using exact = kvant::exact<half>;

}  // namespace

TEMPLATE_TEST_CASE("decode attention equals the double reference", "[gpu][decode][long]", (pair<tq<4>, tq<4>>),
                   (pair<tq<3>, tq<3>>), (pair<tq<4>, tq<3>>), (pair<tq<3>, tq<4>>),
                   (pair<kvant::centered<tq<4>>, tq<4>>), (pair<c4, tq<4>>), (pair<c3, tq<3>>), (pair<c4, tq<3>>),
                   (pair<c3, tq<4>>), (pair<exact, exact>)) {
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
                   (pair<tq<3>, tq<3>>), (pair<exact, exact>)) {
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

TEMPLATE_TEST_CASE("window only, sinks only, no window", "[gpu][decode]", (pair<c4, tq<4>>), (pair<tq<3>, tq<3>>),
                   (pair<exact, exact>)) {
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

TEST_CASE("a batch of many lengths", "[gpu][decode][long]") {
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

TEST_CASE("the same bits from run to run, and counters that set themselves back", "[gpu][decode][long]") {
  std::vector<request> batch{{5000, support::history_of(5000, 128), 0, 1, 1}, {70, 0, 0, 1, 2}, {900, 768, 0, 1, 3}};
  support::attention_cache<c4, tq<4>, half> cache({.shape = {2, dim, dim, 64}, .sinks = 4}, batch);
  decoding<pair<c4, tq<4>>> d(cache, 4);
  gpu::launched graph(true, [&](cudaStream_t stream) { d.launch(stream); });
  auto const out = d.out(), lse = d.log_sum_exp();
  CHECK(d.against_reference().out <= 1e-3);
  for (int i = 0; i < 200; ++i) {
    graph.replay();
    REQUIRE(d.out() == out);
    REQUIRE(d.log_sum_exp() == lse);
  }
}

TEST_CASE("a captured step follows the lengths", "[gpu][decode]") {
  std::vector<request> batch{{5000, support::history_of(5000, 128), 0, 1, 1}, {190, 0, 0, 1, 2}, {900, 768, 0, 1, 3}};
  support::attention_cache<c3, tq<3>, half> cache({.shape = {2, dim, dim, 64}, .sinks = 4}, batch);
  decoding<pair<c3, tq<3>>> d(cache, 4);
  gpu::launched graph(true, [&](cudaStream_t stream) { d.launch(stream); });
  for (std::int32_t const fewer : {0, 1, 7, 100, 131, 3}) {
    for (std::size_t i = 0; i < batch.size(); ++i) cache.length[i] = batch[i].length - fewer;
    if (fewer == 7) cache.length[1] = 0;  // a sequence that is not there in this step
    d.upload_lengths();
    graph.replay();
    CAPTURE(fewer);
    auto const e = d.against_reference();
    CHECK(e.out <= 1e-3);
    CHECK(e.log_sum_exp <= 1e-3);
  }
}

TEST_CASE("output in half and bfloat16 is the float output, rounded", "[gpu][decode]") {
  std::vector<request> batch{{5000, support::history_of(5000, 128), 0, 1, 1}, {0, 0, 0, 1, 2}, {900, 768, 0, 1, 3}};
  support::attention_cache<c4, tq<4>, half> cache({.shape = {2, dim, dim, 64}, .sinks = 4}, batch);
  decoding<pair<c4, tq<4>>> d(cache, 4);
  gpu::launched(false, [&](cudaStream_t stream) { d.launch(stream); });
  auto const expected = d.out();
  auto const same = [&]<class O>(O) {
    gpu::buffer<O> out(d.places() * dim);
    gpu::launched(false, [&](cudaStream_t stream) { d.launch(stream, out.get()); });
    auto const got = out.host();
    for (std::size_t i = 0; i < got.size(); ++i)
      REQUIRE(static_cast<float>(got[i]) == static_cast<float>(static_cast<O>(expected[i])));
  };
  same(half{});
  same(kvant::bfloat16{});
}

TEMPLATE_TEST_CASE("keys with a large constant vector", "[gpu][decode]", (pair<c4, tq<4>>), (pair<c3, tq<3>>)) {
  auto const ratio = GENERATE(4, 8);
  std::vector<request> batch{{3000, support::history_of(3000, 128), 0, 1, 1}, {700, 576, 0, 1, 3}};
  support::attention_cache<typename TestType::key, typename TestType::value, half> cache(
      {.shape = {2, dim, dim, 64}, .sinks = 4, .key_bias = 600.f}, batch);
  CAPTURE(ratio);
  auto const e = decode_errors<TestType>(cache, ratio, false, 0.05f);
  CHECK(e.out <= 1e-3);
  CHECK(e.log_sum_exp <= 1e-2);
}

TEMPLATE_TEST_CASE("values of every size", "[gpu][decode]", (pair<c4, tq<4>>), (pair<c3, tq<3>>)) {
  auto const scale = GENERATE(1e-6f, 1e-3f, 1.f, 50.f, 1500.f);  // norms of 1e-4 to 7e4
  std::vector<request> batch{{3000, support::history_of(3000, 128), 0, 1, 1}, {700, 576, 0, 1, 3}};
  support::attention_cache<typename TestType::key, typename TestType::value, half> cache(
      {.shape = {2, dim, dim, 64}, .sinks = 4, .value_scale = scale}, batch);
  CAPTURE(scale);
  // Half subnormals, which values of norm 1e-4 are, have few bits for a scale.
  CHECK(decode_errors<TestType>(cache, 4, false).out <= 1e-3);
}

TEST_CASE("1,024 sequences of 8 heads", "[gpu][decode][long]") {
  std::vector<request> batch;
  for (int i = 0; i < 1024; ++i) {
    int const length = static_cast<int>(130 * (1 + support::noise(3, at(i), 1, 2)));
    batch.push_back({length, support::history_of(length, 32), 0, 1, at(i)});
  }
  support::attention_cache<c4, tq<4>, half> cache({.shape = {8, dim, dim, 64}, .sinks = 4}, batch);
  auto const e = decode_errors<pair<c4, tq<4>>>(cache, 1, true);
  CHECK(e.out <= 1e-3);
  CHECK(e.log_sum_exp <= 1e-3);
}

TEST_CASE("a pool above 4 GiB, with data in its last page", "[gpu][decode][long]") {
  std::vector<request> batch{{1500, support::history_of(1500, 64), 0, 1, 1}, {700, 576, 0, 1, 3}};
  support::attention_cache<c4, tq<4>, half> cache({.shape = {2, dim, dim, 64}, .sinks = 4}, batch);
  decoding<pair<c4, tq<4>>> d(cache, 4);
  std::int64_t const pages = cache.view.pages.count, stride = (std::int64_t{5} << 30) / pages / 16 * 16;
  gpu::buffer<std::byte> pool(static_cast<std::size_t>(pages * stride));
  for (std::int64_t p = 0; p < pages; ++p)
    gpu::check(cudaMemcpy(pool.get() + p * stride, cache.view.pages.unit(p, 0),
                          static_cast<std::size_t>(cache.codec.layout().page_bytes()), cudaMemcpyHostToDevice));
  d.layer().pages.base = pool.get(), d.layer().pages.page_stride = stride;
  gpu::launched(false, [&](cudaStream_t stream) { d.launch(stream); });
  CHECK(d.against_reference().out <= 1e-3);
}

TEST_CASE("two streams at once", "[gpu][decode][long]") {
  std::vector<request> batch{{20000, support::history_of(20000, 128), 0, 1, 1}, {900, 768, 0, 1, 3}};
  support::attention_cache<c4, tq<4>, half> one({.shape = {2, dim, dim, 64}, .sinks = 4}, batch);
  support::attention_cache<c3, tq<3>, half> two({.shape = {2, dim, dim, 64}, .sinks = 4}, batch);
  decoding<pair<c4, tq<4>>> first(one, 4);
  decoding<pair<c3, tq<3>>> second(two, 8);
  cudaStream_t a, b;
  gpu::check(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  gpu::check(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  for (int i = 0; i < 20; ++i) first.launch(a), second.launch(b);
  gpu::check(cudaDeviceSynchronize());
  gpu::check(cudaStreamDestroy(a));
  gpu::check(cudaStreamDestroy(b));
  CHECK(first.against_reference().out <= 1e-3);
  CHECK(second.against_reference().out <= 1e-3);
}

TEMPLATE_TEST_CASE("window rows and queries of bfloat16", "[gpu][decode]", (pair<c4, tq<4>>), (pair<tq<3>, tq<3>>),
                   (pair<kvant::exact<kvant::bfloat16>, kvant::exact<kvant::bfloat16>>)) {
  auto const ratio = GENERATE(1, 4, 7, 8);
  std::vector<request> batch;
  for (int length : {0, 3, 64, 200, 1000, 4097})
    batch.push_back({length, support::history_of(length, 128), 0, 1, static_cast<std::uint64_t>(length)});
  support::attention_cache<typename TestType::key, typename TestType::value, kvant::bfloat16> cache(
      {.shape = {2, dim, dim, 64}, .sinks = 4}, batch);
  auto const e = decode_errors<TestType, kvant::bfloat16>(cache, ratio, ratio % 2 == 0);
  CAPTURE(ratio);
  CHECK(e.out <= 1e-3);
  CHECK(e.log_sum_exp <= 1e-3);
}

TEST_CASE("without row offsets, each sequence has one row", "[gpu][decode]") {
  std::vector<request> batch{{5000, support::history_of(5000, 128), 0, 1, 1}, {190, 0, 0, 1, 2}, {900, 768, 0, 1, 3}};
  support::attention_cache<c3, tq<3>, half> cache({.shape = {2, dim, dim, 64}, .sinks = 4}, batch);
  decoding<pair<c3, tq<3>>> d(cache, 4);
  d.forget_offsets();
  gpu::launched(false, [&](cudaStream_t stream) { d.launch(stream); });
  CHECK(d.against_reference().out <= 1e-3);
}

#ifdef KVANT_DEBUG_PAGE_IDS
TEST_CASE("a page id out of range is told, and not followed", "[gpu][decode]") {
  for (std::int32_t const wrong : {-7, std::numeric_limits<std::int32_t>::max()}) {
    support::attention_cache<c4, tq<4>, half> cache({.shape = {2, dim, dim, 64}, .sinks = 4},
                                                    {{300, 256, 0, 1, 1}, {700, 640, 0, 1, 2}});
    decoding<pair<c4, tq<4>>> d(cache, 4);
    std::vector<std::int32_t> ids = cache.ids;
    ids[at(static_cast<int>(d.layer().table.row_stride) + 3)] = wrong;
    gpu::buffer<std::int32_t> table(ids);
    gpu::launched(false, [&](cudaStream_t stream) { d.launch(stream); });
    CHECK(d.bad_page_id() == 0);
    d.layer().table.ids = table.get();
    gpu::launched(false, [&](cudaStream_t stream) { d.launch(stream); });
    CHECK(d.bad_page_id() == 2);
  }
}
#endif
