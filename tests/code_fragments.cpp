#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <kvant/layout/code_order.hpp>

#include "support/catch.hpp"
#include "support/packed_codes.hpp"

// What kernels take from the words of codes, held against the fragments of the PTX manual and the recipes that unpack
// them; the maps themselves are tested in code_maps.cpp.

namespace {

using kvant::code_cell;
using kvant::code_order;
using kvant::side;

template <int Bits, side S>
struct width {
  using order = code_order<Bits, S>;
  static constexpr side of = S;
};

/// Element e of a lane of the A operand of mma.m16n8k16 with 16-bit elements, by the tables of the PTX manual.
constexpr code_cell a_element(int lane, int e) {  // {row, column}
  int const group = lane / 4, thread = lane % 4;
  bool const low_rows = e < 2 || (e >= 4 && e < 6);
  return {low_rows ? group : group + 8, thread * 2 + (e & 1) + (e < 4 ? 0 : 8)};
}
/// Element e of a lane of the A operand of mma.m16n8k256 with 1-bit elements; k128 has the first half of them.
constexpr code_cell bit_a_element(int lane, int e) {
  int const group = lane / 4, thread = lane % 4;
  bool const low_rows = e < 32 || (e >= 64 && e < 96);
  return {low_rows ? group : group + 8, thread * 32 + (e & 31) + (e < 64 ? 0 : 128)};
}
/// The nibble of its word that half j of register i takes.
constexpr int nibble(int i, int j) { return 4 * (i & 1) + 2 * (i >> 1) + j; }

/// The cell of row r and column k of the fragment of token block b and channel block s.
template <side S>
constexpr code_cell in_tile(code_cell rk, int b, int s) {
  auto const [r, k] = rk;
  return S == side::key ? code_cell{16 * b + r, 16 * s + k} : code_cell{16 * b + k, 16 * s + r};
}

template <int Bits, side S>
int fragment_faults(int tokens, int dim) {
  using order = code_order<Bits, S>;
  constexpr int fragments = order::codes / 8;  // in a unit
  int faults = 0;
  for (int b = 0; b < tokens / 16; ++b)
    for (int s = 0; s < dim / 16; ++s)
      for (int lane = 0; lane < 32; ++lane)
        for (int e = 0; e < 8; ++e) {
          int const f = b * (dim / 16) + s, n = nibble(e / 2, e % 2);
          code_cell const expected = in_tile<S>(a_element(lane, e), b, s);
          faults += order::cell(f / fragments, lane, f % fragments * 8 + n, tokens, dim) == expected ? 0 : 1;
        }
  return faults;
}

}  // namespace

TEST_CASE("words of 3, 4 and 8 bits are A operands of m16n8k16", "[layout]") {
  auto const tokens = GENERATE(32, 64, 128);
  auto const dim = GENERATE(64, 96, 128, 192, 256, 576);
  CAPTURE(tokens, dim);
  REQUIRE(fragment_faults<4, side::key>(tokens, dim) == 0);
  REQUIRE(fragment_faults<4, side::value>(tokens, dim) == 0);
  REQUIRE(fragment_faults<3, side::key>(tokens, dim) == 0);
  REQUIRE(fragment_faults<3, side::value>(tokens, dim) == 0);
  REQUIRE(fragment_faults<8, side::key>(tokens, dim) == 0);
  REQUIRE(fragment_faults<8, side::value>(tokens, dim) == 0);
}

TEST_CASE("words of 2 bits hold a register of m16n8k16 in each pair", "[layout]") {
  auto const dim = GENERATE(64, 96, 128, 256);
  int const tokens = 64, octets = dim / 8;
  int keys = 0, values = 0;
  for (int b = 0; b < tokens / 16; ++b)
    for (int s = 0; s < dim / 16; ++s)
      for (int lane = 0; lane < 32; ++lane)
        for (int e = 0; e < 8; ++e) {
          int const i = e / 2, j = e % 2, rows = i & 1, columns = i >> 1;
          int const key_linear = b * octets + 2 * s + columns, value_linear = b * octets + 2 * s + rows;
          code_cell const key =
              code_order<2, side::key>::cell(2 * (key_linear / 8) + rows, lane, key_linear % 8 + 8 * j, tokens, dim);
          code_cell const value = code_order<2, side::value>::cell(2 * (value_linear / 8) + columns, lane,
                                                                   value_linear % 8 + 8 * j, tokens, dim);
          keys += key == in_tile<side::key>(a_element(lane, e), b, s) ? 0 : 1;
          values += value == in_tile<side::value>(a_element(lane, e), b, s) ? 0 : 1;
        }
  CAPTURE(dim);
  REQUIRE(keys == 0);
  REQUIRE(values == 0);
}

TEST_CASE("1-bit keys of whole 128s are operands of the bit mma", "[layout]") {
  auto const dim = GENERATE(128, 256, 512);
  auto const tokens = GENERATE(32, 64);
  int const registers = dim == 128 ? 2 : 4, steps = dim == 128 ? 1 : dim / 256;  // m16n8k128, or k256 in steps
  int faults = 0;
  for (int block = 0; block < tokens / 16; ++block)
    for (int step = 0; step < steps; ++step)
      for (int i = 0; i < registers; ++i)
        for (int lane = 0; lane < 32; ++lane)
          for (int n = 0; n < 32; ++n) {
            auto const [row, k] = bit_a_element(lane, 32 * i + n);
            code_cell const got =
                code_order<1, side::key>::cell((block * steps + step) * registers + i, lane, n, tokens, dim);
            faults += got == code_cell{16 * block + row, 256 * step + k} ? 0 : 1;
          }
  CAPTURE(dim, tokens);
  REQUIRE(faults == 0);
}

TEST_CASE("1-bit keys of a further 64 are two words of each of two rows", "[layout]") {
  auto const dim = GENERATE(64, 80, 192, 320);
  int const tokens = 64, base = dim / 128 * 128, first = tokens * base / 1024;
  int faults = 0;
  for (int b = 0; b < tokens / 16; ++b)
    for (int lane = 0; lane < 32; ++lane)
      for (int n = 0; n < 32; ++n) {
        int const group = lane / 4, thread = lane % 4;
        code_cell const expected{16 * b + group + (thread < 2 ? 0 : 8), base + 32 * (thread % 2) + n};
        faults += code_order<1, side::key>::cell(first + b, lane, n, tokens, dim) == expected ? 0 : 1;
      }
  CAPTURE(dim);
  REQUIRE(faults == 0);
}

TEST_CASE("1-bit keys beyond whole 64s are registers of m16n8k16", "[layout]") {
  auto const dim = GENERATE(16, 48, 80, 112, 160, 224);
  int const tokens = 64, base = dim / 64 * 64, tail = (dim - base) / 16, first = tokens * base / 1024;
  int faults = 0;
  for (int s = 0; s < tail; ++s)
    for (int b = 0; b < tokens / 16; ++b)
      for (int lane = 0; lane < 32; ++lane)
        for (int e = 0; e < 8; ++e) {
          code_cell const expected = in_tile<side::key>(a_element(lane, e), b, base / 16 + s);
          code_cell const got =
              code_order<1, side::key>::cell(first + s, lane, 16 * (e % 2) + 4 * b + e / 2, tokens, dim);
          faults += got == expected ? 0 : 1;
        }
  CAPTURE(dim);
  REQUIRE(faults == 0);
}

TEST_CASE("4-bit signs are where two masks find them", "[layout]") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    auto const codes = support::random_codes<4>(8, seed);
    auto const word = support::packed<4, side::key>(codes)[0];
    std::uint32_t const low = word & 0x80808080u, high = (word << 4) & 0x80808080u;
    int faults = 0;
    for (int c = 0; c < 8; ++c) {
      std::uint32_t const code = codes[static_cast<std::size_t>(c)];
      faults += ((word & 0x77777777u) >> (4 * c) & 7u) == (code & 7u) ? 0 : 1;
      faults += ((c < 4 ? low : high) >> (8 * (c % 4) + 7)) % 2 == code >> 3 ? 0 : 1;
    }
    REQUIRE(faults == 0);
    REQUIRE(support::packed<4, side::value>(codes)[0] == word);
  }
}

TEST_CASE("the fourth fragment of 3-bit words is their spare top bits", "[layout]") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    auto const codes = support::random_codes<3>(32, seed);
    auto const word = support::packed<3, side::key>(codes);
    std::uint32_t spare = 0;
    int faults = 0;
    for (int k = 0; k < 3; ++k) spare |= (word[static_cast<std::size_t>(k)] >> 3 & 0x11111111u) << k;
    for (int f = 0; f < 4; ++f) {
      std::uint32_t const nibbles = f < 3 ? word[static_cast<std::size_t>(f)] & 0x77777777u : spare;
      for (int n = 0; n < 8; ++n)
        faults += (nibbles >> (4 * n) & 15u) == codes[static_cast<std::size_t>(8 * f + n)] ? 0 : 1;
    }
    REQUIRE(faults == 0);
    REQUIRE(support::packed<3, side::value>(codes) == word);
  }
}

TEMPLATE_TEST_CASE("one mask of a 2-bit word brings two neighbours of the summed index", "[layout]",
                   (width<2, side::key>), (width<2, side::value>)) {
  using order = typename TestType::order;
  auto const codes = support::random_codes<2>(16, 7);
  auto const word = support::packed<2, TestType::of>(codes)[0];
  int faults = 0;
  for (int unit = 0; unit < 16; ++unit)
    for (int lane = 0; lane < 32; ++lane)
      for (int f = 0; f < 8; ++f) {  // five pairs in place, three after one shift by 10
        std::uint32_t const shifted = f < 5 ? word : word >> 10;
        int const i = f < 5 ? f : f - 5;
        std::uint32_t const pair = shifted & (0x00030003u << (2 * i));
        code_cell const lo = order::cell(unit, lane, f, 64, 128), hi = order::cell(unit, lane, f + 8, 64, 128);
        code_cell const next =
            TestType::of == side::key ? code_cell{lo.token, lo.channel + 1} : code_cell{lo.token + 1, lo.channel};
        faults += hi == next && (TestType::of == side::key ? lo.channel : lo.token) % 8 == 2 * (lane % 4) ? 0 : 1;
        faults += (pair & 0xffffu) == codes[static_cast<std::size_t>(f)] << (2 * i) ? 0 : 1;
        faults += pair >> 16 == codes[static_cast<std::size_t>(f + 8)] << (2 * i) ? 0 : 1;
      }
  REQUIRE(faults == 0);
}

TEST_CASE("one mask of a 1-bit value word is a register of the int8 mma", "[layout]") {
  using order = code_order<1, side::value>;
  auto const dim = GENERATE(64, 80, 128);
  auto const codes = support::random_codes<1>(32, 3);
  auto const word = support::packed<1, side::value>(codes)[0];
  int faults = 0;
  for (int unit = 0; unit < 64 * dim / 1024; ++unit)
    for (int f = 0; f < 8; ++f)
      for (int g = 0; g < 8; ++g) {
        std::uint32_t const masked = word & (0x01010101u << f);
        int const linear = 8 * unit + f, b = linear / (dim / 8), o = linear % (dim / 8);
        std::uint32_t tokens = 0;  // the 16 places of the summed index hold the 16 tokens of block b
        for (int t = 0; t < 4; ++t)
          for (int y = 0; y < 4; ++y) {
            code_cell const c = order::cell(unit, 4 * g + t, 8 * y + f, 64, dim);
            faults += c.channel == 8 * o + g && c.token / 16 == b ? 0 : 1;
            faults += (masked >> (8 * y) & 0xffu) == codes[static_cast<std::size_t>(8 * y + f)] << f ? 0 : 1;
            tokens |= 1u << (c.token % 16);
          }
        faults += tokens == 0xffffu ? 0 : 1;
      }
  CAPTURE(dim);
  REQUIRE(faults == 0);
}

TEST_CASE("each word of an 8-bit fragment is a register of the int8 mma", "[layout]") {
  int faults = 0;
  for (int lane = 0; lane < 32; ++lane)
    for (int n = 0; n < 8; ++n) {
      auto const at = code_order<8, side::key>::bit(n, 0);
      code_cell const key = code_order<8, side::key>::cell(0, lane, n, 64, 64);
      code_cell const value = code_order<8, side::value>::cell(0, lane, n, 64, 64);
      faults += key.token == lane / 4 + 8 * at.word && value.channel == lane / 4 + 8 * at.word ? 0 : 1;
      faults += at.word == n / 4 && at.bit == 8 * (n % 4) ? 0 : 1;
    }
  REQUIRE(faults == 0);
}
