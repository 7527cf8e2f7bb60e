#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <kvant/layout/code_order.hpp>

#include "support/statistics.hpp"

namespace support {

template <int Bits>
std::vector<std::uint32_t> random_codes(int count, std::uint64_t seed) {
  generator random(seed);
  std::vector<std::uint32_t> codes;
  for (int i = 0; i < count; ++i) codes.push_back(static_cast<std::uint32_t>(random.bits() >> (64 - Bits)));
  return codes;
}

/// The words of one packing unit.
template <int Bits, kvant::side S>
std::array<std::uint32_t, kvant::code_order<Bits, S>::words> packed(std::vector<std::uint32_t> const& codes) {
  std::array<std::uint32_t, kvant::code_order<Bits, S>::words> word{};
  kvant::pack_unit<Bits, S>([&](int n) { return codes[static_cast<std::size_t>(n)]; }, word.data());
  return word;
}

}  // namespace support
