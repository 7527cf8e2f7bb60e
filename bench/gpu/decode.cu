// Decode attention on one GPU against the memory roofline of the same run. Layers are captured in one graph, each with a
// cache of its own, so that the caches together lie well past the L2; pages are scattered; lengths are n + 32, so that
// the window holds 160 tokens. Prints a table and writes rows of JSON (bench/results/h200.json says what they mean).
//   decode [FILE] [BATCH TOKENS [Q_HEADS]]
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include <cuda_runtime_api.h>

#include <kvant/decode.cuh>
#include <kvant/plan/layer.hpp>

#include "gpu/measure.cuh"

namespace {

using bench::check;
using kvant::half;
using kvant::side;
constexpr int dim = 128;

/// Scales of every unit: random bits are codes, but not scales.
template <class Key, class Value>
__global__ void set_scales(std::byte* pages, int unit_bytes) {
  constexpr kvant::page_layout<Key, Value> layout{kvant::page_shape{1, dim, dim, 64}};
  constexpr int tile = layout.tile_tokens, tiles = layout.tiles(), tile_bytes = layout.tile_bytes();
  constexpr int scales = layout.template token_scalar_byte<side::key>(0, 0), header = layout.header_bytes();
  constexpr int mean_scale = layout.mean_scale_byte();
  std::int64_t const u = blockIdx.x;
  std::byte* const unit = pages + u * unit_bytes;
  for (int i = static_cast<int>(threadIdx.x); i < tiles * 2 * tile; i += static_cast<int>(blockDim.x)) {
    auto* const at = unit + scales + i / (2 * tile) * tile_bytes + i % (2 * tile) * 2;
    *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(0x3800u | ((i * 37 + u * 11) & 0x3ff));
  }
  if (header > 0 && threadIdx.x == 0) *reinterpret_cast<std::uint16_t*>(unit + mean_scale) = 0x2400;
}

struct point {
  int batch, tokens, q_heads, kv_heads;
  bool mixed = false;  // lengths of 1/32 to 4 times `tokens`, the same tokens in all
};

/// Lengths of a point's sequences: all alike, or spread over 1 to 128 and scaled to the same sum.
std::vector<std::int32_t> lengths_of(point pt, int extra) {
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(pt.batch), pt.tokens + extra);
  if (!pt.mixed) return lengths;
  std::vector<double> weight(lengths.size());
  for (std::size_t i = 0; i < weight.size(); ++i)
    weight[i] = std::pow(128., static_cast<double>(i) / static_cast<double>(weight.size() - 1));
  double const sum = std::accumulate(weight.begin(), weight.end(), 0.);
  for (std::size_t i = 0; i < weight.size(); ++i)
    lengths[i] = static_cast<std::int32_t>(weight[i] / sum * pt.tokens * pt.batch) / 64 * 64 + extra;
  std::shuffle(lengths.begin(), lengths.end(), std::mt19937{7});
  return lengths;
}

/// Returns the seconds of one layer. exact_seconds: those of exact<half> at the same point, 0 for itself.
template <class Key, class Value>
double measure(char const* key_name, char const* value_name, point pt, int window, int sinks, bench::pool const& memory,
               bench::rows& rows, double exact_seconds) {
  constexpr bool exact = kvant::is_exact<Key>;
  constexpr kvant::page_layout<Key, Value> shape_of_one{kvant::page_shape{1, dim, dim, 64}};
  int const unit = shape_of_one.unit_bytes(), heads = pt.kv_heads, batch = pt.batch;
  auto const lengths = lengths_of(pt, window > 0 ? 32 : 0);
  std::vector<std::int32_t> histories;
  std::int64_t layer_pages = 0, exact_rows = 0;
  int most_pages = 1;
  for (int const length : lengths) {
    int const history = std::max(0, length - window) / 64 * 64;
    histories.push_back(history);
    layer_pages += history / 64, most_pages = std::max(most_pages, history / 64);
    exact_rows += std::min(sinks, length) + std::max(0, length - std::max(history, sinks));
  }
  std::int64_t const page_bytes = std::int64_t{unit} * heads;
  int const ring_rows = (window + 63 + 1 + 15) / 16 * 16;
  std::int64_t const row = dim * 2, ring = ring_rows * row, slot = 2 * ring * heads;
  std::int64_t const sink_head = std::max(1, sinks) * row, record = 2 * sink_head * heads + row * heads;
  std::int64_t const layer_bytes = layer_pages * page_bytes + (slot + record) * batch;
  int const layers = static_cast<int>(std::clamp<std::int64_t>(
      std::min<std::int64_t>(memory.bytes / layer_bytes, (std::int64_t{3} << 30) / layer_bytes), 1, 64));
  if (exact)
    bench::fill_halves<<<1320, 256>>>(reinterpret_cast<std::uint16_t*>(memory.base), layers * layer_bytes / 2, 1);
  else
    bench::fill_random<<<1320, 256>>>(reinterpret_cast<std::uint32_t*>(memory.base), layers * layer_bytes / 4, 1);
  std::byte* const windows = memory.base + layers * layer_pages * page_bytes;
  bench::fill_halves<<<1320, 256>>>(reinterpret_cast<std::uint16_t*>(windows), layers * (slot + record) * batch / 2, 3);
  if constexpr (!exact)
    set_scales<Key, Value><<<static_cast<unsigned>(layers * layer_pages * heads), 128>>>(memory.base, unit);
  check(cudaDeviceSynchronize());

  std::vector<std::int32_t> shuffled(static_cast<std::size_t>(layer_pages));
  std::iota(shuffled.begin(), shuffled.end(), 0);
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937{5});
  std::vector<std::int32_t> ids(static_cast<std::size_t>(most_pages) * lengths.size(), 0);
  std::size_t next = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    for (int p = 0; p < histories[i] / 64; ++p)
      ids[i * static_cast<std::size_t>(most_pages) + static_cast<std::size_t>(p)] = shuffled[next++];
  auto *d_ids = bench::upload(ids), *d_length = bench::upload(lengths), *d_history = bench::upload(histories);
  half* q;
  half* out;
  check(cudaMalloc(&q, std::size_t(batch) * pt.q_heads * dim * 2));
  check(cudaMalloc(&out, std::size_t(batch) * pt.q_heads * dim * 2));
  bench::fill_halves<<<132, 256>>>(reinterpret_cast<std::uint16_t*>(q), std::int64_t{batch} * pt.q_heads * dim, 9);
  kvant::decode_shape const shape{batch, pt.q_heads, heads, 1, dim, bench::multiprocessors()};
  void* workspace;
  auto const workspace_bytes = kvant::decode_plan::workspace_bytes(shape);
  check(cudaMalloc(&workspace, workspace_bytes));
  check(cudaMemset(workspace, 0, workspace_bytes));
  auto const plan = kvant::decode_plan::in(workspace, shape);
  kvant::sequences_view const sequences{d_length, d_history, nullptr, nullptr, nullptr, nullptr, batch};
  check(kvant::make_decode_plan_async<Key, Value, dim>(plan, sequences, sinks, nullptr));
  check(cudaDeviceSynchronize());

  bench::row r{.bench = pt.mixed ? "decode_mixed" : "decode",
               .key = key_name,
               .value = value_name,
               .batch = batch,
               .tokens = pt.tokens,
               .q_heads = pt.q_heads,
               .kv_heads = heads,
               .window = window,
               .sinks = sinks};
  r.bytes = layer_pages * page_bytes + heads * exact_rows * row * 2;
  r.seconds =
      bench::seconds(
          [&](cudaStream_t s) {
            for (int l = 0; l < layers; ++l) {
              kvant::layer_view<half> layer;
              layer.pages = {memory.base + l * layer_pages * page_bytes, page_bytes, unit, layer_pages};
              layer.window = {windows + l * slot * batch, slot, ring * heads, ring, row, ring_rows};
              std::byte* const side = windows + layers * slot * batch + l * record * batch;
              layer.side = {side, side + 2 * sink_head * heads, record, sink_head * heads, sink_head, row, row, sinks};
              layer.table = {d_ids, most_pages, most_pages};
              layer.sequences = sequences;
              check(kvant::decode_attention_async<Key, Value, dim>(
                  layer, kvant::queries_view<half>{q, std::int64_t{pt.q_heads} * dim, dim, nullptr, pt.q_heads},
                  kvant::attention_options{}, kvant::decode_output<half>{out, nullptr}, plan, s));
            }
          },
          7) /
      layers;
  r.roofline_seconds = bench::roofline_seconds(memory, r.bytes);
  r.speedup_exact_half = exact ? 1. : exact_seconds / r.seconds;
  double const layer_seconds = r.seconds;
  rows.add(r);
  if (window > 0 && !exact) {
    r.bench = "plan", r.bytes = 0, r.roofline_seconds.reset(), r.speedup_exact_half.reset();
    r.seconds = bench::seconds(
                    [&](cudaStream_t s) {
                      for (int i = 0; i < 16; ++i)
                        check(kvant::make_decode_plan_async<Key, Value, dim>(plan, sequences, sinks, s));
                    },
                    5) /
                16;
    rows.add(r);
  }
  for (void* p : {static_cast<void*>(d_ids), static_cast<void*>(d_length), static_cast<void*>(d_history),
                  static_cast<void*>(q), static_cast<void*>(out), workspace})
    check(cudaFree(p));
  return layer_seconds;
}

}  // namespace

int main(int argc, char** argv) {
  bench::pool memory;
  memory.bytes = std::int64_t{40} << 30;
  check(cudaMalloc(reinterpret_cast<void**>(&memory.base), static_cast<std::size_t>(memory.bytes)));
  bench::rows rows;
  using kvant::turboquant;
  using c4 = kvant::turboquant_key<4>;
  using c3 = kvant::turboquant_key<3>;
  for (point p : {point{1, 4096, 32, 8},
                  {1, 32768, 32, 8},
                  {1, 131072, 32, 8},
                  {32, 4096, 32, 8},
                  {64, 4096, 32, 8},
                  {8, 32768, 32, 8},
                  {32, 32768, 32, 8},
                  {32, 32768, 32, 8, true},
                  {8, 131072, 32, 8},
                  {32, 32768, 64, 8}}) {
    if (argc > 3 && (p.batch != std::atoi(argv[2]) || p.tokens != std::atoi(argv[3]))) continue;
    if (argc > 4 && p.q_heads != std::atoi(argv[4])) continue;
    auto const run = [&]<class Key, class Value>(char const* key, char const* value, double exact_seconds, int window,
                                                 int sinks) {
      return measure<Key, Value>(key, value, p, window, sinks, memory, rows, exact_seconds);
    };
    using exact = kvant::exact<half>;
    double const no_window = run.operator()<exact, exact>("exact<half>", "exact<half>", 0, 0, 0);
    double const with_window = run.operator()<exact, exact>("exact<half>", "exact<half>", 0, 128, 4);
    run.operator()<turboquant<4>, turboquant<4>>("turboquant<4>", "turboquant<4>", no_window, 0, 0);
    run.operator()<c4, turboquant<4>>("balanced<centered<turboquant<4>>>", "turboquant<4>", no_window, 0, 0);
    run.operator()<c4, turboquant<4>>("balanced<centered<turboquant<4>>>", "turboquant<4>", with_window, 128, 4);
    run.operator()<turboquant<3>, turboquant<3>>("turboquant<3>", "turboquant<3>", no_window, 0, 0);
    run.operator()<c3, turboquant<3>>("balanced<centered<turboquant<3>>>", "turboquant<3>", no_window, 0, 0);
    run.operator()<c3, turboquant<3>>("balanced<centered<turboquant<3>>>", "turboquant<3>", with_window, 128, 4);
  }
  char const* const path = argc > 1 ? argv[1] : "decode.json";
  if (!rows.write(path)) return std::fprintf(stderr, "decode: cannot write %s\n", path), 1;
  return 0;
}
