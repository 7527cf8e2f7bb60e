#pragma once

#include <type_traits>

#include <kvant/config.hpp>
#include <kvant/warp/async_ring.cuh>
#include <kvant/warp/ring.cuh>

namespace kvant::inline v0::detail {

/// How pages come into shared memory, where an SM has plenty of it (sm_90, sm_100).
struct bulk_copies {
  template <int Stages, int StageBytes>
  using ring = bulk_ring<Stages, StageBytes>;
  static constexpr int alignment = 128;        // where a copy begins
  static constexpr int shared_bytes = 232448;  // what every such device lends to a CTA
  /// Tiles of coming spans are on their way while warps meet; else the memory of the ring serves both.
  static constexpr bool across_spans = true;
};

/// The same where there is no bulk copy (sm_80 to 89) or little shared memory (sm_120).
struct async_copies {
  template <int Stages, int StageBytes>
  using ring = async_ring<Stages, StageBytes>;
  static constexpr int alignment = 16;
  static constexpr int shared_bytes = 101376;
  static constexpr bool across_spans = false;
};

/// Whether code for an architecture takes bulk_copies.
KVANT_HD constexpr bool takes_bulk_copies(int architecture) { return architecture >= 90 && architecture < 120; }

template <int Architecture>
using copies_of = std::conditional_t<takes_bulk_copies(Architecture), bulk_copies, async_copies>;
/// The same for a number that only the host learns: fn(the policy).
template <class Fn>
constexpr auto with_copies_of(int architecture, Fn fn) {
  return takes_bulk_copies(architecture) ? fn(bulk_copies{}) : fn(async_copies{});
}

}  // namespace kvant::inline v0::detail
