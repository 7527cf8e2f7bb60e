#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <nlohmann/json.hpp>

#include "gpu/roofline.cuh"

namespace bench {

inline void check(cudaError_t e) {
  if (e != cudaSuccess) std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(e)), std::exit(1);
}

inline int multiprocessors() {
  int device = 0, n = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
  return n;
}

/// Median seconds of one replay of what launch(stream) puts into a graph. `before` runs ahead of each replay, outside
/// the clock.
inline double seconds(std::function<void(cudaStream_t)> const& launch, int replays,
                      std::function<void(cudaStream_t)> const& before = {}) {
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
    if (before) before(stream);
    check(cudaEventRecord(a, stream));
    check(cudaGraphLaunch(exec, stream));
    check(cudaEventRecord(b, stream));
    check(cudaEventSynchronize(b));
    float t;
    check(cudaEventElapsedTime(&t, a, b));
    if (i >= 2) ms.push_back(t);
  }
  std::sort(ms.begin(), ms.end());
  check(cudaEventDestroy(a));
  check(cudaEventDestroy(b));
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

/// Device memory.
template <class T>
T* upload(std::vector<T> const& v) {
  void* p = nullptr;
  check(cudaMalloc(&p, v.size() * sizeof(T)));
  check(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(p);
}

struct pool {
  std::byte* base = nullptr;
  std::int64_t bytes = 0;
};

/// The faster of the two pure reads of `bytes` bytes, launch included: enough launches over different bytes to lie past
/// the L2.
inline double roofline_seconds(pool const& p, std::int64_t bytes) {
  static unsigned* sink = nullptr;
  if (sink == nullptr) check(cudaMalloc(&sink, 4));
  bytes = bytes / 4096 * 4096;
  int const launches = static_cast<int>(
      std::clamp<std::int64_t>(std::min<std::int64_t>(p.bytes / bytes, (std::int64_t{3} << 30) / bytes), 1, 64));
  constexpr int shared = 16 * (sizeof(kvant::bulk_ring<3, 4096>::storage) + 128);
  check(cudaFuncSetAttribute(ring_read, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  double best = 1e9;
  for (int ctas : {132 * 4, 132 * 8, 132 * 16})
    best = std::min(best, seconds(
                              [&](cudaStream_t s) {
                                for (int i = 0; i < launches; ++i)
                                  stream_read<<<ctas, 256, 0, s>>>(reinterpret_cast<uint4 const*>(p.base + i * bytes),
                                                                   bytes / 16, sink);
                              },
                              5) /
                              launches);
  best = std::min(best, seconds(
                            [&](cudaStream_t s) {
                              for (int i = 0; i < launches; ++i)
                                ring_read<<<132, 512, shared, s>>>(p.base + i * bytes, bytes / 4096, sink);
                            },
                            5) /
                            launches);
  return best;
}

/// One row of bench/results/h200.json.
struct row {
  std::string bench, key, value;
  int batch = 0, tokens = 0, q_heads = 0, kv_heads = 0, head_dim = 128, window = 0, sinks = 0;
  double seconds = 0;
  std::int64_t bytes = 0;
  std::optional<double> roofline_seconds = {}, speedup_exact_half = {};
  std::string path = "tensor-core";
};

/// Prints rows as they come and writes them as one JSON array.
class rows {
 public:
  void add(row const& r) {
    auto const micro = [](std::optional<double> s) {
      return s ? nlohmann::ordered_json(std::round(*s * 1e9) * 1e-3) : nlohmann::ordered_json();
    };
    nlohmann::ordered_json const percent =
        r.roofline_seconds ? nlohmann::ordered_json(std::round(1e4 * *r.roofline_seconds / r.seconds) * 1e-2)
                           : nlohmann::ordered_json();
    array_.push_back({{"bench", r.bench},
                      {"key", r.key},
                      {"value", r.value},
                      {"batch", r.batch},
                      {"tokens", r.tokens},
                      {"q_heads", r.q_heads},
                      {"kv_heads", r.kv_heads},
                      {"head_dim", r.head_dim},
                      {"window", r.window},
                      {"sinks", r.sinks},
                      {"us", micro(r.seconds)},
                      {"bytes", r.bytes},
                      {"roofline_us", micro(r.roofline_seconds)},
                      {"percent_of_roofline", percent},
                      {"speedup_exact_half",
                       r.speedup_exact_half ? nlohmann::ordered_json(std::round(*r.speedup_exact_half * 1e3) * 1e-3)
                                            : nlohmann::ordered_json()},
                      {"path", r.path}});
    std::printf("%-13s %-33s %-13s %3d x %6d %2d/%d W=%3d %9.2f us", r.bench.c_str(), r.key.c_str(), r.value.c_str(),
                r.batch, r.tokens, r.q_heads, r.kv_heads, r.window, r.seconds * 1e6);
    if (r.roofline_seconds)
      std::printf("  roof %9.2f us  %5.1f %%  %.2f TB/s", *r.roofline_seconds * 1e6,
                  100 * *r.roofline_seconds / r.seconds, static_cast<double>(r.bytes) / r.seconds * 1e-12);
    if (r.speedup_exact_half) std::printf("  x %.2f", *r.speedup_exact_half);
    std::printf("\n");
    std::fflush(stdout);
  }
  /// False if the file cannot be written.
  [[nodiscard]] bool write(char const* path) const {
    std::ofstream file(path);
    file << array_.dump(1) << '\n';
    return static_cast<bool>(file.flush());
  }

 private:
  nlohmann::ordered_json array_ = nlohmann::ordered_json::array();
};

}  // namespace bench
