// Decode attention on the CPU over a long history, every format beside exact<half>: 32 query heads over 8 kv heads,
// head_dim 128, window 128 and 4 sinks included in bytes and time. Arguments: tokens of each sequence, threads. As many
// sequences as make the cache larger than any cache of a processor; pages scattered. Bytes are those of the format.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

#include <kvant/kvant.hpp>

namespace {

using kvant::half;
constexpr int heads = 8, q_heads = 32, dim = 128, window = 128, sinks = 4, ring = 192;

/// The calling thread and `count` - 1 others, which live as long as the call.
struct threads {
  std::int64_t count;
  template <class Task>
  void operator()(std::int64_t tasks, Task&& task) const {
    std::atomic<std::int64_t> next{0};
    auto const work = [&] {
      for (std::int64_t t = next++; t < tasks; t = next++) task(t);
    };
    std::vector<std::thread> others;
    for (std::int64_t i = 1; i < count; ++i) others.emplace_back(work);
    work();
    for (std::thread& t : others) t.join();
  }
};

/// One layer of an engine's cache, filled with pages of Gaussian rows: 64 pages are encoded, and copied over the rest.
template <class Layer>
struct filled_cache {
  using key = typename Layer::key;
  using value = typename Layer::value;
  kvant::page_codec<key, value> codec;
  std::vector<std::byte> pages, windows, sides;
  std::vector<std::int32_t> ids, length, history;
  std::vector<half> q;
  std::vector<float> out;
  kvant::layer_view<half> view;
  kvant::queries_view<half> queries;
  std::int64_t bytes = 0;

  filled_cache(int sequences, int tokens) {
    if (!codec.prepare({heads, dim, dim, 0}).ok()) std::abort();
    auto const& layout = codec.layout();
    int const p = layout.shape.page_tokens, in_pages = (tokens - window) / p * p, count = in_pages / p;
    std::mt19937 random{11};
    std::normal_distribution<float> normal;
    auto const fill = [&](std::vector<half>& rows, std::size_t n) {
      rows.resize(n);
      for (half& x : rows) x = half{normal(random)};
    };
    std::int64_t const page_bytes = layout.page_bytes(), total = std::int64_t{sequences} * count;
    pages.resize(static_cast<std::size_t>(total * page_bytes));
    view.pages = {pages.data(), page_bytes, layout.unit_bytes(), total};
    std::vector<half> rows, factors(heads * dim, half{1.f});
    for (std::int64_t page = 0; page < total; ++page) {
      if (page < 64) {
        fill(rows, static_cast<std::size_t>(2 * p * heads * dim));
        kvant::token_rows<half> const k{rows.data(), heads * dim, dim},
            v{rows.data() + p * heads * dim, heads * dim, dim};
        if (!codec.encode_page(k, v, 0, factors.data(), view.pages, page).ok()) std::abort();
      } else {
        std::copy_n(pages.begin() + page % 64 * page_bytes, page_bytes, pages.begin() + page * page_bytes);
      }
    }
    fill(rows, static_cast<std::size_t>(sequences) * 2 * heads * ring * dim);
    auto const copy = [](std::vector<half> const& from, std::vector<std::byte>& to) {
      to.resize(from.size() * 2);
      std::memcpy(to.data(), from.data(), to.size());
    };
    copy(rows, windows);
    view.window = {windows.data(), 2 * heads * ring * dim * 2, heads * ring * dim * 2, ring * dim * 2, dim * 2, ring};
    std::int64_t const sink_bytes = sinks * dim * 2, record = 2 * heads * sink_bytes + heads * dim * 2;
    fill(rows, static_cast<std::size_t>(sequences * record / 2));
    copy(rows, sides);
    for (int i = 0; i < sequences; ++i)
      std::memcpy(sides.data() + i * record + 2 * heads * sink_bytes, factors.data(), heads * dim * 2);
    view.side = {
        sides.data(), sides.data() + 2 * heads * sink_bytes, record, heads * sink_bytes, sink_bytes, dim * 2, dim * 2,
        sinks};
    ids.resize(static_cast<std::size_t>(total));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    view.table = {ids.data(), count, count};
    length.assign(static_cast<std::size_t>(sequences), tokens), history.assign(length.size(), in_pages);
    view.sequences = {length.data(), history.data(), nullptr, nullptr, nullptr, nullptr, sequences};
    fill(q, static_cast<std::size_t>(sequences) * q_heads * dim);
    queries = {q.data(), q_heads * dim, dim, nullptr, q_heads};
    out.resize(q.size());
    bytes = total * page_bytes + std::int64_t{sequences} * 2 * heads * dim * 2 * (tokens - in_pages + sinks);
  }
};

template <class Layer>
void attention(benchmark::State& state) {
  int const tokens = static_cast<int>(state.range(0)), sequences = std::max(1, (1 << 16) / tokens);
  filled_cache<Layer> cache(sequences, tokens);
  for (auto _ : state) {
    auto const s = kvant::cpu_attention<typename Layer::key, typename Layer::value>(
        cache.codec.layout().shape, cache.view, cache.queries, {}, {cache.out.data()}, threads{state.range(1)});
    if (!s.ok()) {
      state.SkipWithError(s.message().c_str());
      return;
    }
    benchmark::DoNotOptimize(cache.out.data());
  }
  state.counters["sequences"] = sequences;
  state.SetBytesProcessed(state.iterations() * cache.bytes);
}

void points(benchmark::internal::Benchmark* b) {
  b->ArgNames({"tokens", "threads"})->Unit(benchmark::kMillisecond)->UseRealTime();
  for (std::int64_t const tokens : {4096, 32768, 65536}) b->Args({tokens, 1})->Args({tokens, 2});
}

BENCHMARK_TEMPLATE(attention, kvant::exact_layer)->Apply(points);
BENCHMARK_TEMPLATE(attention, kvant::turboquant_4bit)->Apply(points);
BENCHMARK_TEMPLATE(attention, kvant::plain_turboquant_4bit)->Apply(points);
BENCHMARK_TEMPLATE(attention, kvant::turboquant_3bit)->Apply(points);
BENCHMARK_TEMPLATE(attention, kvant::turboquant_2bit)->Apply(points);
BENCHMARK_TEMPLATE(attention, kvant::turboquant_1bit)->Apply(points);
BENCHMARK_TEMPLATE(attention, kvant::kivi_2bit)->Apply(points);
BENCHMARK_TEMPLATE(attention, kvant::kivi_4bit)->Apply(points);
BENCHMARK_TEMPLATE(attention, kvant::bonsai_1bit)->Apply(points);

}  // namespace
