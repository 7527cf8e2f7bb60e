#pragma once

#include <cstddef>
#include <cstdint>

#include <kvant/warp/quantize_rows.cuh>

namespace kvant::inline v0::detail {

/// 16 rows of 128 halves in shared memory on their way to one warp, which alone reads and writes them. Chunk j (16
/// bytes) of row r lies at chunk j ^ order(r) of the row: the rows of an ldmatrix, and the two rows that a quarter of a
/// warp loads, meet no bank conflict.
struct staged_rows {
  std::uint32_t base;  // shared address
  static constexpr int bytes = 16 * 256;

  static __device__ __forceinline__ std::uint32_t order(int row) {
    return static_cast<std::uint32_t>((row & 1) << 2 | ((row >> 1) & 3));
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t chunk(int row, int j) const {
    return base + static_cast<std::uint32_t>(row) * 256 + ((static_cast<std::uint32_t>(j) ^ order(row)) << 4);
  }

  /// Asks for the chunks that the lane will load: of rows g and g + 8, those numbered t mod 4.
  __device__ __forceinline__ void request(void const* const (&row)[2], int lane) const {
    int const g = lane >> 2, t = lane & 3;
    std::uint32_t const first = chunk(g, t);  // chunk 4c + t of row g: bits 2 and 3 of the chunk number are c
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        ptx::copy_16((first ^ (static_cast<std::uint32_t>(c) << 6)) + 2048 * r,
                     static_cast<std::byte const*>(row[r]) + 64 * c + 16 * t);
  }
  /// Chunk 4c + t of row g + 8r.
  __device__ __forceinline__ void load_chunk(std::uint32_t* x, int r, int c, int lane) const {  // [4]
    ptx::load_shared(x, (chunk(lane >> 2, lane & 3) ^ (static_cast<std::uint32_t>(c) << 6)) + 2048 * r);
  }
  __device__ __forceinline__ void store_chunk(std::uint32_t const* x, int r, int c, int lane) const {  // [4]
    ptx::store_shared((chunk(lane >> 2, lane & 3) ^ (static_cast<std::uint32_t>(c) << 6)) + 2048 * r, x);
  }
  __device__ __forceinline__ void load(row_pairs<128>& x, int lane) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) load_chunk(&x[r][4 * c], r, c, lane);
  }
  __device__ __forceinline__ void store(row_pairs<128> const& x, int lane) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) store_chunk(&x[r][4 * c], r, c, lane);
  }

  /// sum[channel] <- the sum of the 16 rows, on the tensor cores: X^T 1. Exact to fp32's rounding, no more; a channel
  /// that is not finite spoils no other.
  __device__ __forceinline__ void sum(float* to, int lane) const {
    int const row = (lane & 7) + 8 * (lane >> 4), odd = (lane >> 3) & 1;
#pragma unroll
    for (int s = 0; s < 8; ++s) {
      std::uint32_t a[4];
      ptx::ldmatrix_transposed(a, chunk(row, 2 * s + odd));
      float c[4] = {};
      ptx::mma(c, a, 0x3c003c00u, 0x3c003c00u);
      if ((lane & 3) == 0) to[16 * s + (lane >> 2)] = c[0], to[16 * s + 8 + (lane >> 2)] = c[2];
    }
  }
};

}  // namespace kvant::inline v0::detail
