#pragma once

#include <kvant/layout/page_layout.hpp>

namespace kvant::inline v0::tuning {

/// The shape of a decode CTA: one CTA an SM, its warps with private rings.
template <class Key, class Value, int Dim>
struct decode {
  static constexpr int warps = 16, stages = 3;
  static constexpr int ctas_per_sm = 1;
};

}  // namespace kvant::inline v0::tuning
