#pragma once

namespace kvant::inline v0::tuning {

/// The shape of the quantizer's launches: CTAs of 128 threads (page_quantizer::threads), each coding unit after unit
/// while the next one's rows are on their way, so no more of them than run at once on an H200. Four of them an SM: more
/// gain nothing on long prompts and start later.
struct quantize {
  static constexpr int ctas_per_sm = 4, most_ctas = 132 * ctas_per_sm;
};

}  // namespace kvant::inline v0::tuning
