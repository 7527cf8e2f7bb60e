#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <kvant/config.hpp>

// Short vectors for the loops that compilers leave scalar. The vector types are those of GNU C, which every instruction
// set lowers as it can; elsewhere arrays take their place and give the same bits.
#if defined(__GNUC__) && !defined(__CUDACC__)
#define KVANT_GNU_VECTORS 1
#else
#define KVANT_GNU_VECTORS 0
#endif

namespace kvant::inline v0::simd {

/// Bytes of the widest vector that the instruction set has: wider ones in one piece are torn apart badly.
#if defined(__AVX512F__)
inline constexpr std::size_t native_bytes = 64;
#elif defined(__AVX__)
inline constexpr std::size_t native_bytes = 32;
#else
inline constexpr std::size_t native_bytes = 16;
#endif

/// Lanes values side by side, a power of two of them.
template <class Real, int Lanes>
struct vec {
  static constexpr std::size_t bytes = static_cast<std::size_t>(Lanes) * sizeof(Real);
#if KVANT_GNU_VECTORS
  static constexpr std::size_t piece_bytes = bytes < native_bytes ? bytes : native_bytes;
  typedef Real piece __attribute__((vector_size(piece_bytes)));
  static constexpr std::size_t pieces = bytes / piece_bytes;
#else
  using piece = Real;
  static constexpr std::size_t pieces = static_cast<std::size_t>(Lanes);
#endif
  piece v[pieces];

  void load(Real const* from) { std::memcpy(v, from, sizeof v); }
  void store(Real* to) const { std::memcpy(to, v, sizeof v); }
  void set_sum(vec const& a, vec const& b) {
    for (std::size_t i = 0; i < pieces; ++i) v[i] = a.v[i] + b.v[i];
  }
  void set_difference(vec const& a, vec const& b) {
    for (std::size_t i = 0; i < pieces; ++i) v[i] = a.v[i] - b.v[i];
  }
  void scale(Real factor) {
    for (std::size_t i = 0; i < pieces; ++i) v[i] = v[i] * factor;
  }
  void scale(vec const& factor) {
    for (std::size_t i = 0; i < pieces; ++i) v[i] = v[i] * factor.v[i];
  }
  void fill(Real x) {
    for (std::size_t i = 0; i < pieces; ++i) v[i] = piece{} + x;
  }
  // Fused or not, as the compiler has it.
  void add_product(Real factor, vec const& x) {
    for (std::size_t i = 0; i < pieces; ++i) v[i] = v[i] + factor * x.v[i];
  }
  void scale_add(vec const& factor, vec const& x) {
    for (std::size_t i = 0; i < pieces; ++i) v[i] = v[i] * factor.v[i] + x.v[i];
  }
};
template <class Real>
struct vec<Real, 1> {
  Real v;
  void load(Real const* from) { v = *from; }
  void store(Real* to) const { *to = v; }
  void set_sum(vec const& a, vec const& b) { v = a.v + b.v; }
  void set_difference(vec const& a, vec const& b) { v = a.v - b.v; }
  void scale(Real factor) { v = v * factor; }
};

/// Eight 32-bit words side by side.
struct word_lanes {
#if KVANT_GNU_VECTORS
  typedef std::uint32_t type __attribute__((vector_size(32)));
  typedef std::uint8_t bytes __attribute__((vector_size(8)));
  type v = {};
#else
  std::uint32_t v[8] = {};
#endif
  [[nodiscard]] std::uint32_t operator[](int lane) const { return v[lane]; }
  void set(int lane, std::uint32_t word) { v[lane] = word; }

  /// Word i |= ((code[i] >> from) & mask) << to.
  void put(std::uint8_t const* code, int from, std::uint32_t mask, int to) {
#if KVANT_GNU_VECTORS
    bytes b;
    std::memcpy(&b, code, sizeof b);
    v |= ((__builtin_convertvector(b, type) >> from) & mask) << to;
#else
    for (int i = 0; i < 8; ++i) v[i] |= ((std::uint32_t{code[i]} >> from) & mask) << to;
#endif
  }
  /// This |= ((words >> from) & mask) << to, word by word.
  void take(word_lanes const& words, int from, std::uint32_t mask, int to) {
#if KVANT_GNU_VECTORS
    v |= ((words.v >> from) & mask) << to;
#else
    for (int i = 0; i < 8; ++i) v[i] |= ((words.v[i] >> from) & mask) << to;
#endif
  }
  /// code[i] = the low byte of word i.
  void store_bytes(std::uint8_t* code) const {
#if KVANT_GNU_VECTORS
    bytes const b = __builtin_convertvector(v, bytes);
    std::memcpy(code, &b, sizeof b);
#else
    for (int i = 0; i < 8; ++i) code[i] = static_cast<std::uint8_t>(v[i]);
#endif
  }
};

}  // namespace kvant::inline v0::simd
