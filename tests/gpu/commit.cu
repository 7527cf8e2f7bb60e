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
using adjacent = kvant::turboquant_key<4, kvant::adjacent_pairs>;
template <int B>
using tq = kvant::turboquant<B>;

void report(char const* what, gpu::differences const& d) {
  std::printf("%-28s codes moved %.3f %%, D %+.3f %%, scales %.5f (rule %.5f), mean bytes moved %lld of %lld\n", what,
              100 * d.share(), 100 * d.cost(), d.scale, d.rule, static_cast<long long>(d.mean_moved),
              static_cast<long long>(d.mean_bytes));
}

}  // namespace

TEMPLATE_TEST_CASE("pages that commit writes are the host encoder's, codes at a cell's edge aside", "[gpu][commit]",
                   (pair<tq<4>, tq<4>>), (pair<tq<3>, tq<3>>), (pair<tq<4>, tq<3>>), (pair<tq<3>, tq<4>>),
                   (pair<kvant::centered<tq<4>>, tq<4>>), (pair<c4, tq<4>>), (pair<c3, tq<3>>), (pair<c4, tq<3>>),
                   (pair<c3, tq<4>>), (pair<adjacent, tq<4>>)) {
  auto const sinks = GENERATE(0, 4, 7);
  auto const seed = gpu::fresh_seed();
  CAPTURE(sinks, seed);
  cache_of<TestType> cache({.heads = 3, .layers = 2, .sinks = sinks, .window = 70, .most_rows = 90},
                           {400, 0, 133, 134, 280}, seed);
  for (int step = 0; step < 5; ++step) {
    std::vector<int> rows;
    for (int i = 0; i < cache.count(); ++i)
      rows.push_back(std::min(cache.tokens[std::size_t(i)] - cache.length[std::size_t(i)], 37 + 13 * i));
    cache.step(rows, false);
  }
  auto const d = cache.against_host();
  report("normal", d);
  gpu::check_bounds(d);
}

TEMPLATE_TEST_CASE("tokens of every size, biased, zero, constant and spoiled", "[gpu][commit]", (pair<tq<4>, tq<4>>),
                   (pair<tq<3>, tq<3>>), (pair<kvant::centered<tq<4>>, tq<3>>), (pair<c4, tq<4>>), (pair<c3, tq<3>>)) {
  auto const kind = GENERATE(content::norms, content::biased, content::zeros, content::spoiled, content::constant);
  auto const seed = gpu::fresh_seed();
  CAPTURE(int(kind), seed);
  cache_of<TestType> cache({.heads = 2, .sinks = 4, .window = 0, .most_rows = 192, .keys = kind}, {192, 128}, seed);
  cache.step({192, 128}, false);
  auto const d = cache.against_host();
  report(kind == content::norms     ? "norms 1e-4 to 1e5"
         : kind == content::biased  ? "norm 600 added"
         : kind == content::zeros   ? "zeros"
         : kind == content::spoiled ? "NaN and infinities"
                                    : "constant",
         d);
  gpu::check_bounds(d);
}

TEMPLATE_TEST_CASE("a captured step of one token, 300 times", "[gpu][commit]", (pair<c4, tq<4>>),
                   (pair<tq<3>, tq<3>>)) {
  auto const seed = gpu::fresh_seed();
  CAPTURE(seed);
  cache_of<TestType> cache({.heads = 2, .layers = 3, .sinks = 4, .window = 40, .most_rows = 1}, {300, 300, 200, 300},
                           seed);
  auto const rows_of = [&](int step) {
    std::vector<int> rows;
    for (int i = 0; i < cache.count(); ++i)
      rows.push_back((step + i) % (i + 1) == 0 && cache.length[std::size_t(i)] < cache.tokens[std::size_t(i)] ? 1 : 0);
    return rows;
  };
  cache.stage(rows_of(0));
  gpu::launched graph(true, [&](cudaStream_t stream) { cache.launch(stream, false); });
  for (int step = 1; step < 300; ++step) {
    cache.stage(rows_of(step));
    graph.replay();
    if (step % 64 == 40) gpu::check_bounds(cache.against_host());
  }
  gpu::check_bounds(cache.against_host());
}

TEST_CASE("the same bytes from run to run", "[gpu][commit]") {
  using cache_type = gpu::written_cache<c4, tq<4>>;
  auto const seed = gpu::fresh_seed();
  CAPTURE(seed);
  std::vector<std::byte> first;
  for (int run = 0; run < 5; ++run) {
    cache_type cache({.heads = 4, .sinks = 4, .window = 0, .most_rows = 320}, {320, 256}, seed);
    cache.step({320, 256}, false);
    if (run == 0) first = cache.live(0);
    bool const same = cache.live(0) == first;
    REQUIRE(same);
  }
}

TEST_CASE("page ids out of range and padding are left alone", "[gpu][commit]") {
  auto const seed = gpu::fresh_seed();
  CAPTURE(seed);
  gpu::written_cache<c4, tq<4>> cache({.heads = 2, .sinks = 4, .window = 0, .most_rows = 128}, {128, 128, 128}, seed);
  gpu::buffer<std::int32_t> flag(std::vector<std::int32_t>{0});
  cache.stage({128, 128, 128});
  auto ids = cache.ids, slots = cache.slots;
  ids[0] = -1, ids[1] = static_cast<std::int32_t>(cache.memory[0]->view.pages.count);
  slots[1] = -1;
  cache.d_ids->upload(ids), cache.d_slots->upload(slots);
  gpu::launched once(false, [&](cudaStream_t stream) {
    kvant::step_view const step{cache.d_length->get(), cache.d_history->get(), cache.d_slots->get(),
                                cache.d_offsets->get(), cache.count()};
    gpu::check(kvant::begin_step_async(step, stream));
    gpu::check(kvant::commit_async<c4, tq<4>, 128>(cache.list(), {0, 2, 2, flag.get()}, stream));
  });
  auto const pages = cache.memory[0]->pages.host();
  for (std::size_t p = 0; p * std::size_t(cache.page_bytes) < pages.size(); ++p) {
    bool const written = p == std::size_t(cache.ids[6]) || p == std::size_t(cache.ids[7]);
    auto const at = pages.begin() + std::ptrdiff_t(p) * cache.page_bytes;
    bool const same = std::all_of(at, at + cache.page_bytes, [](std::byte b) { return b == std::byte{0xa5}; });
    CAPTURE(p);
    CHECK(same == !written);
  }
#ifdef KVANT_DEBUG_PAGE_IDS
  CHECK(flag.host()[0] == 1);
#else
  CHECK(flag.host()[0] == 0);
#endif
}

TEST_CASE("commit refuses what it cannot do before it launches", "[gpu][commit]") {
  gpu::written_cache<c4, tq<4>> cache({}, {64}, 1);
  auto const refused = [&](auto change) {
    auto list = cache.list();
    kvant::commit_options options{.kv_heads = 2};
    change(list, options);
    return kvant::commit_async<c4, tq<4>, 128>(list, options, nullptr) == cudaErrorInvalidValue;
  };
  CHECK_FALSE(refused([](auto&, auto&) {}));
  CHECK(refused([](auto& l, auto&) { l.first.pages.base = nullptr; }));
  CHECK(refused([](auto& l, auto&) { l.first.pages.base += 8; }));
  CHECK(refused([](auto& l, auto&) { l.first.pages.page_stride += 8; }));
  CHECK(refused([](auto& l, auto&) { l.first.pages.head_stride = 16; }));
  CHECK(refused([](auto& l, auto&) { l.first.window.base = nullptr; }));
  CHECK(refused([](auto& l, auto&) { l.first.window.row_stride = 128; }));
  CHECK(refused([](auto& l, auto&) { l.first.window.rows = 48; }));
  CHECK(refused([](auto& l, auto&) { l.first.side.sinks = 64; }));
  CHECK(refused([](auto& l, auto&) { l.first.side.sinks = -1; }));
  CHECK(refused([](auto& l, auto&) { l.first.side.factors = nullptr; }));
  CHECK(refused([](auto& l, auto&) { l.first.table.ids = nullptr; }));
  CHECK(refused([](auto& l, auto&) { l.first.table.capacity = 0; }));
  CHECK(refused([](auto& l, auto&) { l.first.sequences.length = nullptr; }));
  CHECK(refused([](auto& l, auto&) { l.first.sequences.history = nullptr; }));
  CHECK(refused([](auto& l, auto&) { l.count = 0; }));
  CHECK(refused([](auto& l, auto&) { l.count = 2, l.layers = nullptr; }));
  CHECK(refused([](auto&, auto& o) { o.kv_heads = 0; }));
  CHECK(refused([](auto&, auto& o) { o.window_tokens = -1; }));
  CHECK(refused([](auto&, auto& o) { o.max_pages = 0; }));
  gpu::check(cudaDeviceSynchronize());
}
