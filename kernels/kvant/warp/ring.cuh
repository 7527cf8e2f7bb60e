#pragma once

#include <cstddef>
#include <cstdint>

#include <kvant/warp/ptx.cuh>

namespace kvant::inline v0 {

/// A warp's private ring of shared-memory stages, filled by bulk copies that complete on the stage's mbarrier (sm_90).
/// Stages are filled and read in turn; the stage that is released is the next to be filled. Stages begin at multiples
/// of 128 bytes, and so should what is copied: the copy engine moves other bytes some 12 % more slowly.
template <int Stages, int StageBytes>
struct bulk_ring {
  static_assert(StageBytes % 128 == 0, "bulk_ring: a stage must be a multiple of 128 bytes");
  struct storage {
    alignas(128) std::byte stages[Stages * StageBytes];
  };
  using barriers = std::uint64_t[Stages];

  __device__ __forceinline__ bulk_ring(storage& s, barriers& b)
      : storage_(s), begin_(ptx::shared_address(&s)), barriers_(ptx::shared_address(&b)) {
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < Stages; ++i) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barriers_ + 8 * i));
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
  }

  /// One lane announces what a stage will receive; then calls copy() for each piece of it.
  __device__ __forceinline__ void expect(int stage, std::uint32_t bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barriers_ + 8 * stage), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void copy(int stage, int offset, std::uint64_t from, std::uint32_t bytes) const {
    constexpr std::uint64_t evict_first = 0x12f0000000000000u;  // what createpolicy makes of it
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(begin_ + stage * StageBytes + offset),
        "l"(from), "r"(bytes), "r"(barriers_ + 8 * stage), "l"(evict_first)
        : "memory");
  }

  /// The oldest stage, once it has arrived.
  __device__ __forceinline__ std::byte const* wait() const {
    asm volatile("{ .reg .pred p; W_%=: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra W_%=; }" ::"r"(
                     barriers_ + 8 * read_),
                 "r"(phase_)
                 : "memory");
    return storage_.stages + read_ * StageBytes;
  }
  /// Gives the oldest stage back; all lanes have read it.
  __device__ __forceinline__ int release() {
    __syncwarp();
    int const released = read_;
    if (++read_ == Stages) read_ = 0, phase_ ^= 1;
    return released;
  }

 private:
  storage& storage_;
  std::uint32_t const begin_, barriers_;  // shared addresses
  int read_ = 0;
  std::uint32_t phase_ = 0;
};

}  // namespace kvant::inline v0
