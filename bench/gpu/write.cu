// Commit and prefill on one GPU against a kernel that reads and writes the same bytes in the same run.
//   write [FILE [TOKENS]]   with TOKENS: that prefill alone
// "commit": one page a sequence and head; "commit_idle": nothing to do; "append_commit": append and commit of a decode step,
// lengths staggered: the mean of 64 steps, in which every sequence commits once. "prefill": a prompt of one sequence, all of it in pages.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include <cuda_runtime_api.h>

#include <kvant/append.cuh>
#include <kvant/commit.cuh>
#include <kvant/plan/layer.hpp>
#include <kvant/prefill.cuh>
#include <kvant/step.cuh>

#include "gpu/measure.cuh"

namespace {

using bench::check;
using kvant::half;
constexpr int dim = 128, heads = 8;

/// Reads `in` and writes `out` vectors of 16 bytes, each once.
__global__ void stream_through(uint4 const* from, std::int64_t in, uint4* to, std::int64_t out) {
  std::int64_t const stride = std::int64_t{gridDim.x} * blockDim.x;
  std::int64_t const first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::int64_t write = first;
  for (std::int64_t i = first; i < in; i += 4 * stride) {
    uint4 x[4] = {};
    for (int k = 0; k < 4; ++k)
      if (i + k * stride < in) x[k] = __ldcs(from + i + k * stride);
    if (write < out) {
      uint4 const a = make_uint4(x[0].x ^ x[1].x ^ x[2].x ^ x[3].x, x[0].y ^ x[1].y ^ x[2].y ^ x[3].y,
                                 x[0].z ^ x[1].z ^ x[2].z ^ x[3].z, x[0].w ^ x[1].w ^ x[2].w ^ x[3].w);
      __stcs(to + write, a);
      write += stride;
    }
  }
  for (; write < out; write += stride) __stcs(to + write, make_uint4(1, 2, 3, 4));
}

double stream_seconds(bench::pool const& memory, std::int64_t in, std::int64_t out, int launches) {
  double best = 1e9;
  std::int64_t const room = in + out;
  for (int const ctas : {132 * 2, 132 * 4, 132 * 8, 132 * 16})
    for (int const threads : {256, 512})
      best =
          std::min(best, bench::seconds(
                             [&](cudaStream_t s) {
                               for (int i = 0; i < launches; ++i) {
                                 std::byte* const at = memory.base + i * room;
                                 stream_through<<<ctas, threads, 0, s>>>(reinterpret_cast<uint4*>(at), in / 16,
                                                                         reinterpret_cast<uint4*>(at + in), out / 16);
                               }
                             },
                             5) /
                             launches);
  return best;
}

template <class Key, class Value>
struct layer_memory {
  static constexpr kvant::page_layout<Key, Value> layout{kvant::page_shape{heads, dim, dim, 64}};
  std::int64_t page_bytes = layout.page_bytes();
  std::int64_t row = dim * 2, ring, slot, sink, record;
  int pages, batch, ring_rows, sinks;

  layer_memory(int page_count, int sequences, int rows_of_ring, int sink_rows)
      : pages(page_count), batch(sequences), ring_rows(rows_of_ring), sinks(sink_rows) {
    ring = ring_rows * row, slot = 2 * ring * heads;
    sink = std::max(1, sinks) * row, record = 2 * sink * heads + row * heads;
  }
  [[nodiscard]] std::int64_t bytes() const { return pages * page_bytes + (slot + record) * batch; }
  [[nodiscard]] kvant::layer_view<half> view(std::byte* base, std::int32_t const* ids, int capacity,
                                             kvant::sequences_view sequences) const {
    kvant::layer_view<half> v;
    v.pages = {base, page_bytes, layout.unit_bytes(), pages};
    std::byte* const windows = base + pages * page_bytes;
    v.window = {windows, slot, ring * heads, ring, row, ring_rows};
    std::byte* const side = windows + slot * batch;
    v.side = {side, Key::is_balanced ? side + 2 * sink * heads : nullptr, record, sink * heads, sink, row, row, sinks};
    v.table = {ids, capacity, capacity};
    v.sequences = sequences;
    return v;
  }
};

std::vector<std::int32_t> shuffled(int n) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937{5});
  return ids;
}

bench::row row_of(char const* bench, char const* key, char const* value, int batch, int tokens, int window, int sinks) {
  bench::row r;
  r.bench = bench, r.key = key, r.value = value, r.batch = batch, r.tokens = tokens, r.kv_heads = heads;
  r.window = window, r.sinks = sinks;
  return r;
}

template <class Key, class Value>
void prefill(char const* key_name, char const* value_name, int tokens, bench::pool const& memory, bench::rows& rows) {
  using layer_type = layer_memory<Key, Value>;
  layer_type const layer(tokens / 64, 1, 64, 0);
  std::int64_t const input = std::int64_t{2} * tokens * heads * dim * 2;
  std::int64_t const each = (layer.bytes() + input + 255) / 256 * 256;
  int const layers = static_cast<int>(
      std::clamp<std::int64_t>(std::min<std::int64_t>(memory.bytes / each, (std::int64_t{2} << 30) / each), 1, 32));
  bench::fill_halves<<<1320, 256>>>(reinterpret_cast<std::uint16_t*>(memory.base), layers * each / 2, 3);
  auto* const ids = bench::upload(shuffled(tokens / 64));
  auto *const length = bench::upload(std::vector<std::int32_t>{tokens}),
              *const history = bench::upload(std::vector<std::int32_t>{0}),
              *const offsets = bench::upload(std::vector<std::int32_t>{0, tokens});
  kvant::sequences_view const sequences{length, history, nullptr, nullptr, nullptr, nullptr, 1};
  auto r = row_of("prefill", key_name, value_name, 1, tokens, 0, 0);
  r.bytes = input + tokens / 64 * layer.page_bytes;
  r.seconds = bench::seconds(
                  [&](cudaStream_t s) {
                    for (int l = 0; l < layers; ++l) {
                      std::byte* const base = memory.base + l * each;
                      auto* const in = reinterpret_cast<half*>(base + (layer.bytes() + 255) / 256 * 256);
                      auto const view = layer.view(base, ids, tokens / 64, sequences);
                      kvant::token_rows<half> const k{in, heads * dim, dim},
                          v{in + std::int64_t{tokens} * heads * dim, heads * dim, dim};
                      kvant::new_rows_view<half> const fresh{k, v, offsets, heads, dim, dim, tokens};
                      check(kvant::prefill_async<Key, Value, dim>(view, fresh, {0, nullptr}, s));
                    }
                  },
                  7) /
              layers;
  r.roofline_seconds = stream_seconds(memory, input, tokens / 64 * layer.page_bytes, layers);
  rows.add(r);
  for (void* p :
       {static_cast<void*>(ids), static_cast<void*>(length), static_cast<void*>(history), static_cast<void*>(offsets)})
    check(cudaFree(p));
}

template <class Key, class Value>
void commit(char const* key_name, char const* value_name, int batch, bench::pool const& memory, bench::rows& rows) {
  constexpr int window = 128, sinks = 4, length_now = 1024 + window;
  layer_memory<Key, Value> const layer(16 * batch, batch, 208, sinks);
  int const layers = 32;
  bench::fill_halves<<<1320, 256>>>(reinterpret_cast<std::uint16_t*>(memory.base), layers * layer.bytes() / 2, 3);
  auto* const ids = bench::upload(shuffled(16 * batch));
  auto const n = static_cast<std::size_t>(batch);
  auto* const length = bench::upload(std::vector<std::int32_t>(n, length_now));
  auto* const history = bench::upload(std::vector<std::int32_t>(n, length_now - window));
  auto* const before = bench::upload(std::vector<std::int32_t>(n, length_now - window - 64));
  std::vector<std::int32_t> offsets;
  for (int i = 0; i <= batch; ++i) offsets.push_back(i);
  auto* const d_offsets = bench::upload(offsets);
  half* fresh;
  check(cudaMalloc(&fresh, n * 2 * heads * dim * 2));
  bench::fill_halves<<<132, 256>>>(reinterpret_cast<std::uint16_t*>(fresh), std::int64_t{batch} * 2 * heads * dim, 9);
  kvant::new_rows_view<half> const new_rows{
      {fresh, heads * dim, dim}, {fresh + n * heads * dim, heads * dim, dim}, d_offsets, heads, dim, dim, 1};
  auto const run = [&](char const* name, std::int32_t const* from, int pages, bool with_append) {
    auto r = row_of(name, key_name, value_name, batch, length_now, window, sinks);
    kvant::sequences_view const sequences{length, from, nullptr, nullptr, nullptr, nullptr, batch};
    std::int64_t const in = std::int64_t{pages} * 2 * heads * 64 * dim * 2, out = pages * layer.page_bytes;
    r.bytes = in + out;
    r.seconds = bench::seconds(
                    [&](cudaStream_t s) {
                      for (int l = 0; l < layers; ++l) {
                        auto const view = layer.view(memory.base + l * layer.bytes(), ids, 16, sequences);
                        if (with_append) check(kvant::append_async(view, new_rows, s));
                        check(kvant::commit_async<Key, Value, dim>(kvant::layer_list<half>{view},
                                                                   {window, heads, 1, nullptr}, s));
                      }
                    },
                    7) /
                layers;
    if (pages > 0) r.roofline_seconds = stream_seconds(memory, in, out, layers);
    if (!with_append) rows.add(r);
    return r;
  };
  run("commit", before, batch, false);
  run("commit_idle", history, 0, false);
  auto r = run("append_commit", history, 0, true);
  std::vector<std::int32_t> staggered(n, length_now - window);
  staggered[n / 2] -= 64;  // one of them in this step
  auto* const some = bench::upload(staggered);
  r.seconds += (run("append_commit", some, 1, true).seconds - r.seconds) * batch / 64;
  rows.add(r);
  for (void* p :
       {static_cast<void*>(ids), static_cast<void*>(length), static_cast<void*>(history), static_cast<void*>(before),
        static_cast<void*>(d_offsets), static_cast<void*>(fresh), static_cast<void*>(some)})
    check(cudaFree(p));
}

}  // namespace

int main(int argc, char** argv) {
  bench::pool memory;
  memory.bytes = std::int64_t{8} << 30;
  check(cudaMalloc(reinterpret_cast<void**>(&memory.base), static_cast<std::size_t>(memory.bytes)));
  bench::rows rows;
  using kvant::turboquant;
  using c4 = kvant::turboquant_key<4>;
  using c3 = kvant::turboquant_key<3>;
  for (int const tokens : {1024, 8192, 65536, 131072}) {
    if (argc > 2 && tokens != std::atoi(argv[2])) continue;
    prefill<turboquant<4>, turboquant<4>>("turboquant<4>", "turboquant<4>", tokens, memory, rows);
    prefill<c4, turboquant<4>>("balanced<centered<turboquant<4>>>", "turboquant<4>", tokens, memory, rows);
    prefill<c3, turboquant<3>>("balanced<centered<turboquant<3>>>", "turboquant<3>", tokens, memory, rows);
  }
  for (int const batch : {1, 32, 64}) {
    if (argc > 2) break;
    commit<turboquant<4>, turboquant<4>>("turboquant<4>", "turboquant<4>", batch, memory, rows);
    commit<c4, turboquant<4>>("balanced<centered<turboquant<4>>>", "turboquant<4>", batch, memory, rows);
    commit<c3, turboquant<3>>("balanced<centered<turboquant<3>>>", "turboquant<3>", batch, memory, rows);
  }
  char const* const path = argc > 1 ? argv[1] : "write.json";
  if (!rows.write(path)) return std::fprintf(stderr, "write: cannot write %s\n", path), 1;
  return 0;
}
