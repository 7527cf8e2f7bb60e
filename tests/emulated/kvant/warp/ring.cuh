#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <kvant/warp/ptx.cuh>

namespace kvant::inline v0 {

/// The ring of kernels/kvant/warp/ring.cuh, copies done at once: a stage must receive what was announced, and must be
/// read before it is filled again.
template <int Stages, int StageBytes>
struct bulk_ring {
  static_assert(StageBytes % 128 == 0, "bulk_ring: a stage must be a multiple of 128 bytes");
  struct storage {
    alignas(128) std::byte stages[Stages * StageBytes];
  };
  using barriers = std::uint64_t[Stages];  // bytes announced, + 1 << 32 while the stage is full

  bulk_ring(storage& s, barriers& b) : storage_(s), barriers_(b) {
    if (threadIdx.x % 32 == 0)
      for (std::uint64_t& barrier : b) barrier = 0;
    __syncwarp();
  }
  void expect(int stage, std::uint32_t bytes) const {
    require(barriers_[stage] == 0, "a stage is filled that nobody has read");
    require(bytes <= StageBytes && bytes % 16 == 0, "more bytes than a stage has");
    barriers_[stage] = full + bytes;
  }
  void copy(int stage, int offset, std::uint64_t from, std::uint32_t bytes) const {
    require(barriers_[stage] >= full + bytes, "more bytes than were announced");
    require(from % 16 == 0 && offset % 16 == 0 && bytes % 16 == 0, "an unaligned copy");
    require(offset + static_cast<int>(bytes) <= StageBytes, "a copy past the stage");
    std::memcpy(storage_.stages + stage * StageBytes + offset, reinterpret_cast<void const*>(from), bytes);
    barriers_[stage] -= bytes;
  }
  std::byte const* wait() const {
    __syncwarp();
    require(barriers_[read_] == full, "a stage is waited for that was not filled");
    return storage_.stages + read_ * StageBytes;
  }
  int release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barriers_[read_] = 0;
    __syncwarp();
    int const released = read_;
    if (++read_ == Stages) read_ = 0;
    return released;
  }

 private:
  static constexpr std::uint64_t full = std::uint64_t{1} << 32;
  static void require(bool holds, char const* what) {
    if (holds) return;
    std::fprintf(stderr, "emulated ring: %s\n", what);
    std::abort();
  }
  storage& storage_;
  barriers& barriers_;
  int read_ = 0;
};

}  // namespace kvant::inline v0
