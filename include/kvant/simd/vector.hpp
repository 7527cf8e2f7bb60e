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

/// Lanes values side by side, a power of two of them.
template <class Real, int Lanes>
struct vec {
#if KVANT_GNU_VECTORS
  typedef Real type __attribute__((vector_size(static_cast<std::size_t>(Lanes) * sizeof(Real))));
  type v;
  void load(Real const* from) { std::memcpy(&v, from, sizeof v); }
  void store(Real* to) const { std::memcpy(to, &v, sizeof v); }
  void set_sum(vec const& a, vec const& b) { v = a.v + b.v; }
  void set_difference(vec const& a, vec const& b) { v = a.v - b.v; }
  void scale(Real factor) { v = v * factor; }
#else
  Real v[static_cast<std::size_t>(Lanes)];
  void load(Real const* from) { std::memcpy(v, from, sizeof v); }
  void store(Real* to) const { std::memcpy(to, v, sizeof v); }
  void set_sum(vec const& a, vec const& b) {
    for (int i = 0; i < Lanes; ++i) v[i] = a.v[i] + b.v[i];
  }
  void set_difference(vec const& a, vec const& b) {
    for (int i = 0; i < Lanes; ++i) v[i] = a.v[i] - b.v[i];
  }
  void scale(Real factor) {
    for (int i = 0; i < Lanes; ++i) v[i] = v[i] * factor;
  }
#endif
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
