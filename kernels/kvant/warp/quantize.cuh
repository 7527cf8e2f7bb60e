#pragma once

#include <cstdint>

#include <kvant/format/lloyd_max.hpp>
#include <kvant/half.hpp>
#include <kvant/warp/ptx.cuh>
#include <kvant/warp/unpack.cuh>

namespace kvant::inline v0 {

/// What a codec gives the quantizer. A fragment is four registers of fp16 pairs in the order of a page's codes
/// (layout/code_order.hpp), coordinates of any size; search[i] says what register i is searched with:
///   fragments_per_unit, words_per_unit   as in fragment_unpack
///   code(z, search, one, l)  the fragment's codes in one word, every bit of it defined, and their levels as fp16 pairs
///                            in fragment order: level = entry / level_unit, exact, subnormal
///   pack(codes, words)       the words of a packing unit from the codes of its fragments
template <class Codec>
struct fragment_quantize;

/// The cell of |z| (which magnitude of the codebook is nearest) by arithmetic in fp16, for z of root mean square r:
///   v = ((slope a / r + offset)^2 + shift)^2 + start,  a = min(|z|, r * largest magnitude)
/// is less than 2048 and at least 1024, so its low bits count whole cells, rounded to nearest: the low byte of v is the
/// cell and 8 (at 3 bits 4), which keeps it there where v is rounded down at 0. The numbers are the least-squares fit to the cell boundaries, weighted by what moving a
/// boundary costs in D; against exact boundaries, the share of codes that move by one and the cost in D (normal z, fp16
/// arithmetic included):
///   4 bits: 0.8 % and 0.09 %;  3 bits: 0.1 % and 0.002 %
/// tests/cuda/quantizer_cells.cu recomputes all of it.
template <int Bits>
struct cell_search;

template <>
struct cell_search<4> {
  static constexpr float slope = 0.33693027f, offset = -1.0693359375f, shift = -3.8828125f, start = 1024.f;
};
template <>
struct cell_search<3> {
  static constexpr float slope = 0.5911948f, offset = -1.2607421875f, shift = -1.6376953125f, start = 1028.f;
};

/// What depends on the size of the coordinates, as pairs of halves.
struct search_pair {
  std::uint32_t slope, limit;
};

namespace detail {

KVANT_HD constexpr std::uint32_t half_pair(float x) { return 0x00010001u * std::uint32_t{half_bits_portable(x)}; }

/// The cells of two coordinates, in the low byte of each half.
template <int Bits>
__device__ __forceinline__ std::uint32_t cells(std::uint32_t z, search_pair by) {
  using search = cell_search<Bits>;
  constexpr std::uint32_t offset = half_pair(search::offset), shift = half_pair(search::shift),
                          start = half_pair(search::start);
  std::uint32_t v = ptx::fma2(ptx::min_magnitude2(z, by.limit), by.slope, offset);
  v = ptx::fma2(v, v, shift);
  return ptx::fma2(v, v, start);
}

/// Nibbles n = 0..7 of a word from the eight bytes of low:high, each less Base and then less than 16.
template <std::uint32_t Base>
__device__ __forceinline__ std::uint32_t nibbles(std::uint32_t low, std::uint32_t high) {
  constexpr std::uint32_t base = Base * 0x01010101u * 0x110u;
  return ptx::prmt(low * 0x110u - base, high * 0x110u - base, 0x7531);
}

/// Pairs of subnormal halves: magnitudes (bytes n = 0..7 of low:high) with the signs that the top bits of those of
/// low_signs:high_signs are, all other bits of which are zero.
__device__ __forceinline__ void signed_levels(std::uint32_t low, std::uint32_t high, std::uint32_t low_signs,
                                              std::uint32_t high_signs, std::uint32_t (&l)[4]) {
  l[0] = ptx::prmt(low, low_signs, 0x5140), l[2] = ptx::prmt(low, low_signs, 0x7362);
  l[1] = ptx::prmt(high, high_signs, 0x5140), l[3] = ptx::prmt(high, high_signs, 0x7362);
}

}  // namespace detail

template <>
struct fragment_quantize<lloyd_max<4>> {
  using table = lloyd_max<4>::table;
  static constexpr int fragments_per_unit = 1, words_per_unit = 1;
  static constexpr float level_unit = 16777216.f;

  static __device__ __forceinline__ std::uint32_t code(std::uint32_t const (&z)[4], search_pair const (&by)[4],
                                                       std::uint32_t one, std::uint32_t (&l)[4]) {
    constexpr std::uint32_t low =
        detail::four_bytes(table::magnitude(0), table::magnitude(1), table::magnitude(2), table::magnitude(3));
    constexpr std::uint32_t high =
        detail::four_bytes(table::magnitude(4), table::magnitude(5), table::magnitude(6), table::magnitude(7));
    std::uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = detail::cells<4>(z[i], by[i]);
    std::uint32_t const index = detail::nibbles<8>(ptx::prmt(v[0], v[2], 0x6420), ptx::prmt(v[1], v[3], 0x6420));
    std::uint32_t const s0 = ptx::prmt(z[0], z[2], 0x7531) & 0x80808080u;
    std::uint32_t const s1 = ptx::prmt(z[1], z[3], 0x7531) & 0x80808080u;
    detail::signed_levels(ptx::prmt(low, high, index), ptx::prmt(low, high, detail::high_half_word(index, one)), s0, s1,
                          l);
    return index | s0 | s1 >> 4;
  }
  static __device__ __forceinline__ void pack(std::uint32_t const* codes, std::uint32_t* words) { words[0] = codes[0]; }
};

template <>
struct fragment_quantize<lloyd_max<3>> {
  using table = lloyd_max<3>::table;
  static constexpr int fragments_per_unit = 4, words_per_unit = 3;
  static constexpr float level_unit = 16777216.f;

  static __device__ __forceinline__ std::uint32_t code(std::uint32_t const (&z)[4], search_pair const (&by)[4],
                                                       std::uint32_t one, std::uint32_t (&l)[4]) {
    constexpr std::uint32_t low =
        detail::four_bytes(table::magnitude(3), table::magnitude(2), table::magnitude(1), table::magnitude(0));
    constexpr std::uint32_t high =
        detail::four_bytes(table::magnitude(0), table::magnitude(1), table::magnitude(2), table::magnitude(3));
    std::uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = detail::cells<3>(z[i], by[i]);
    // Bytes of all ones where z is negative: prmt's sign mode. They turn 4 + cell into 3 - cell.
    std::uint32_t const n0 = ptx::prmt(z[0], z[2], 0xfdb9), n1 = ptx::prmt(z[1], z[3], 0xfdb9);
    std::uint32_t const codes = detail::nibbles<0>((ptx::prmt(v[0], v[2], 0x6420) ^ n0) & 0x07070707u,
                                                   (ptx::prmt(v[1], v[3], 0x6420) ^ n1) & 0x07070707u);
    detail::signed_levels(ptx::prmt(low, high, codes), ptx::prmt(low, high, detail::high_half_word(codes, one)),
                          n0 & 0x80808080u, n1 & 0x80808080u, l);
    return codes;
  }
  static __device__ __forceinline__ void pack(std::uint32_t const* codes, std::uint32_t* words) {
#pragma unroll
    for (int k = 0; k < 3; ++k) words[k] = codes[k] | ((codes[3] << (3 - k)) & 0x88888888u);
  }
};

}  // namespace kvant::inline v0
