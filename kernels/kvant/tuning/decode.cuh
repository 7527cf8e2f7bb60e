#pragma once

#include <kvant/layout/page_layout.hpp>

namespace kvant::inline v0::tuning {

/// The rings of a decode CTA's 16 warps.
template <class Key, class Value, int Dim, int Columns>
struct decode {
  static constexpr page_layout<Key, Value> layout{page_shape{1, Dim, Dim, page_layout<Key, Value>::least_page_tokens}};
  static constexpr int stages_bytes = 16 * layout.tile_offset(1);  // a stage of every warp
  /// Of 227 KB, what the slots leave in which warps meet.
  static constexpr int stages = 3 * stages_bytes <= (Columns == 4 ? 160 : 144) * 1024 ? 3 : 2;
  /// Of these, how many are asked for before exact rows; with 8 columns there are no registers to ask for more between.
  static constexpr int early = Columns == 4 ? 1 : stages;
  /// Of the 99 KB that every device from sm_80 on lends, slots in the rings' memory. One is enough: 16 warps ask for 50
  /// to 70 KB, and those that wait leave the SM to the others.
  static constexpr int stages_in_99k = 2 * stages_bytes <= 69 * 1024 ? 2 : 1;
};

}  // namespace kvant::inline v0::tuning
