#pragma once

namespace kvant::inline v0::tuning {

/// A CTA of append copies this many vectors of 16 bytes of a new row's keys, and as many of its values.
struct append {
  static constexpr int threads = 128;
};

}  // namespace kvant::inline v0::tuning
