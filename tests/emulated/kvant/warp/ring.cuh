#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <kvant/warp/ptx.cuh>

namespace kvant::inline v0 {

struct ring_piece {
  int offset;
  std::uint64_t from;
  std::uint32_t bytes;
};

/// The ring of kernels/kvant/warp/ring.cuh, copies done at once: a stage must be read before it is filled again.
template <int Stages, int StageBytes>
struct bulk_ring {
  static_assert(StageBytes % 128 == 0, "bulk_ring: a stage must be a multiple of 128 bytes");
  struct storage {
    alignas(128) std::byte stages[Stages * StageBytes];
  };
  using barriers = std::uint64_t[Stages];  // whether the stage is full

  bulk_ring(storage& s, barriers& b) : storage_(s), barriers_(b) {
    if (threadIdx.x % 32 == 0)
      for (std::uint64_t& barrier : b) barrier = 0;
    __syncwarp();
  }
  void fill(int stage, ring_piece first, ring_piece second) const {
    if (!ptx::elect()) return;
    require(barriers_[stage] == 0, "a stage is filled that nobody has read");
    copy(stage, first);
    copy(stage, second);
    barriers_[stage] = 1;
  }
  void skip() const {}
  std::byte const* wait() const {
    __syncwarp();
    require(barriers_[read_] == 1, "a stage is waited for that was not filled");
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
  int stage(int i) const { return (read_ + i) % Stages; }

 private:
  void copy(int stage, ring_piece piece) const {
    if (piece.bytes == 0) return;
    require(piece.from % 16 == 0 && piece.offset % 16 == 0 && piece.bytes % 16 == 0, "an unaligned copy");
    require(piece.offset + static_cast<int>(piece.bytes) <= StageBytes, "a copy past the stage");
    std::memcpy(storage_.stages + stage * StageBytes + piece.offset, reinterpret_cast<void const*>(piece.from),
                piece.bytes);
  }
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
