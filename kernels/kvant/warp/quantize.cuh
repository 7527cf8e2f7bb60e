#pragma once

#include <cstdint>
#include <utility>

#include <kvant/format/lloyd_max.hpp>
#include <kvant/half.hpp>
#include <kvant/warp/ptx.cuh>
#include <kvant/warp/unpack.cuh>

namespace kvant::inline v0 {

/// What a codec gives the quantizer. A fragment is four registers of fp16 pairs in the order of a page's codes
/// (layout/code_order.hpp), coordinates that were scaled to a root mean square of input_rms:
///   fragments_per_unit, words_per_unit   as in fragment_unpack
///   codes(z)                the fragment's codes in one word, every bit of it defined
///   levels(codes, one, l)   their levels as fp16 pairs in fragment order: level = entry * level_unit, exact
///   pack(codes, words)      the words of a packing unit from the codes of its fragments
template <class Codec>
struct fragment_quantize;

/// The cell of |z| (which magnitude of the codebook is nearest) as a polynomial evaluated in fp16, z of rms `rms`:
///   start + coefficient(1) a + ... + coefficient(degree) a^degree,  a = min(|z|, largest magnitude)
/// is less than 128 and at least 64, so its mantissa counts sixteenths: the cell lies in bits 4 to 6. The coefficients
/// are the least-squares fit to the cell boundaries, weighted by what moving a boundary costs in D; against exact
/// boundaries, the share of codes that move by one and the cost in D (normal z, fp16 arithmetic included):
///   4 bits: 0.16 % and 0.005 %;  3 bits: 0.06 % and less than 0.001 %
/// tests/cuda/quantizer_cells.cu recomputes all of it.
template <int Bits>
struct cell_polynomial;

template <>
struct cell_polynomial<4> {
  static constexpr int degree = 4;
  static constexpr float start = 64.f, rms = 4.f;
  KVANT_HD static constexpr float coefficient(int power) {
    return power == 1 ? 0.93017578125f : power == 2 ? 0.0189208984375f : power == 3 ? -0.0064697265625f : 2.4437904e-4f;
  }
};
/// Starts at 68, so that bit 6 is set: a code is the cell with that bit, all three inverted where z is negative.
template <>
struct cell_polynomial<3> {
  static constexpr int degree = 3;
  static constexpr float start = 68.f, rms = 4.f;
  KVANT_HD static constexpr float coefficient(int power) {
    return power == 1 ? 0.479248046875f : power == 2 ? 0.00592803955078125f : -0.0019102096557617188f;
  }
};

namespace detail {

KVANT_HD constexpr std::uint32_t half_pair(float x) { return 0x00010001u * std::uint32_t{half_bits_portable(x)}; }

/// The cells of two coordinates, in bits 4 to 6 of each half.
template <int Bits>
__device__ __forceinline__ std::uint32_t cells(std::uint32_t z) {
  using polynomial = cell_polynomial<Bits>;
  using table = codebook_table<Bits>;
  constexpr std::uint32_t limit = half_pair(static_cast<float>(table::largest) * table::step * polynomial::rms);
  std::uint32_t const a = ptx::min_magnitude2(z, limit);
  constexpr std::uint32_t top = half_pair(polynomial::coefficient(polynomial::degree));
  std::uint32_t v = top;
  [&]<int... I>(std::integer_sequence<int, I...>) {
    ((v = ptx::fma2(v, a,
                    std::integral_constant<std::uint32_t,
                                           half_pair(polynomial::coefficient(polynomial::degree - 1 - I))>::value)),
     ...);
  }
  (std::make_integer_sequence<int, polynomial::degree - 1>{});
  constexpr std::uint32_t start = half_pair(polynomial::start);
  return ptx::fma2(v, a, start);
}

/// Nibbles n = 0..7 of a word from bits 4 to 6 of the eight bytes of low:high, others zero.
__device__ __forceinline__ std::uint32_t nibbles(std::uint32_t low, std::uint32_t high) {
  return ptx::prmt(low * 17u, high * 17u, 0x7531);
}

}  // namespace detail

template <>
struct fragment_quantize<lloyd_max<4>> {
  using unpack = fragment_unpack<lloyd_max<4>>;
  static constexpr int fragments_per_unit = 1, words_per_unit = 1;
  static constexpr float input_rms = cell_polynomial<4>::rms;
  static constexpr float level_unit = 16777216.f;

  static __device__ __forceinline__ std::uint32_t codes(std::uint32_t const (&z)[4]) {
    std::uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = detail::cells<4>(z[i]);
    std::uint32_t const low = ptx::prmt(v[0], v[2], 0x6420) & 0x70707070u;
    std::uint32_t const high = ptx::prmt(v[1], v[3], 0x6420) & 0x70707070u;
    // Bytes of all ones where z is negative: prmt's sign mode.
    std::uint32_t const w = detail::nibbles(low, high) | (ptx::prmt(z[0], z[2], 0xfdb9) & 0x80808080u);
    return w | (ptx::prmt(z[1], z[3], 0xfdb9) & 0x08080808u);
  }
  static __device__ __forceinline__ void levels(std::uint32_t codes, std::uint32_t one, std::uint32_t (&l)[4]) {
    unpack::unpack(&codes, 0, one, l);
  }
  static __device__ __forceinline__ void pack(std::uint32_t const* codes, std::uint32_t* words) { words[0] = codes[0]; }
};

template <>
struct fragment_quantize<lloyd_max<3>> {
  using table = lloyd_max<3>::table;
  static constexpr int fragments_per_unit = 4, words_per_unit = 3;
  static constexpr float input_rms = cell_polynomial<3>::rms;
  static constexpr float level_unit = 1.f;

  static __device__ __forceinline__ std::uint32_t codes(std::uint32_t const (&z)[4]) {
    std::uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = detail::cells<3>(z[i]);
    std::uint32_t const low = (ptx::prmt(v[0], v[2], 0x6420) ^ ptx::prmt(z[0], z[2], 0xfdb9)) & 0x70707070u;
    std::uint32_t const high = (ptx::prmt(v[1], v[3], 0x6420) ^ ptx::prmt(z[1], z[3], 0xfdb9)) & 0x70707070u;
    return detail::nibbles(low, high);
  }
  static __device__ __forceinline__ void levels(std::uint32_t codes, std::uint32_t one, std::uint32_t (&l)[4]) {
    constexpr std::uint32_t low =
        detail::four_bytes(table::level(0) + 128, table::level(1) + 128, table::level(2) + 128, table::level(3) + 128);
    constexpr std::uint32_t high =
        detail::four_bytes(table::level(4) + 128, table::level(5) + 128, table::level(6) + 128, table::level(7) + 128);
    std::uint32_t const m0 = ptx::prmt(low, high, codes);
    std::uint32_t const m1 = ptx::prmt(low, high, detail::high_half_word(codes, one));
    constexpr std::uint32_t exponent = 0x64646464u, bias = detail::half_pair(1024.f + 128.f);  // 1024 + byte
    l[0] = ptx::sub2(ptx::prmt(m0, exponent, 0x4140), bias), l[2] = ptx::sub2(ptx::prmt(m0, exponent, 0x4342), bias);
    l[1] = ptx::sub2(ptx::prmt(m1, exponent, 0x4140), bias), l[3] = ptx::sub2(ptx::prmt(m1, exponent, 0x4342), bias);
  }
  static __device__ __forceinline__ void pack(std::uint32_t const* codes, std::uint32_t* words) {
#pragma unroll
    for (int k = 0; k < 3; ++k) words[k] = codes[k] | ((codes[3] << (3 - k)) & 0x88888888u);
  }
};

}  // namespace kvant::inline v0
