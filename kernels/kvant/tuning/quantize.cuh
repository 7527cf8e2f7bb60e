#pragma once

namespace kvant::inline v0::tuning {

/// The shape of the quantizer's launches: CTAs of 128 threads (page_quantizer::threads), each coding unit after unit
/// while the next one's rows are on their way, so no more of them than run at once on an H200.
template <int CtasPerSm, int LaunchedPerSm = CtasPerSm>
struct quantize {
  static constexpr int ctas_per_sm = CtasPerSm, most_ctas = 132 * LaunchedPerSm;
};
using commit = quantize<4>;
/// Centered keys, and rows that are to be converted, want registers.
template <bool Centered, bool Convert>
using prefill = quantize<Convert ? 4 : 5>;

}  // namespace kvant::inline v0::tuning
