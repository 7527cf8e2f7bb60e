#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <kvant/config.hpp>
#include <kvant/simd/vector.hpp>

#if (defined(__AVX2__) || defined(__AVX512F__)) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

namespace kvant::inline v0::simd {

/// Sixteen 32-bit words side by side.
struct words_16 {
  using lanes = vec<std::uint32_t, 16>;
  decltype(lanes::v) v;
  void shift_right(words_16 const& by) {
    for (std::size_t i = 0; i < lanes::pieces; ++i) v[i] = v[i] >> by.v[i];
  }
  /// The bits of `mask` stay, the others become those of x.
  void keep_only(std::uint32_t mask, words_16 const& x) {
    for (std::size_t i = 0; i < lanes::pieces; ++i) v[i] = (v[i] & mask) | (x.v[i] & ~mask);
  }
  void load(std::uint32_t const* from) { std::memcpy(&v, from, 64); }                                    // [16]
  void load_halves(std::uint32_t const* KVANT_RESTRICT low, std::uint32_t const* KVANT_RESTRICT high) {  // [8], [8]
#if defined(__AVX512F__) && !defined(__CUDACC__)
    auto const half_at = [](std::uint32_t const* at) {
      return _mm256_loadu_si256(reinterpret_cast<__m256i const*>(at));
    };
    // The forms without a mask make g++ 12 warn of its own header.
    __m512i const both =
        _mm512_maskz_inserti64x4(__mmask8{0xff}, _mm512_castsi256_si512(half_at(low)), half_at(high), 1);
    std::memcpy(&v, &both, 64);
#else
    std::memcpy(&v, low, 32);
    std::memcpy(reinterpret_cast<unsigned char*>(&v) + 32, high, 32);
#endif
  }
};

/// x[i] <- table[index[i] & 15]: look-ups within registers, which no compiler makes of a loop.
inline void look_up_16(vec<float, 16> const& table, words_16 const& index, vec<float, 16>& x) {
#if defined(__AVX512F__) && !defined(__CUDACC__)
  __m512i i;
  __m512 t;
  std::memcpy(&i, &index.v, 64), std::memcpy(&t, &table.v, 64);
  t = _mm512_maskz_permutexvar_ps(__mmask16{0xffff}, i, t);
  std::memcpy(&x.v, &t, 64);
#elif defined(__AVX2__) && !defined(__CUDACC__)
  __m256 t[2];
  __m256i half_of[2];
  std::memcpy(half_of, &index.v, 64), std::memcpy(t, &table.v, 64);
  for (__m256i& half : half_of) {
    __m256 const is_high = _mm256_castsi256_ps(_mm256_slli_epi32(half, 28));
    half = _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_permutevar8x32_ps(t[0], half), _mm256_permutevar8x32_ps(t[1], half), is_high));
  }
  std::memcpy(&x.v, half_of, 64);
#else
  float levels[16], found[16];
  std::uint32_t places[16];
  table.store(levels), std::memcpy(places, &index.v, 64);
  for (int i = 0; i < 16; ++i) found[i] = levels[places[i] & 15];
  x.load(found);
#endif
}

}  // namespace kvant::inline v0::simd
