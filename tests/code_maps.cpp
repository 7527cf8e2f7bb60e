#include <array>
#include <cstdint>
#include <vector>

#include <kvant/format/policies.hpp>
#include <kvant/layout/code_order.hpp>
#include <kvant/layout/page_layout.hpp>

#include "support/catch.hpp"
#include "support/packed_codes.hpp"

namespace {

using kvant::code_cell;
using kvant::code_order;
using kvant::code_slot;
using kvant::side;

template <int Bits, side S>
struct width {
  using order = code_order<Bits, S>;
  static constexpr int bits = Bits, unit_codes = 32 * order::codes;
  static constexpr side of = S;
};

/// Any format of Bits bits that takes every head size.
template <int Bits>
struct unrotated {
  using type = kvant::kivi_value<Bits, 32>;
};
template <>
struct unrotated<1> {
  using type = kvant::q1_0<128>;
};

/// Codes of a tile for which cell() and slot() are not each other's inverse, or leave the tile.
template <class W>
constexpr int map_faults(int tokens, int dim) {
  using order = typename W::order;
  int const units = tokens * dim / W::unit_codes;
  int faults = units * W::unit_codes == tokens * dim ? 0 : 1;
  for (int unit = 0; unit < units; ++unit)
    for (int lane = 0; lane < 32; ++lane)
      for (int n = 0; n < order::codes; ++n) {
        code_cell const c = order::cell(unit, lane, n, tokens, dim);
        bool const inside = c.token >= 0 && c.token < tokens && c.channel >= 0 && c.channel < dim;
        faults += inside && order::slot(c.token, c.channel, tokens, dim) == code_slot{unit, lane, n} ? 0 : 1;
      }
  return faults;
}

/// Bits of a packing unit that belong to no code or to several.
template <class W>
constexpr int bit_faults() {
  using order = typename W::order;
  std::uint32_t seen[order::words] = {};
  int faults = order::codes * W::bits == 32 * order::words ? 0 : 1;
  for (int n = 0; n < order::codes; ++n)
    for (int k = 0; k < W::bits; ++k) {
      auto const at = order::bit(n, k);
      if (at.word < 0 || at.word >= order::words || at.bit < 0 || at.bit >= 32) return 1;
      faults += (seen[at.word] >> at.bit & 1u) != 0 ? 1 : 0;
      seen[at.word] |= 1u << at.bit;
    }
  return faults;
}

template <int Bits>
constexpr bool holds_in_constants() {
  using keys = width<Bits, side::key>;
  using values = width<Bits, side::value>;
  return bit_faults<keys>() == 0 && bit_faults<values>() == 0 && map_faults<keys>(64, 16) == 0 &&
         map_faults<values>(64, 16) == 0 && map_faults<keys>(64, 48) == 0 && map_faults<values>(64, 48) == 0;
}
static_assert(holds_in_constants<1>() && holds_in_constants<2>() && holds_in_constants<3>());
static_assert(holds_in_constants<4>() && holds_in_constants<8>());

constexpr std::uint32_t packed_constant() {
  std::uint32_t word = 0;
  kvant::pack_unit<4, side::key>([](int n) { return static_cast<std::uint32_t>(n); }, &word);
  return word;
}
static_assert(packed_constant() == 0x76543210u);  // magnitudes 0..7, no sign

}  // namespace

#define KVANT_ALL_WIDTHS                                                                              \
  (width<1, side::key>), (width<1, side::value>), (width<2, side::key>), (width<2, side::value>),     \
      (width<3, side::key>), (width<3, side::value>), (width<4, side::key>), (width<4, side::value>), \
      (width<8, side::key>), (width<8, side::value>)

TEMPLATE_TEST_CASE("cells and slots of codes are each other's inverse", "[layout]", KVANT_ALL_WIDTHS) {
  using order = typename TestType::order;
  auto const tokens = GENERATE(32, 64, 128);
  int sizes = 0;
  for (int dim = 16; dim <= 1024; dim += 16) {
    CAPTURE(TestType::bits, tokens, dim);
    if (tokens != 32) REQUIRE(order::fills_words(tokens, dim));
    if (!order::fills_words(tokens, dim)) continue;
    REQUIRE(map_faults<TestType>(tokens, dim) == 0);
    ++sizes;
  }
  REQUIRE(sizes >= (tokens == 32 ? 16 : 64));  // at 32 tokens at least every multiple of 64 fills words
  REQUIRE_FALSE(order::fills_words(tokens, 8));
  REQUIRE_FALSE(order::fills_words(8, 64));
}

TEMPLATE_TEST_CASE("every bit of a tile's codes is one bit of one code", "[layout]", KVANT_ALL_WIDTHS) {
  using format = typename unrotated<TestType::bits>::type;
  constexpr side s = TestType::of;
  for (int dim = 16; dim <= 1024; dim += 16) {
    kvant::page_layout<format, format> const layout(
        {.kv_heads = 1, .key_dim = dim, .value_dim = dim, .page_tokens = 64});
    int const bytes = layout.tile_tokens * dim / 8 * TestType::bits;
    std::vector<std::uint8_t> seen(static_cast<std::size_t>(layout.unit_bytes()));
    int outside = 0, shared = 0, unused = 0;
    for (int token = 0; token < 64; ++token)
      for (int channel = 0; channel < dim; ++channel)
        for (int k = 0; k < TestType::bits; ++k) {
          auto const at = layout.template code_bit<s>(token, channel, k);
          int const begin = layout.template codes_offset<s>(token / layout.tile_tokens);
          if (at.byte < begin || at.byte >= begin + bytes || at.bit < 0 || at.bit > 7) {
            ++outside;
            continue;
          }
          auto& byte = seen[static_cast<std::size_t>(at.byte)];
          shared += byte >> at.bit & 1;
          byte = static_cast<std::uint8_t>(byte | 1u << at.bit);
        }
    for (int tile = 0; tile < layout.tiles(); ++tile)
      for (int i = 0; i < bytes; ++i)
        unused += seen[static_cast<std::size_t>(layout.template codes_offset<s>(tile) + i)] == 0xff ? 0 : 1;
    CAPTURE(TestType::bits, dim, layout.tile_tokens);
    REQUIRE(outside == 0);
    REQUIRE(shared == 0);
    REQUIRE(unused == 0);
  }
}

TEMPLATE_TEST_CASE("units are packed and unpacked as the map of bits says", "[layout]", KVANT_ALL_WIDTHS) {
  using order = typename TestType::order;
  constexpr int bits = TestType::bits;
  constexpr side s = TestType::of;
  std::vector<std::vector<std::uint32_t>> inputs;
  for (int n = 0; n < order::codes; ++n)  // every code by itself, among zeros and among ones
    for (std::uint32_t code = 0; code < 1u << bits; ++code)
      for (std::uint32_t const rest : {0u, (1u << bits) - 1}) {
        inputs.emplace_back(static_cast<std::size_t>(order::codes), rest);
        inputs.back()[static_cast<std::size_t>(n)] = code;
      }
  for (std::uint64_t seed = 1; seed <= 100; ++seed) inputs.push_back(support::random_codes<bits>(order::codes, seed));

  int words = 0, codes = 0;
  for (auto const& in : inputs) {
    std::array<std::uint32_t, order::words> by_bit{};
    for (int n = 0; n < order::codes; ++n)
      for (int k = 0; k < bits; ++k) {
        auto const at = order::bit(n, k);
        by_bit[static_cast<std::size_t>(at.word)] |= (in[static_cast<std::size_t>(n)] >> k & 1u) << at.bit;
      }
    words += support::packed<bits, s>(in) == by_bit ? 0 : 1;
    std::vector<std::uint32_t> out(in.size(), ~0u);
    kvant::unpack_unit<bits, s>(by_bit.data(), [&](int n, std::uint32_t c) { out[static_cast<std::size_t>(n)] = c; });
    codes += out == in ? 0 : 1;
  }
  REQUIRE(words == 0);
  REQUIRE(codes == 0);
}

TEST_CASE("words of a lane lie in chunks of 16 bytes and then in planes", "[layout]") {
  for (int words = 1; words <= 70; ++words) {
    CAPTURE(words);
    int next = 0, faults = 0;  // memory order: lane after lane within a chunk or a plane
    for (int first = 0; first < words; first += first + 4 <= words ? 4 : 1)
      for (int lane = 0; lane < 32; ++lane)
        for (int w = first; w < first + (first + 4 <= words ? 4 : 1); ++w, next += 4)
          faults += kvant::word_byte(w, lane, words) == next ? 0 : 1;
    REQUIRE(faults == 0);
    REQUIRE(next == words * 128);
  }
  static_assert(kvant::word_byte(5, 3, 8) == (1 * 32 + 3) * 16 + 4 && kvant::word_byte(9, 3, 10) == 1024 + 128 + 12);
}
