#pragma once

#include <kvant/layout/page_layout.hpp>

namespace kvant::inline v0::tuning {

/// The rings of a decode CTA's 16 warps: as many stages as leave room for the slots in which warps meet.
template <class Key, class Value, int Dim, int Columns>
struct decode {
  static constexpr page_layout<Key, Value> layout{page_shape{1, Dim, Dim, page_layout<Key, Value>::least_page_tokens}};
  static constexpr int stages = 16 * 3 * layout.tile_offset(1) <= (Columns == 4 ? 160 : 144) * 1024 ? 3 : 2;
  /// Of these, how many are asked for before exact rows; with 8 columns there are no registers to ask for more between.
  static constexpr int early = Columns == 4 ? 1 : stages;
};

}  // namespace kvant::inline v0::tuning
