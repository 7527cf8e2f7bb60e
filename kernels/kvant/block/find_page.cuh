#pragma once

#include <cstdint>

namespace kvant::inline v0::detail {

struct page_place {
  std::int32_t sequence = -1, within = 0;  // within: page of those that the sequence has
  std::int32_t total = 0;                  // pages of all sequences
};

/// Which sequence has page `index` when the pages of all are numbered through, pages(i) of sequence i; sequence -1
/// where there are fewer. By all lanes of a warp, two sequences a lane at a time.
template <class Pages>
__device__ __forceinline__ page_place find_page(std::int32_t index, std::int32_t sequences, int lane, Pages pages) {
  page_place place;
  if (sequences == 1) {
    place.total = pages(0);
    if (index < place.total) place.sequence = 0, place.within = index;
    return place;
  }
#pragma unroll 1
  for (std::int32_t base = 0; base < sequences; base += 64) {
    std::int32_t const i = base + 2 * lane;
    std::int32_t const first = i < sequences ? pages(i) : 0, second = i + 1 < sequences ? pages(i + 1) : 0;
    std::int32_t const mine = first + second;
    if (!__any_sync(~0u, mine > 0)) continue;
    std::int32_t sum = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      std::int32_t const before = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += before;
    }
    std::int32_t const here = index - place.total;  // within these sequences
    unsigned const beyond = __ballot_sync(~0u, sum > here);
    if (place.sequence < 0 && beyond != 0) {
      int const holder = __ffs(static_cast<int>(beyond)) - 1;
      std::int32_t const within = here - __shfl_sync(~0u, sum - mine, holder),
                         of_first = __shfl_sync(~0u, first, holder);
      bool const in_second = within >= of_first;
      place.sequence = base + 2 * holder + (in_second ? 1 : 0), place.within = within - (in_second ? of_first : 0);
    }
    place.total += __shfl_sync(~0u, sum, 31);
  }
  return place;
}

}  // namespace kvant::inline v0::detail
