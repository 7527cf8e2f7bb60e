#include <cstdio>
#include <vector>

#include "gpu/written_cache.cuh"

namespace {

using gpu::content;
using kvant::half;
bool const has_device = gpu::exit_without_device();  // before any test

template <class K, class V>
struct pair {
  using key = K;
  using value = V;
};
template <class Pair>
using cache_of = gpu::written_cache<typename Pair::key, typename Pair::value>;

using c4 = kvant::turboquant_key<4>;
using c3 = kvant::turboquant_key<3>;
template <int B>
using tq = kvant::turboquant<B>;

constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// Gives all tokens in runs of `run` (0: at once), by prefill, or by append and commit, or one run in two by each.
enum class way { prefill, commit, both };
template <class Cache>
void give_all(Cache& cache, int run, way how, bool captured = false) {
  int step = 0;
  std::unique_ptr<gpu::launched> graph;
  while (cache.length != std::vector<std::int32_t>(cache.tokens.begin(), cache.tokens.end())) {
    std::vector<int> rows;
    for (int i = 0; i < cache.count(); ++i)
      rows.push_back(std::min(cache.tokens[at(i)] - cache.length[at(i)], run == 0 ? cache.options.most_rows : run + i));
    bool const at_once = how == way::prefill || (how == way::both && step % 2 == 0);
    if (!captured) {
      cache.step(rows, at_once);
    } else {
      cache.stage(rows);
      if (graph == nullptr)
        graph = std::make_unique<gpu::launched>(true, [&](cudaStream_t stream) { cache.launch(stream, at_once); });
      else
        graph->replay();
    }
    ++step;
  }
}

}  // namespace

TEMPLATE_TEST_CASE("prefill leaves the bytes of append and commit, whatever the runs", "[gpu][prefill]",
                   (pair<tq<4>, tq<4>>), (pair<c4, tq<4>>), (pair<c3, tq<3>>), (pair<tq<4>, tq<3>>)) {
  auto const sinks = GENERATE(0, 4, 7);
  auto const seed = gpu::fresh_seed();
  CAPTURE(sinks, seed);
  std::vector<int> const tokens{700, 0, 63, 193, 64, 1, 391};
  gpu::written_options const options{.heads = 2, .sinks = sinks, .window = 100, .most_rows = 700, .ring_rows = 256};
  std::vector<std::byte> expected;
  {
    auto whole = options;
    whole.ring_rows = 0;
    cache_of<TestType> cache(whole, tokens, seed);
    give_all(cache, 0, way::commit);
    expected = cache.live(0);
    auto const d = cache.against_host();
    gpu::check_bounds(d);
  }
  struct plan {
    int run;
    way how;
    bool captured;
  };
  // 256 ring rows are fewer than some runs: those overwrite rows that pages still have to be made of.
  for (plan const p : {plan{0, way::prefill, false},
                       {0, way::prefill, true},
                       {37, way::prefill, false},
                       {301, way::prefill, true},
                       {64, way::prefill, false},
                       {150, way::prefill, false},
                       {230, way::prefill, false},
                       {37, way::commit, false},
                       {61, way::both, false},
                       {5, way::both, false}}) {
    auto o = options;
    if (p.how != way::prefill) o.most_rows = 80;
    cache_of<TestType> cache(o, tokens, seed);
    give_all(cache, p.run, p.how, p.captured);
    CAPTURE(p.run, int(p.how), p.captured);
    bool const same = cache.live(0) == expected;  // not for Catch2 to print
    REQUIRE(same);
  }
}

TEMPLATE_TEST_CASE("pages that prefill writes are the host encoder's, codes at a cell's edge aside", "[gpu][prefill]",
                   (pair<tq<4>, tq<4>>), (pair<c4, tq<4>>), (pair<c3, tq<3>>)) {
  auto const kind = GENERATE(content::normal, content::norms, content::biased, content::spoiled);
  auto const seed = gpu::fresh_seed();
  CAPTURE(int(kind), seed);
  cache_of<TestType> cache({.heads = 8, .sinks = 4, .window = 128, .most_rows = 1000, .keys = kind}, {1000, 400}, seed);
  give_all(cache, 0, way::prefill);
  auto const d = cache.against_host();
  std::printf("prefill, content %d: codes moved %.3f %%, D %+.3f %%, scales %.5f\n", int(kind), 100 * d.share(),
              100 * d.cost(), d.scale);
  gpu::check_bounds(d);
}

TEST_CASE("prefill of bfloat16 rows rounds once", "[gpu][prefill]") {
  auto const seed = gpu::fresh_seed();
  CAPTURE(seed);
  gpu::written_cache<c4, tq<4>> cache({.heads = 2, .sinks = 4, .window = 30, .most_rows = 300}, {300}, seed);
  auto& m = *cache.memory[0];
  std::vector<kvant::bfloat16> k, v;
  for (auto* from : {&m.keys[0], &m.values[0]})
    for (half& x : *from) {
      kvant::bfloat16 const b{static_cast<float>(x)};
      (from == &m.keys[0] ? k : v).push_back(b);
      x = kvant::window_element<half>(b);
    }
  gpu::buffer<kvant::bfloat16> keys(k), values(v);
  cache.stage({300});
  gpu::launched once(false, [&](cudaStream_t stream) {
    kvant::step_view const step{cache.d_length->get(), cache.d_history->get(), cache.d_slots->get(),
                                cache.d_offsets->get(), 1};
    gpu::check(kvant::begin_step_async(step, stream));
    kvant::new_rows_view<kvant::bfloat16> const rows{
        {keys.get(), 256, 128}, {values.get(), 256, 128}, cache.d_offsets->get(), 2, 128, 128, 300};
    gpu::check(kvant::prefill_async<c4, tq<4>, 128>(m.view, rows, {30, nullptr}, stream));
    gpu::check(kvant::end_step_async(step, 30, 64, stream));
  });
  gpu::check_bounds(cache.against_host());
}

TEST_CASE("prefill refuses what it cannot do before it launches", "[gpu][prefill]") {
  gpu::written_cache<c4, tq<4>> cache({}, {64}, 1);
  auto const& m = *cache.memory[0];
  auto const refused = [&](auto change) {
    auto layer = m.view;
    kvant::new_rows_view<half> rows{
        {m.key_rows->get(), 256, 128}, {m.value_rows->get(), 256, 128}, cache.d_offsets->get(), 2, 128, 128, 64};
    kvant::prefill_options options;
    change(layer, rows, options);
    return kvant::prefill_async<c4, tq<4>, 128>(layer, rows, options, nullptr) == cudaErrorInvalidValue;
  };
  CHECK_FALSE(refused([](auto&, auto&, auto&) {}));
  CHECK(refused([](auto& l, auto&, auto&) { l.pages.base = nullptr; }));
  CHECK(refused([](auto& l, auto&, auto&) { l.window.head_stride += 8; }));
  CHECK(refused([](auto& l, auto&, auto&) { l.window.rows = 128; }));
  CHECK(refused([](auto& l, auto&, auto&) { l.side.sink_rows = nullptr; }));
  CHECK(refused([](auto&, auto& r, auto&) { r.keys.data = nullptr; }));
  CHECK(refused([](auto&, auto& r, auto&) { r.values.data += 4; }));
  CHECK(refused([](auto&, auto& r, auto&) { r.keys.token_stride += 4; }));
  CHECK(refused([](auto&, auto& r, auto&) { r.row_offsets = nullptr; }));
  CHECK(refused([](auto&, auto& r, auto&) { r.key_dim = 64; }));
  CHECK(refused([](auto&, auto& r, auto&) { r.kv_heads = 0; }));
  CHECK(refused([](auto&, auto& r, auto&) { r.max_rows = -1; }));
  CHECK(refused([](auto&, auto&, auto& o) { o.window_tokens = -1; }));
  gpu::check(cudaDeviceSynchronize());
}
