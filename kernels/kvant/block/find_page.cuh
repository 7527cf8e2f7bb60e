#pragma once

#include <cstdint>

namespace kvant::inline v0::detail {

struct page_place {
  std::int32_t sequence = -1, within = 0;  // within: page of those that the sequence has
};

/// Which sequence has page `index` when the pages of all are numbered through, pages(i) of sequence i; sequence -1 where
/// there are fewer. By all lanes of a warp.
template <class Pages>
__device__ __forceinline__ page_place find_page(std::int32_t index, std::int32_t sequences, int lane, Pages pages) {
  if (sequences == 1) return index < pages(0) ? page_place{0, index} : page_place{};
#pragma unroll 1
  for (std::int32_t base = 0; base < sequences; base += 32) {
    std::int32_t const n = base + lane < sequences ? pages(base + lane) : 0;
    if (!__any_sync(~0u, n > 0)) continue;
    std::int32_t sum = n;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      std::int32_t const before = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += before;
    }
    unsigned const beyond = __ballot_sync(~0u, sum > index);
    if (beyond != 0) {
      int const holder = __ffs(static_cast<int>(beyond)) - 1;
      return {base + holder, index - __shfl_sync(~0u, sum - n, holder)};
    }
    index -= __shfl_sync(~0u, sum, 31);
  }
  return {};
}

}  // namespace kvant::inline v0::detail
