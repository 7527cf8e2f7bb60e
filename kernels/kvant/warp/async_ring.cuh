#pragma once

#include <cstddef>
#include <cstdint>

#include <kvant/warp/ptx.cuh>
#include <kvant/warp/ring.cuh>

namespace kvant::inline v0 {

/// What bulk_ring is, filled by all lanes of the warp with copies of 16 bytes (sm_80): a fill is a group of copies, and
/// a stage has arrived when no more groups are under way than there are other stages. So every release is followed by
/// one fill() or skip().
template <int Stages, int StageBytes>
struct async_ring {
  static_assert(StageBytes % 16 == 0, "async_ring: a stage must be a multiple of 16 bytes");
  struct storage {
    alignas(16) std::byte stages[Stages * StageBytes];
  };
  struct barriers {};

  __device__ __forceinline__ async_ring(storage& s, barriers&) : storage_(s) {}

  __device__ __forceinline__ void fill(int stage, ring_piece first, ring_piece second) const {
    copy(stage, first);
    copy(stage, second);
    ptx::end_copy_group();
  }
  __device__ __forceinline__ void skip() const { ptx::end_copy_group(); }

  __device__ __forceinline__ std::byte const* wait() const {
    ptx::wait_for_copy_groups<Stages - 1>();
    __syncwarp();
    return storage_.stages + read_ * StageBytes;
  }
  __device__ __forceinline__ int release() {
    __syncwarp();
    int const released = read_;
    if (++read_ == Stages) read_ = 0;
    return released;
  }
  [[nodiscard]] __device__ __forceinline__ int stage(int i) const {
    return read_ + i < Stages ? read_ + i : read_ + i - Stages;
  }

 private:
  __device__ __forceinline__ void copy(int stage, ring_piece piece) const {
    std::uint32_t const lane = threadIdx.x % 32;
    std::uint32_t const to = ptx::shared_address(storage_.stages + stage * StageBytes + piece.offset);
    auto const* const from = reinterpret_cast<std::byte const*>(piece.from);
#pragma unroll 4
    for (std::uint32_t at = 16 * lane; at < piece.bytes; at += 512) ptx::copy_16(to + at, from + at);
  }

  storage& storage_;
  int read_ = 0;
};

}  // namespace kvant::inline v0
