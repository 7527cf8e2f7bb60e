#pragma once

#include <cstddef>
#include <cstdint>

#include <kvant/block/queries.cuh>
#include <kvant/warp/exact_tile.cuh>

namespace kvant::inline v0::detail {

/// Sixteen tokens of a page of exact rows.
template <class T, int Dim, int Columns>
struct exact_page_tile {
  using state = softmax_state<Dim, Columns>;
  static constexpr int tokens = exact_tile<T, Dim, Columns>::tokens;
  static constexpr bool has_offset = false;
  static constexpr float out_unit = 1.f;
  exact_tile<T, Dim, Columns> rows;

  template <class Key>
  __device__ __forceinline__ exact_page_tile(query_storage<Key, Dim, Columns> const& storage, float scale,
                                             std::uint32_t, int lane)
      : rows(storage, scale, lane) {}
  /// The first `masked` rows are not part of the page.
  __device__ __forceinline__ void attend(state& st, std::byte const* keys, std::byte const* values, int masked) const {
    rows.attend(
        st, tokens, [&](side which, int i) { return (which == side::key ? keys : values) + i * Dim * 2; },
        [&](int i, int) { return i >= masked; });
  }
  __device__ __forceinline__ void finish(state&) const {}
  /// Where the channel of an output row lies.
  static __device__ __forceinline__ int position(int row) { return exact_channel(row); }
};

}  // namespace kvant::inline v0::detail
