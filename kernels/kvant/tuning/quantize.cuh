#pragma once

namespace kvant::inline v0::tuning {

/// The shape of the quantizer's launches: CTAs of 256 threads (page_quantizer::threads), each coding unit after unit while
/// the next one's rows are on their way, so no more of them than run at once on an H200.
struct quantize {
  static constexpr int ctas_per_sm = 2, most_ctas = 132 * ctas_per_sm;
};

}  // namespace kvant::inline v0::tuning
