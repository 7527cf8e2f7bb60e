// Appending one token per sequence, and what begins and ends a step, on one GPU: the time of a launch among many in a
// graph. Launches go through layers whose windows fill up to 3 GiB, then through them again at later positions, so that
// what they write lies well past the L2; the new rows are in the L2, as a projection leaves them. Prints a table and writes rows of JSON (bench/results/h200.json says what they mean).
//   append [FILE]
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <cuda_runtime_api.h>

#include <kvant/append.cuh>
#include <kvant/step.cuh>

#include "gpu/measure.cuh"

namespace {

using bench::check;
using kvant::half;
constexpr int kv_heads = 8, dim = 128, window = 128, sinks = 4, page_tokens = 64;
constexpr int ring_rows = (window + page_tokens + 15) / 16 * 16;
constexpr int launches = 1024, inputs = 32;

/// A launch that does nothing: what any launch of the graph costs.
__global__ void nothing(int) { kvant::detail::wait_for_previous_launch(); }

void measure(int batch, bench::pool const& memory, bench::rows& rows) {
  constexpr std::int64_t row = dim * 2, ring = ring_rows * row, slot = 2 * kv_heads * ring;
  constexpr std::int64_t token = kv_heads * dim;  // elements
  std::int64_t const input = batch * token * 2;   // bytes of keys
  std::int64_t const layer_bytes = slot * batch, input_bytes = 2 * input * inputs;
  auto const layers =
      static_cast<int>(std::clamp<std::int64_t>((memory.bytes - input_bytes) / layer_bytes, 1, std::int64_t{launches}));
  constexpr std::int64_t sink = sinks * row, record = 2 * kv_heads * sink;
  std::byte* const windows = memory.base + input_bytes;
  bench::fill_random<<<1320, 256>>>(reinterpret_cast<std::uint32_t*>(memory.base), input_bytes / 4, 1);

  std::vector<std::int32_t> lengths, offsets{0};  // lengths: [rounds through the layers, batch]
  for (int i = 0; i < batch; ++i) offsets.push_back(i + 1);
  for (int i = 0; i < launches / layers + 1; ++i)
    for (int j = 0; j < batch; ++j) lengths.push_back(4096 + 5 * i + 37 * j);
  auto *d_length = bench::upload(lengths), *d_history = bench::upload(lengths), *d_offsets = bench::upload(offsets);
  std::byte* d_sinks;
  check(cudaMalloc(reinterpret_cast<void**>(&d_sinks), static_cast<std::size_t>(record * batch)));

  bench::row r;
  r.bench = "append", r.key = r.value = "half", r.batch = batch, r.tokens = 1;
  r.kv_heads = kv_heads, r.head_dim = dim, r.window = window, r.sinks = sinks, r.path = "portable";
  r.bytes = 4 * input;  // keys and values, read and written
  r.seconds = bench::seconds(
                  [&](cudaStream_t s) {
                    for (int l = 0; l < launches; ++l) {
                      kvant::layer_view<half> layer;
                      layer.window = {windows + l % layers * layer_bytes, slot, kv_heads * ring, ring, row, ring_rows};
                      layer.side = {d_sinks, nullptr, record, kv_heads * sink, sink, row, 0, sinks};
                      layer.sequences.length = d_length + l / layers * batch, layer.sequences.count = batch;
                      auto const* const keys = reinterpret_cast<half const*>(memory.base + l % inputs * 2 * input);
                      check(kvant::append_async(
                          layer,
                          kvant::new_rows_view<half>{
                              {keys, token, dim}, {keys + batch * token, token, dim}, d_offsets, kv_heads, dim, dim, 1},
                          s));
                    }
                  },
                  9) /
              launches;
  rows.add(r);

  kvant::step_view const step{d_length, d_history, nullptr, d_offsets, batch};
  r.key = r.value = "", r.bytes = 0, r.bench = "begin_step";
  r.seconds = bench::seconds(
                  [&](cudaStream_t s) {
                    for (int l = 0; l < launches; ++l) check(kvant::begin_step_async(step, s));
                  },
                  9) /
              launches;
  rows.add(r);
  r.bench = "end_step";
  r.seconds = bench::seconds(
                  [&](cudaStream_t s) {
                    for (int l = 0; l < launches; ++l) check(kvant::end_step_async(step, window, page_tokens, s));
                  },
                  9) /
              launches;
  rows.add(r);
  for (void* p : {static_cast<void*>(d_length), static_cast<void*>(d_history), static_cast<void*>(d_offsets),
                  static_cast<void*>(d_sinks)})
    check(cudaFree(p));
}

}  // namespace

int main(int argc, char** argv) {
  bench::pool memory;
  memory.bytes = std::int64_t{3} << 30;
  check(cudaMalloc(reinterpret_cast<void**>(&memory.base), static_cast<std::size_t>(memory.bytes)));
  for (int const ctas : {1, 128}) {
    double const seconds =
        bench::seconds(
            [&](cudaStream_t s) {
              for (int l = 0; l < launches; ++l)
                check(kvant::detail::launch_overlapped(nothing, dim3(static_cast<unsigned>(ctas)), 128, s, 0));
            },
            9) /
        launches;
    std::printf("a launch of %d empty CTAs: %.2f us\n", ctas, seconds * 1e6);
  }
  bench::rows rows;
  for (int const batch : {1, 8, 32, 64}) measure(batch, memory, rows);
  char const* const path = argc > 1 ? argv[1] : "append.json";
  if (!rows.write(path)) return std::fprintf(stderr, "append: cannot write %s\n", path), 1;
  return 0;
}
