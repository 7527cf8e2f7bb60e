#pragma once

#include <cstdint>

#include <kvant/format/lloyd_max.hpp>
#include <kvant/warp/ptx.cuh>

namespace kvant::inline v0 {

/// What a codec gives a tensor-core kernel:
///   fragments_per_unit   A operands of m16n8k16 in one packing unit of the page (layout/code_order.hpp)
///   words_per_unit       32-bit words of the unit
///   unpack(w, f, a)      fragment f of the unit in registers
///   scale                what an entry of `a`, read as fp16, must be multiplied by to be the value for stored scalar 1
///   offset               what the entries carry on top: entry = level + offset (taken off through one more product)
template <class Codec>
struct fragment_unpack;

/// What a codec may give beside it, for products in int8:
///   fragments_per_unit, words_per_unit   as above
///   unpack(w, f, low, high)              codes 0..3 and 4..7 of fragment f as bytes: rows g and g + 8 of keys
///   scale                                what an entry must be multiplied by
template <class Codec>
struct byte_unpack;
template <class Codec>
concept has_bytes = requires {
  byte_unpack<Codec>::scale;
};
template <class Codec>
inline constexpr bool has_byte_unpack = has_bytes<Codec>;

namespace detail {

KVANT_HD constexpr std::uint32_t four_bytes(int a, int b, int c, int d) {
  return std::uint32_t(a & 255) | std::uint32_t(b & 255) << 8 | std::uint32_t(c & 255) << 16 |
         std::uint32_t(d & 255) << 24;
}

/// (w.high, w.high), w masked so that neither half is an fp16 infinity or NaN, `one` = half2(1, 1) that the compiler
/// cannot see: the move runs on the FMA pipe and spares the integer pipe, which is the scarce one.
KVANT_HD inline std::uint32_t high_half_word(std::uint32_t w, [[maybe_unused]] std::uint32_t one) {
#if defined(__CUDA_ARCH__)
  std::uint32_t r;
  asm("{ .reg .b16 l, h; .reg .b32 d; mov.b32 {l, h}, %1; mov.b32 d, {h, h}; fma.rn.f16x2 %0, d, %2, %3; }"
      : "=r"(r)
      : "r"(w), "r"(one), "r"(0x80008000u));
  return r;
#else
  return w >> 16 | (w & 0xffff0000u);
#endif
}

}  // namespace detail

/// 4 bits: eight magnitudes of at most eight bits by two byte look-ups, signs by masks; entries are signed fp16
/// subnormals, integer * 2^-24, which tensor cores take exactly and at full speed.
template <>
struct fragment_unpack<lloyd_max<4>> {
  using table = lloyd_max<4>::table;
  static constexpr int fragments_per_unit = 1, words_per_unit = 1;
  static constexpr float scale = table::step * 16777216.f;
  static constexpr float offset = 0.f;

  static KVANT_HD void unpack(std::uint32_t const* w, int, std::uint32_t one, std::uint32_t (&a)[4]) {
    constexpr std::uint32_t low =
        detail::four_bytes(table::magnitude(0), table::magnitude(1), table::magnitude(2), table::magnitude(3));
    constexpr std::uint32_t high =
        detail::four_bytes(table::magnitude(4), table::magnitude(5), table::magnitude(6), table::magnitude(7));
    std::uint32_t const index = w[0] & 0x77777777u;
    std::uint32_t const m0 = ptx::prmt(low, high, index);
    std::uint32_t const m1 = ptx::prmt(low, high, detail::high_half_word(index, one));
    std::uint32_t const s0 = w[0] & 0x80808080u, s1 = (w[0] * 16u) & 0x80808080u;
    a[0] = ptx::prmt(m0, s0, 0x5140), a[2] = ptx::prmt(m0, s0, 0x7362);
    a[1] = ptx::prmt(m1, s1, 0x5140), a[3] = ptx::prmt(m1, s1, 0x7362);
  }
};

namespace detail {

/// The eight 3-bit codes of fragment f (0..3) of a unit of three words, as nibbles.
KVANT_HD inline std::uint32_t three_bit_codes(std::uint32_t const* w, int f) {
  return f < 3 ? w[f] & 0x77777777u
               : ((w[0] >> 3) & 0x11111111u) | ((w[1] >> 2) & 0x22222222u) | ((w[2] >> 1) & 0x44444444u);
}

}  // namespace detail

/// 3 bits: bytes of level + 128 by one look-up each, widened with zeros to subnormals; the 128 is taken off at the end.
template <>
struct fragment_unpack<lloyd_max<3>> {
  using table = lloyd_max<3>::table;
  static constexpr int fragments_per_unit = 4, words_per_unit = 3;
  static constexpr float scale = table::step * 16777216.f;
  static constexpr float offset = 128.f / 16777216.f;

  static KVANT_HD void unpack(std::uint32_t const* w, int f, std::uint32_t one, std::uint32_t (&a)[4]) {
    constexpr std::uint32_t low =
        detail::four_bytes(table::level(0) + 128, table::level(1) + 128, table::level(2) + 128, table::level(3) + 128);
    constexpr std::uint32_t high =
        detail::four_bytes(table::level(4) + 128, table::level(5) + 128, table::level(6) + 128, table::level(7) + 128);
    std::uint32_t const index = detail::three_bit_codes(w, f);
    std::uint32_t const m0 = ptx::prmt(low, high, index);
    std::uint32_t const m1 = ptx::prmt(low, high, detail::high_half_word(index, one));
    a[0] = ptx::prmt(m0, 0, 0x4140), a[2] = ptx::prmt(m0, 0, 0x4342);
    a[1] = ptx::prmt(m1, 0, 0x4140), a[3] = ptx::prmt(m1, 0, 0x4342);
  }
};

template <>
struct byte_unpack<lloyd_max<3>> {
  using table = lloyd_max<3>::table;
  static constexpr int fragments_per_unit = 4, words_per_unit = 3;
  static constexpr float scale = table::step;

  static KVANT_HD void unpack(std::uint32_t const* w, int f, std::uint32_t one, std::uint32_t& low,
                              std::uint32_t& high) {
    constexpr std::uint32_t below =
        detail::four_bytes(table::level(0), table::level(1), table::level(2), table::level(3));
    constexpr std::uint32_t above =
        detail::four_bytes(table::level(4), table::level(5), table::level(6), table::level(7));
    std::uint32_t const index = detail::three_bit_codes(w, f);
    low = ptx::prmt(below, above, index);
    high = ptx::prmt(below, above, detail::high_half_word(index, one));
  }
};

}  // namespace kvant::inline v0
