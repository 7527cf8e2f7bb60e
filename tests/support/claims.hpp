#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace support {

/// What a byte of a unit is for, in the order in which they lie.
enum class owner : std::uint8_t {
  nobody,
  mean,
  mean_scale,
  k_codes,
  v_codes,
  k_channels,
  v_channels,
  k_tokens,
  v_tokens
};

/// Marks the bits of a unit that the maps of one layout name.
class claims {
 public:
  explicit claims(int bytes) : bits_(static_cast<std::size_t>(bytes)), owners_(bits_.size()) {}
  void claim(int byte, int bit, int count, owner who) {
    for (int i = 0; i < count; ++i, ++bit) {
      int const b = byte + bit / 8;
      if (b < 0 || b >= static_cast<int>(bits_.size())) {
        ++outside;
        continue;
      }
      auto& seen = bits_[static_cast<std::size_t>(b)];
      auto& owned = owners_[static_cast<std::size_t>(b)];
      auto const mask = static_cast<std::uint8_t>(1u << bit % 8);
      if ((seen & mask) != 0 || (owned != owner::nobody && owned != who)) ++shared;
      seen = static_cast<std::uint8_t>(seen | mask);
      owned = who;
    }
  }
  [[nodiscard]] bool full(int byte) const { return bits_[static_cast<std::size_t>(byte)] == 0xff; }
  [[nodiscard]] bool untouched(int byte) const { return bits_[static_cast<std::size_t>(byte)] == 0; }
  [[nodiscard]] bool ascending(int begin, int end) const {
    return std::is_sorted(owners_.begin() + begin, owners_.begin() + end);
  }
  int outside = 0, shared = 0;

 private:
  std::vector<std::uint8_t> bits_;
  std::vector<owner> owners_;
};

}  // namespace support
