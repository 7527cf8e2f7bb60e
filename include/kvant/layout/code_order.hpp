#pragma once

#include <cstdint>
#include <utility>

#include <kvant/config.hpp>
#include <kvant/format/scale.hpp>

namespace kvant::inline v0 {

/// One code of a tile. The channel is the coordinate that is coded: a slot where the format rotates.
struct code_cell {
  int token = 0, channel = 0;
  KVANT_HD friend constexpr bool operator==(code_cell, code_cell) = default;
};
/// The n-th code of a lane's packing unit: the least run of 32-bit words that holds whole codes.
struct code_slot {
  int unit = 0, lane = 0, n = 0;
  KVANT_HD friend constexpr bool operator==(code_slot, code_slot) = default;
};
/// A bit of a packing unit.
struct unit_bit {
  int word = 0, bit = 0;
  KVANT_HD friend constexpr bool operator==(unit_bit, unit_bit) = default;
};

/// The order of codes in a tile: that of tensor-core fragments, so that a lane's 16-byte load brings the operands of its
/// own mma and no value crosses lanes. Lane 4g + t, g = 0..7, t = 0..3.
///
/// A fragment is the A operand of one m16n8k16: register i (0..3), half j (0, 1) is code n = 4(i & 1) + 2(i >> 1) + j.
///   keys, tokens as rows:    token 16b + g + 8(i & 1),           channel 16s + 2t + j + 8(i >> 1)
///   values, channels as rows: channel 16s + g + 8(i & 1),        token 16b + 2t + j + 8(i >> 1)
///   fragment number f = b * (dim / 16) + s
/// The k index of an mma is summed, so a kernel may use any mma if it lays q (or the probabilities) out to match.
/// Narrower codes are ordered for unpacking by masks; see the specializations. `tokens` (of a tile) is a multiple of 16.
template <int Bits, side S>
struct code_order;

namespace detail {

template <side S>
struct fragment_order {
  KVANT_HD static constexpr code_cell cell(int fragment, int lane, int n, int dim) {
    int const g = lane >> 2, t = lane & 3, i0 = n >> 2, i1 = (n >> 1) & 1, j = n & 1;
    int const b = fragment / (dim / 16), s = fragment % (dim / 16);
    if (S == side::key) return {16 * b + g + 8 * i0, 16 * s + 2 * t + j + 8 * i1};
    return {16 * b + 2 * t + j + 8 * i1, 16 * s + g + 8 * i0};
  }
  /// code_slot{fragment, lane, n}.
  KVANT_HD static constexpr code_slot slot(int token, int channel, int dim) {
    int const fragment = token / 16 * (dim / 16) + channel / 16;
    int const row = (S == side::key ? token : channel) & 15, k = (S == side::key ? channel : token) & 15;
    return {fragment, 4 * (row & 7) + ((k >> 1) & 3), 4 * (row >> 3) + 2 * (k >> 3) + (k & 1)};
  }
};

}  // namespace detail

/// 4 bits: a word is a fragment. Bits 0..2 of a code (the magnitude) lie in nibble n; bit 3 (the sign) of codes 0..3 is
/// bit 8n + 7 of the word, of codes 4..7 bit 8(n - 4) + 3, so that two masks find the sign bytes of each half.
template <side S>
struct code_order<4, S> {
  static constexpr int codes = 8, words = 1;
  KVANT_HD static constexpr bool fills_words(int tokens, int dim) { return tokens % 16 == 0 && dim % 16 == 0; }
  KVANT_HD static constexpr code_cell cell(int unit, int lane, int n, int, int dim) {
    return detail::fragment_order<S>::cell(unit, lane, n, dim);
  }
  KVANT_HD static constexpr code_slot slot(int token, int channel, int, int dim) {
    return detail::fragment_order<S>::slot(token, channel, dim);
  }
  KVANT_HD static constexpr unit_bit bit(int n, int k) {
    return {0, k < 3 ? 4 * n + k : n < 4 ? 8 * n + 7 : 8 * (n - 4) + 3};
  }
};

/// 3 bits: a unit is four fragments in three words. Fragments 0..2 have a word each, a code in the low bits of nibble n;
/// bit k of the fourth fragment's code n is the spare top bit of nibble n in word k.
template <side S>
struct code_order<3, S> {
  static constexpr int codes = 32, words = 3;
  KVANT_HD static constexpr bool fills_words(int tokens, int dim) {
    return tokens % 16 == 0 && dim % 16 == 0 && tokens / 16 * (dim / 16) % 4 == 0;
  }
  KVANT_HD static constexpr code_cell cell(int unit, int lane, int n, int, int dim) {
    return detail::fragment_order<S>::cell(4 * unit + (n >> 3), lane, n & 7, dim);
  }
  KVANT_HD static constexpr code_slot slot(int token, int channel, int, int dim) {
    code_slot const f = detail::fragment_order<S>::slot(token, channel, dim);
    return {f.unit / 4, f.lane, 8 * (f.unit % 4) + f.n};
  }
  KVANT_HD static constexpr unit_bit bit(int n, int k) {
    return n < 24 ? unit_bit{n >> 3, 4 * (n & 7) + k} : unit_bit{k, 4 * (n & 7) + 3};
  }
};

/// 8 bits: a unit is a fragment in two words, bytes in order of n.
template <side S>
struct code_order<8, S> {
  static constexpr int codes = 8, words = 2;
  KVANT_HD static constexpr bool fills_words(int tokens, int dim) { return tokens % 16 == 0 && dim % 16 == 0; }
  KVANT_HD static constexpr code_cell cell(int unit, int lane, int n, int, int dim) {
    return detail::fragment_order<S>::cell(unit, lane, n, dim);
  }
  KVANT_HD static constexpr code_slot slot(int token, int channel, int, int dim) {
    return detail::fragment_order<S>::slot(token, channel, dim);
  }
  KVANT_HD static constexpr unit_bit bit(int n, int k) { return {n >> 2, 8 * (n & 3) + k}; }
};

/// 2 bits: a word is eight pairs; pair f is bits 2f (j = 0) and 16 + 2f (j = 1), so one mask makes it a pair of fp16
/// subnormals. A word keeps to eight tokens (keys: g + 8r) or to one half of the tokens (values: 2t + j + 8r); pair f of
/// word 2v + r is octet o of token block b, 8v + f = b * (dim / 8) + o. Keys: channel 8o + 2t + j; values: 8o + g.
template <side S>
struct code_order<2, S> {
  static constexpr int codes = 16, words = 1;
  KVANT_HD static constexpr bool fills_words(int tokens, int dim) {
    return tokens % 16 == 0 && dim % 16 == 0 && tokens / 16 * (dim / 8) % 8 == 0;
  }
  KVANT_HD static constexpr code_cell cell(int unit, int lane, int n, int, int dim) {
    int const g = lane >> 2, t = lane & 3, j = n >> 3, r = unit & 1, linear = 8 * (unit >> 1) + (n & 7);
    int const b = linear / (dim / 8), o = linear % (dim / 8);
    if (S == side::key) return {16 * b + g + 8 * r, 8 * o + 2 * t + j};
    return {16 * b + 2 * t + j + 8 * r, 8 * o + g};
  }
  KVANT_HD static constexpr code_slot slot(int token, int channel, int, int dim) {
    int const linear = token / 16 * (dim / 8) + channel / 8, r = (token >> 3) & 1;
    int const row = (S == side::key ? token : channel) & 7, k = (S == side::key ? channel : token) & 7;
    return {2 * (linear >> 3) + r, 4 * row + (k >> 1), (linear & 7) + 8 * (k & 1)};
  }
  KVANT_HD static constexpr unit_bit bit(int n, int k) { return {0, 2 * n + k}; }
};

/// 1 bit, keys: a word is 32 channels of one token, itself the operand of a bit mma (m16n8k128 and k256).
///   channels in whole 128s: word (u * (dim / 128) + c) * 2 + r: token 16u + g + 8r, channel 128c + 32t + n
///   a further 64:           then word u: token 16u + g + 8(t >> 1), channel base + 32(t & 1) + n
///   the last 16s:           then words of four blocks of 16 tokens: bit n = 16j + 4b + i is half j of register i of the
///                           fragment of block b
template <>
struct code_order<1, side::key> {
  static constexpr int codes = 32, words = 1;
  KVANT_HD static constexpr bool fills_words(int tokens, int dim) {
    return tokens % 16 == 0 && dim % 16 == 0 && (dim % 64 == 0 || tokens % 64 == 0);
  }
  KVANT_HD static constexpr code_cell cell(int unit, int lane, int n, int tokens, int dim) {
    int const g = lane >> 2, t = lane & 3, blocks = tokens / 16, wide = dim / 128, tail = dim % 64 / 16;
    if (unit < 2 * blocks * wide) {
      int const r = unit & 1, u = (unit >> 1) / wide, c = (unit >> 1) % wide;
      return {16 * u + g + 8 * r, 128 * c + 32 * t + n};
    }
    unit -= 2 * blocks * wide;
    if (dim % 128 >= 64) {
      if (unit < blocks) return {16 * unit + g + 8 * (t >> 1), 128 * wide + 32 * (t & 1) + n};
      unit -= blocks;
    }
    int const j = n >> 4, b = 4 * (unit / tail) + ((n >> 2) & 3), i = n & 3;
    return {16 * b + g + 8 * (i & 1), dim / 64 * 64 + 16 * (unit % tail) + 2 * t + j + 8 * (i >> 1)};
  }
  KVANT_HD static constexpr code_slot slot(int token, int channel, int tokens, int dim) {
    int const blocks = tokens / 16, wide = dim / 128, tail = dim % 64 / 16, u = token / 16, row = token & 15;
    if (channel < 128 * wide)
      return {(u * wide + channel / 128) * 2 + (row >> 3), 4 * (row & 7) + (channel % 128) / 32, channel % 32};
    int unit = 2 * blocks * wide;
    if (dim % 128 >= 64) {
      int const c = channel - 128 * wide;
      if (c < 64) return {unit + u, 4 * (row & 7) + 2 * (row >> 3) + c / 32, c % 32};
      unit += blocks;
    }
    int const c = channel - dim / 64 * 64, k = c & 15;
    return {unit + u / 4 * tail + c / 16, 4 * (row & 7) + ((k >> 1) & 3),
            16 * (k & 1) + 4 * (u & 3) + 2 * (k >> 3) + (row >> 3)};
  }
  KVANT_HD static constexpr unit_bit bit(int n, int) { return {0, n}; }
};

/// 1 bit, values: byte y of a word is token 16b + 2t + (y & 1) + 8(y >> 1); its bit f is channel 8o + g of octet o, so
/// that w & (0x01010101 << f) is a register of an int8 mma; 8v + f = b * (dim / 8) + o for word v.
template <>
struct code_order<1, side::value> {
  static constexpr int codes = 32, words = 1;
  KVANT_HD static constexpr bool fills_words(int tokens, int dim) {
    return tokens % 16 == 0 && dim % 16 == 0 && tokens / 16 * (dim / 8) % 8 == 0;
  }
  KVANT_HD static constexpr code_cell cell(int unit, int lane, int n, int, int dim) {
    int const g = lane >> 2, t = lane & 3, y = n >> 3, linear = 8 * unit + (n & 7);
    return {16 * (linear / (dim / 8)) + 2 * t + (y & 1) + 8 * (y >> 1), 8 * (linear % (dim / 8)) + g};
  }
  KVANT_HD static constexpr code_slot slot(int token, int channel, int, int dim) {
    int const linear = token / 16 * (dim / 8) + channel / 8, k = token & 15;
    return {linear >> 3, 4 * (channel & 7) + ((k >> 1) & 3), 8 * (2 * (k >> 3) + (k & 1)) + (linear & 7)};
  }
  KVANT_HD static constexpr unit_bit bit(int n, int) { return {0, n}; }
};

/// Byte of word w of a lane, `words` a lane in all: chunks of 16 bytes a lane, one conflict-free load each; the last
/// words % 4 follow as planes of 32 x 4 bytes.
[[nodiscard]] KVANT_HD constexpr int word_byte(int w, int lane, int words) {
  int const chunks = words / 4;
  return w < 4 * chunks ? (w / 4 * 32 + lane) * 16 + 4 * (w % 4) : chunks * 512 + (w - 4 * chunks) * 128 + 4 * lane;
}

namespace detail {

/// How many bits of code N, from bit K on, lie next to each other in one word.
template <class Order, int Bits, int N, int K>
KVANT_HD constexpr int run_length() {
  int length = 1;
  unit_bit const first = Order::bit(N, K);
  while (K + length < Bits && Order::bit(N, K + length) == unit_bit{first.word, first.bit + length}) ++length;
  return length;
}

template <class Order, int Bits, int N, int K>
KVANT_HD constexpr void put_bits(std::uint32_t code, std::uint32_t* word) {
  if constexpr (K < Bits) {
    constexpr int length = run_length<Order, Bits, N, K>();
    constexpr unit_bit at = Order::bit(N, K);
    word[at.word] |= (K + length == Bits && K == 0 ? code : (code >> K) & ((1u << length) - 1)) << at.bit;
    put_bits<Order, Bits, N, K + length>(code, word);
  }
}

template <class Order, int Bits, int N, int K>
KVANT_HD constexpr std::uint32_t take_bits(std::uint32_t const* word) {
  if constexpr (K < Bits) {
    constexpr int length = run_length<Order, Bits, N, K>();
    constexpr unit_bit at = Order::bit(N, K);
    return (((word[at.word] >> at.bit) & ((1u << length) - 1)) << K) | take_bits<Order, Bits, N, K + length>(word);
  } else {
    return 0;
  }
}

}  // namespace detail

/// The words of one packing unit from its codes; `code(n)` is the n-th, below 2^Bits.
template <int Bits, side S, class CodeOf>
KVANT_HD constexpr void pack_unit(CodeOf code, std::uint32_t* word) {  // -> [words]
  using order = code_order<Bits, S>;
  for (int w = 0; w < order::words; ++w) word[w] = 0;
  [&]<int... N>(std::integer_sequence<int, N...>) { (detail::put_bits<order, Bits, N, 0>(code(N), word), ...); }
  (std::make_integer_sequence<int, order::codes>{});
}

/// The codes of one packing unit from its words: take(n, code) for each.
template <int Bits, side S, class Take>
KVANT_HD constexpr void unpack_unit(std::uint32_t const* word, Take take) {  // [words]
  using order = code_order<Bits, S>;
  [&]<int... N>(std::integer_sequence<int, N...>) { (take(N, detail::take_bits<order, Bits, N, 0>(word)), ...); }
  (std::make_integer_sequence<int, order::codes>{});
}

}  // namespace kvant::inline v0
