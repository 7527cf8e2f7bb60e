// Decode attention on one GPU against the memory roofline of the same run. Layers are captured in one graph, each with a
// cache of its own, so that the caches together lie well past the L2; pages are scattered; lengths are n + 32, so that
// the window holds 160 tokens. Prints a table and writes rows of JSON (bench/results/h200.json says what they mean).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include <kvant/decode.cuh>
#include <kvant/plan/layer.hpp>

#include "gpu/roofline.cuh"

namespace {

using kvant::half;
using kvant::side;
constexpr int dim = 128;

void check(cudaError_t e) {
  if (e != cudaSuccess) std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(e)), std::exit(1);
}

/// Median seconds of one replay of what launch(stream) puts into a graph.
double seconds(std::function<void(cudaStream_t)> const& launch, int replays) {
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  launch(stream);
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t a, b;
  check(cudaEventCreate(&a));
  check(cudaEventCreate(&b));
  std::vector<float> ms;
  for (int i = 0; i < replays + 2; ++i) {
    check(cudaEventRecord(a, stream));
    check(cudaGraphLaunch(exec, stream));
    check(cudaEventRecord(b, stream));
    check(cudaEventSynchronize(b));
    float t;
    check(cudaEventElapsedTime(&t, a, b));
    if (i >= 2) ms.push_back(t);
  }
  std::sort(ms.begin(), ms.end());
  check(cudaGraphExecDestroy(exec));
  check(cudaGraphDestroy(graph));
  check(cudaStreamDestroy(stream));
  return ms[ms.size() / 2] * 1e-3;
}

__global__ void fill_random(std::uint32_t* p, std::int64_t words, std::uint32_t seed) {
  std::int64_t const stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += stride) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 0x9e3779b9u + seed;
    x ^= x >> 16, x *= 0x85ebca6bu, x ^= x >> 13, x *= 0xc2b2ae35u, x ^= x >> 16;
    p[i] = x;
  }
}
/// Halves between 0.5 and 1.
__global__ void fill_halves(std::uint16_t* p, std::int64_t n, std::uint32_t seed) {
  std::int64_t const stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride)
    p[i] = static_cast<std::uint16_t>(0x3800u | ((static_cast<std::uint32_t>(i) * 2654435761u + seed) >> 22));
}
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
};

struct roofline {
  double seconds, bytes_per_second;
};

struct pool {
  std::byte* base = nullptr;
  std::int64_t bytes = 0;
};

/// The faster of the two pure reads of `bytes` bytes, launch included: enough launches over different bytes to lie past
/// the L2.
double roofline_seconds(pool const& p, std::int64_t bytes) {
  static unsigned* sink = nullptr;
  if (sink == nullptr) check(cudaMalloc(&sink, 4));
  bytes = bytes / 4096 * 4096;
  int const launches = static_cast<int>(
      std::clamp<std::int64_t>(std::min<std::int64_t>(p.bytes / bytes, (std::int64_t{3} << 30) / bytes), 1, 64));
  constexpr int shared = 16 * sizeof(kvant::bulk_ring<3, 4096>::storage);
  check(cudaFuncSetAttribute(bench::bulk_read, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  double best = 1e9;
  for (int ctas : {132 * 4, 132 * 8, 132 * 16})
    best = std::min(best, seconds(
                              [&](cudaStream_t s) {
                                for (int i = 0; i < launches; ++i)
                                  bench::stream_read<<<ctas, 256, 0, s>>>(
                                      reinterpret_cast<uint4 const*>(p.base + i * bytes), bytes / 16, sink);
                              },
                              5) /
                              launches);
  best = std::min(best, seconds(
                            [&](cudaStream_t s) {
                              for (int i = 0; i < launches; ++i)
                                bench::bulk_read<<<132, 512, shared, s>>>(p.base + i * bytes, bytes / 4096, sink);
                            },
                            5) /
                            launches);
  return best;
}

template <class Key, class Value>
void measure(char const* key_name, char const* value_name, point pt, int window, int sinks, pool const& memory,
             std::FILE* json, bool& first_row) {
  constexpr kvant::page_layout<Key, Value> shape_of_one{kvant::page_shape{1, dim, dim, 64}};
  int const unit = shape_of_one.unit_bytes(), heads = pt.kv_heads, batch = pt.batch;
  int const length = pt.tokens + (window > 0 ? 32 : 0);
  int const history = std::max(0, length - window) / 64 * 64, pages_each = history / 64;
  std::int64_t const page_bytes = std::int64_t{unit} * heads, layer_pages = std::int64_t{pages_each} * batch;
  int const rows = (window + 63 + 1 + 15) / 16 * 16;
  std::int64_t const row = dim * 2, ring = rows * row, slot = 2 * ring * heads;
  std::int64_t const sink_head = std::max(1, sinks) * row, record = 2 * sink_head * heads + row * heads;
  std::int64_t const layer_bytes = layer_pages * page_bytes + slot * batch + record * batch;
  int const layers = static_cast<int>(std::clamp<std::int64_t>(
      std::min<std::int64_t>(memory.bytes / layer_bytes, (std::int64_t{3} << 30) / layer_bytes), 1, 64));
  fill_random<<<1320, 256>>>(reinterpret_cast<std::uint32_t*>(memory.base), layers * layer_bytes / 4, 1);
  std::byte* const windows = memory.base + layers * layer_pages * page_bytes;
  fill_halves<<<1320, 256>>>(reinterpret_cast<std::uint16_t*>(windows), layers * (slot + record) * batch / 2, 3);
  if (layers * layer_pages > 0)
    set_scales<Key, Value><<<static_cast<unsigned>(layers * layer_pages * heads), 128>>>(memory.base, unit);
  check(cudaDeviceSynchronize());

  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::max<std::int64_t>(1, layer_pages)));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937{5});
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(batch), length), histories(lengths.size(), history),
      offsets;
  for (int i = 0; i <= batch; ++i) offsets.push_back(i);
  auto const upload = [](auto const& v) {
    void* p;
    check(cudaMalloc(&p, v.size() * sizeof(v[0])));
    check(cudaMemcpy(p, v.data(), v.size() * sizeof(v[0]), cudaMemcpyHostToDevice));
    return static_cast<std::remove_cvref_t<decltype(v[0])>*>(p);
  };
  auto *d_ids = upload(ids), *d_length = upload(lengths), *d_history = upload(histories), *d_offsets = upload(offsets);
  half* q;
  float* out;
  check(cudaMalloc(&q, std::size_t(batch) * pt.q_heads * dim * 2));
  check(cudaMalloc(&out, std::size_t(batch) * pt.q_heads * dim * 4));
  fill_halves<<<132, 256>>>(reinterpret_cast<std::uint16_t*>(q), std::int64_t{batch} * pt.q_heads * dim, 9);
  int const ctas = 132;
  void* workspace;
  auto const workspace_bytes = kvant::decode_plan::workspace_bytes(batch, heads, dim, ctas);
  check(cudaMalloc(&workspace, workspace_bytes));
  check(cudaMemset(workspace, 0, workspace_bytes));
  auto const plan = kvant::decode_plan::in(workspace, batch, heads, dim, ctas);
  kvant::sequences_view const sequences{d_length, d_history, nullptr, nullptr, nullptr, nullptr, batch};
  check(kvant::make_decode_plan_async<Key, Value, dim>(plan, sequences, sinks, nullptr));
  check(cudaDeviceSynchronize());

  double const t =
      seconds(
          [&](cudaStream_t s) {
            for (int l = 0; l < layers; ++l) {
              kvant::layer_view<half> layer;
              layer.pages = {memory.base + l * layer_pages * page_bytes, page_bytes, unit, layer_pages};
              layer.window = {windows + l * slot * batch, slot, ring * heads, ring, row, rows};
              std::byte* const side = windows + layers * slot * batch + l * record * batch;
              layer.side = {side, side + 2 * sink_head * heads, record, sink_head * heads, sink_head, row, row, sinks};
              layer.table = {d_ids, pages_each, std::max(1, pages_each)};
              layer.sequences = sequences;
              check(kvant::decode_attention_async<Key, Value, dim>(
                  layer, kvant::queries_view<half>{q, std::int64_t{pt.q_heads} * dim, dim, d_offsets, pt.q_heads},
                  heads, kvant::attention_options{}, kvant::decode_output<float>{out, nullptr}, plan, s));
            }
          },
          7) /
      layers;
  double const t_plan = seconds(
                            [&](cudaStream_t s) {
                              for (int i = 0; i < 16; ++i)
                                check(kvant::make_decode_plan_async<Key, Value, dim>(plan, sequences, sinks, s));
                            },
                            5) /
                        16;
  std::int64_t const exact_rows = std::min(sinks, length) + std::max(0, length - std::max(history, sinks));
  std::int64_t const bytes = layer_pages * page_bytes + std::int64_t{batch} * heads * exact_rows * row * 2;
  double const roof = roofline_seconds(memory, bytes);
  std::printf(
      "%-34s %-14s %3d x %6d %2d/%d W=%3d %9.2f us  roof %9.2f us  %5.1f %%  %.2f TB/s  layers %d plan %.2f us\n",
      key_name, value_name, batch, pt.tokens, pt.q_heads, heads, window, t * 1e6, roof * 1e6, 100 * roof / t,
      static_cast<double>(bytes) / t * 1e-12, layers, t_plan * 1e6);
  std::fprintf(json,
               "%s{\"bench\":\"decode\",\"key\":\"%s\",\"value\":\"%s\",\"batch\":%d,\"tokens\":%d,\"q_heads\":%d,\"kv_"
               "heads\":%d,"
               "\"head_dim\":%d,\"window\":%d,\"sinks\":%d,\"us\":%.3f,\"bytes\":%lld,\"roofline_us\":%.3f,"
               "\"percent_of_roofline\":%.2f,\"speedup_exact_half\":null,\"path\":\"tensor-core\"}",
               first_row ? "" : ",\n", key_name, value_name, batch, pt.tokens, pt.q_heads, heads, dim, window, sinks,
               t * 1e6, static_cast<long long>(bytes), roof * 1e6, 100 * roof / t);
  first_row = false;
  for (void* p : {static_cast<void*>(d_ids), static_cast<void*>(d_length), static_cast<void*>(d_history),
                  static_cast<void*>(d_offsets), static_cast<void*>(q), static_cast<void*>(out), workspace})
    check(cudaFree(p));
}

}  // namespace

int main(int argc, char** argv) {
  std::FILE* const json = std::fopen(argc > 1 ? argv[1] : "decode.json", "w");
  if (json == nullptr) return std::perror("decode"), 1;
  pool memory;
  memory.bytes = std::int64_t{40} << 30;
  check(cudaMalloc(reinterpret_cast<void**>(&memory.base), static_cast<std::size_t>(memory.bytes)));
  bool first_row = true;
  std::fprintf(json, "[");
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
                  {8, 131072, 32, 8},
                  {32, 32768, 64, 8}}) {
    if (argc > 2 && (p.batch != std::atoi(argv[2]) || p.tokens != std::atoi(argv[3]))) continue;
    measure<turboquant<4>, turboquant<4>>("turboquant<4>", "turboquant<4>", p, 0, 0, memory, json, first_row);
    measure<c4, turboquant<4>>("balanced<centered<turboquant<4>>>", "turboquant<4>", p, 0, 0, memory, json, first_row);
    measure<c4, turboquant<4>>("balanced<centered<turboquant<4>>>", "turboquant<4>", p, 128, 4, memory, json,
                               first_row);
    measure<turboquant<3>, turboquant<3>>("turboquant<3>", "turboquant<3>", p, 0, 0, memory, json, first_row);
    measure<c3, turboquant<3>>("balanced<centered<turboquant<3>>>", "turboquant<3>", p, 128, 4, memory, json,
                               first_row);
  }
  std::fprintf(json, "]\n");
  return std::fclose(json);
}
