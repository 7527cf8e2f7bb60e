#pragma once

#include <kvant/config.hpp>

namespace kvant::inline v0 {

/// Runs of Channels channels of one token share parameters; 0: the whole head. The last run may be shorter.
template <int Channels = 0>
struct per_token {
  static_assert(Channels >= 0 && Channels % 16 == 0,
                "per_token<Channels>: Channels must be a multiple of 16 (0: the whole head)");
  static constexpr bool along_tokens = false;
  static constexpr int group_tokens = 1;
  [[nodiscard]] KVANT_HD static constexpr int group_channels(int dim) {
    return Channels == 0 || Channels > dim ? dim : Channels;
  }
  /// Groups in one token of a head.
  [[nodiscard]] KVANT_HD static constexpr int groups(int dim) {
    return (dim + group_channels(dim) - 1) / group_channels(dim);
  }
};

/// Runs of Tokens tokens of one channel share parameters. A group belongs to one sequence and one page.
template <int Tokens>
struct per_channel {
  static_assert(Tokens == 32 || Tokens == 64 || Tokens == 128, "per_channel<Tokens>: Tokens must be 32, 64 or 128");
  static constexpr bool along_tokens = true;
  static constexpr int group_tokens = Tokens;
  [[nodiscard]] KVANT_HD static constexpr int group_channels(int) { return 1; }
};

}  // namespace kvant::inline v0
