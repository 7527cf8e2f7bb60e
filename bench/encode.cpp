// Encoding and decoding of whole pages on one core, every format, d = 128, 8 kv heads. Bytes are those of the exact side:
// half keys and values.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include <kvant/kvant.hpp>

namespace {

using kvant::half;

/// Pages of fresh Gaussian rows, enough of them that neither side stays in the first-level caches.
template <class Layer>
struct pages {
  static constexpr int heads = 8, dim = 128, count = 4;
  kvant::page_codec<typename Layer::key, typename Layer::value> codec;
  std::vector<half> keys, values, factors;
  std::vector<std::byte> bytes;
  kvant::pages_view view;
  int tokens = 0;

  bool prepare(benchmark::State& state) {
    if (auto const s = codec.prepare({heads, dim, dim, 0}); !s.ok()) {
      state.SkipWithError(s.message().c_str());
      return false;
    }
    auto const& layout = codec.layout();
    tokens = layout.shape.page_tokens;
    std::mt19937 random{7};
    std::normal_distribution<float> normal;
    auto const values_in_page = static_cast<std::size_t>(tokens) * heads * dim;
    keys.resize(count * values_in_page);
    values.resize(keys.size());
    factors.assign(static_cast<std::size_t>(heads) * dim, half{1.f});
    for (half& x : keys) x = half{normal(random)};
    for (half& x : values) x = half{normal(random)};
    bytes.resize(count * static_cast<std::size_t>(layout.page_bytes()));
    view = {bytes.data(), layout.page_bytes(), layout.unit_bytes(), count};
    for (int page = 0; page < count; ++page) encode(page);
    return true;
  }
  void encode(int page) {
    std::int64_t const row = std::int64_t{heads} * dim, first = page * std::int64_t{tokens} * row;
    auto const s =
        codec.encode_page(kvant::token_rows<half>{keys.data() + first, row, dim},
                          kvant::token_rows<half>{values.data() + first, row, dim}, 0, factors.data(), view, page);
    if (!s.ok()) std::fprintf(stderr, "%s\n", s.message().c_str());
  }
  std::int64_t exact_bytes() const { return std::int64_t{tokens} * heads * dim * 2 * 2; }
};

template <class Layer>
void encode(benchmark::State& state) {
  pages<Layer> p;
  if (!p.prepare(state)) return;
  int page = 0;
  for (auto _ : state) {
    p.encode(page);
    benchmark::ClobberMemory();
    page = (page + 1) % p.count;
  }
  state.SetBytesProcessed(p.exact_bytes() * state.iterations());
}

template <class Layer>
void decode(benchmark::State& state) {
  pages<Layer> p;
  if (!p.prepare(state)) return;
  auto const rows = static_cast<std::size_t>(p.tokens) * p.dim;
  std::vector<float> keys(rows), values(rows);
  int page = 0;
  for (auto _ : state) {
    for (int h = 0; h < p.heads; ++h)
      p.codec.decode_unit(p.view.unit(page, h), p.factors.data() + std::int64_t{h} * p.dim, keys.data(), values.data());
    benchmark::DoNotOptimize(keys.data());
    benchmark::ClobberMemory();
    page = (page + 1) % p.count;
  }
  state.SetBytesProcessed(p.exact_bytes() * state.iterations());
}

}  // namespace

#define KVANT_BENCH(layer)         \
  BENCHMARK(encode<kvant::layer>); \
  BENCHMARK(decode<kvant::layer>)
KVANT_BENCH(turboquant_4bit);
KVANT_BENCH(turboquant_3bit);
KVANT_BENCH(turboquant_2bit);
KVANT_BENCH(turboquant_1bit);
KVANT_BENCH(plain_turboquant_4bit);
KVANT_BENCH(plain_turboquant_3bit);
KVANT_BENCH(plain_turboquant_2bit);
KVANT_BENCH(plain_turboquant_1bit);
KVANT_BENCH(kivi_2bit);
KVANT_BENCH(kivi_2bit_g64);
KVANT_BENCH(kivi_4bit);
KVANT_BENCH(bonsai_1bit);
KVANT_BENCH(bonsai_1bit_rotated);
KVANT_BENCH(exact_layer);
#undef KVANT_BENCH
