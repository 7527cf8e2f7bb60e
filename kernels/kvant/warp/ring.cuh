#pragma once

#include <cstddef>
#include <cstdint>

#include <kvant/warp/ptx.cuh>

namespace kvant::inline v0 {

/// What a stage of a ring receives: `bytes` from global address `from`, multiples of 16, at `offset` of the stage.
struct ring_piece {
  int offset;
  std::uint64_t from;
  std::uint32_t bytes;
};

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

  /// Asks for what a stage is to receive: a piece, and a second one unless it has no bytes. By all lanes.
  __device__ __forceinline__ void fill(int stage, ring_piece first, ring_piece second) const {
    if (!ptx::elect()) return;
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barriers_ + 8 * stage),
                 "r"(first.bytes + second.bytes)
                 : "memory");
    copy(stage, first);
    if (second.bytes > 0) copy(stage, second);
  }
  /// In place of fill() where there is nothing to ask for.
  __device__ __forceinline__ void skip() const {}

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
  /// The stage that is i-th from the oldest.
  [[nodiscard]] __device__ __forceinline__ int stage(int i) const {
    return read_ + i < Stages ? read_ + i : read_ + i - Stages;
  }

 private:
  __device__ __forceinline__ void copy(int stage, ring_piece piece) const {
    constexpr std::uint64_t evict_first = 0x12f0000000000000u;  // what createpolicy makes of it
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(begin_ + stage * StageBytes + piece.offset),
        "l"(piece.from), "r"(piece.bytes), "r"(barriers_ + 8 * stage), "l"(evict_first)
        : "memory");
  }

  storage& storage_;
  std::uint32_t const begin_, barriers_;  // shared addresses
  int read_ = 0;
  std::uint32_t phase_ = 0;
};

}  // namespace kvant::inline v0
