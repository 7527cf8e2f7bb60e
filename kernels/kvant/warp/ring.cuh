#pragma once

#include <cstddef>
#include <cstdint>

#include <kvant/warp/ptx.cuh>

namespace kvant::inline v0 {

/// A warp's private ring of shared-memory stages, filled by bulk copies that complete on the stage's mbarrier (sm_90).
template <int Stages, int StageBytes>
struct bulk_ring {
  static_assert(StageBytes % 16 == 0, "bulk_ring: a stage must be a multiple of 16 bytes");
  struct storage {
    alignas(128) std::byte stage[Stages][StageBytes];
    alignas(8) std::uint64_t barrier[Stages];
  };

  __device__ __forceinline__ explicit bulk_ring(storage& s)
      : s_(s), stages_(ptx::shared_address(s.stage)), barriers_(ptx::shared_address(s.barrier)) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy_));
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < Stages; ++i) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barriers_ + 8 * i));
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
  }

  /// Lane 0 announces what the next stage will receive; then begin() for each piece of it; then sent() by all lanes.
  __device__ __forceinline__ void expect(std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barriers_ + 8 * filled_), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void begin(int offset, void const* from, std::uint32_t bytes) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(stages_ + StageBytes * filled_ + offset),
        "l"(from), "r"(bytes), "r"(barriers_ + 8 * filled_), "l"(policy_)
        : "memory");
  }
  __device__ __forceinline__ void sent() {
    if (++filled_ == Stages) filled_ = 0;
  }

  /// The oldest stage, once it has arrived.
  __device__ __forceinline__ std::byte const* wait() {
    asm volatile("{ .reg .pred p; W_%=: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra W_%=; }" ::"r"(
                     barriers_ + 8 * read_),
                 "r"(phase_)
                 : "memory");
    return s_.stage[read_];
  }
  /// Gives the oldest stage back; all lanes have read it.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (++read_ == Stages) read_ = 0, phase_ ^= 1;
  }

 private:
  storage& s_;
  std::uint32_t stages_, barriers_;  // shared addresses
  std::uint64_t policy_ = 0;
  int filled_ = 0, read_ = 0;
  std::uint32_t phase_ = 0;
};

}  // namespace kvant::inline v0
