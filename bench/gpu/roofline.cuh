#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <cuda_runtime_api.h>

#include <kvant/block/architecture.cuh>
#include <kvant/warp/copies.cuh>

namespace bench {

/// Reads n 16-byte words, four loads in flight a thread.
__global__ void stream_read(uint4 const* p, std::int64_t n, unsigned* sink) {
  unsigned x = 0;
  std::int64_t const stride = std::int64_t{gridDim.x} * blockDim.x;
  std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < n; i += 4 * stride) {
    uint4 const a = __ldcs(p + i), b = __ldcs(p + i + stride), c = __ldcs(p + i + 2 * stride),
                d = __ldcs(p + i + 3 * stride);
    x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < n; i += stride) x ^= p[i].x;
  if (x == 0x9e3779b9u) *sink = x;
}

/// Reads `chunks` chunks of 4 KB through the warps' private rings, by the copies that decode's pages take.
__launch_bounds__(512) __global__ void ring_read(std::byte const* p, std::int64_t chunks, unsigned* sink) {
  using ring = kvant::detail::copies_of<kvant::detail::architecture>::ring<3, 4096>;
  extern __shared__ std::byte shared[];
  int const warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  struct warp_storage {
    ring::storage stages;
    ring::barriers barriers;
  };
  auto& storage = reinterpret_cast<warp_storage*>(shared)[warp];
  ring r(storage.stages, storage.barriers);
  std::int64_t const step = std::int64_t{gridDim.x} * 16, from = std::int64_t{blockIdx.x} * 16 + warp;
  std::int64_t next = from;
  auto const request = [&](int stage) {
    if (next >= chunks) return r.skip();
    r.fill(stage, {0, reinterpret_cast<std::uint64_t>(p) + next * 4096, 4096}, {0, 0, 0});
    next += step;
  };
  for (int i = 0; i < 3; ++i) request(i);
  unsigned x = 0;
  for (std::int64_t c = from; c < chunks; c += step) {
    x ^= reinterpret_cast<unsigned const*>(r.wait())[lane];
    request(r.release());
  }
  if (x == 0x9e3779b9u) *sink = x;
}

}  // namespace bench
