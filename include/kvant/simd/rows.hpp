#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <kvant/config.hpp>
#include <kvant/half.hpp>

#if defined(__AVX__) && defined(__F16C__) && !defined(__CUDACC__)
#include <immintrin.h>
#define KVANT_SIMD_SSE2 1
#define KVANT_SIMD_AVX 1
#elif defined(__SSE2__) && !defined(__CUDACC__)
#include <emmintrin.h>  // a tenth of what immintrin.h costs to compile
#define KVANT_SIMD_SSE2 1
#define KVANT_SIMD_AVX 0
#else
#define KVANT_SIMD_SSE2 0
#define KVANT_SIMD_AVX 0
#endif

// The loops that compilers do not vectorize, with explicit instructions where there are any; the plain loops give the
// same bits.
namespace kvant::inline v0::simd {

/// to[i] <- from[i] as float.
template <element T>
inline void widen(T const* KVANT_RESTRICT from, float* KVANT_RESTRICT to, int n) {
  int i = 0;
#if KVANT_SIMD_AVX
  if constexpr (std::is_same_v<T, half>)
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<__m128i const*>(from + i))));
#endif
  for (; i < n; ++i) to[i] = static_cast<float>(from[i]);
}

#if KVANT_SIMD_AVX
inline void transpose_8x8(__m256 (&r)[8]) {
  __m256 s[8];
  for (int i = 0; i < 8; i += 2) {
    s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    s[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
    s[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) r[i] = s[i];
}
#endif

/// [16, n] -> [n, 16], n a multiple of 8.
inline void transpose_16(float const* KVANT_RESTRICT from, float* KVANT_RESTRICT to, int n) {
#if KVANT_SIMD_AVX
  for (int c = 0; c < n; c += 8)
    for (int t = 0; t < 16; t += 8) {
      __m256 r[8];
      for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + std::int64_t{t + i} * n + c);
      transpose_8x8(r);
      for (int i = 0; i < 8; ++i) _mm256_storeu_ps(to + std::int64_t{c + i} * 16 + t, r[i]);
    }
#else
  for (int c = 0; c < n; ++c)
    for (int t = 0; t < 16; ++t) to[std::int64_t{c} * 16 + t] = from[std::int64_t{t} * n + c];
#endif
}

/// 32-bit words [8, 16] -> [16, 8].
inline void transpose_words_8x16(std::byte const* KVANT_RESTRICT from, std::uint32_t* KVANT_RESTRICT to) {
#if KVANT_SIMD_AVX
  for (int j = 0; j < 2; ++j) {  // eight columns
    __m256 r[8];
    for (int i = 0; i < 8; ++i)
      r[i] = _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<__m256i const*>(from + 64 * i + 32 * j)));
    transpose_8x8(r);
    for (int i = 0; i < 8; ++i)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 64 * j + 8 * i), _mm256_castps_si256(r[i]));
  }
#else
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 16; ++j) std::memcpy(to + 8 * j + i, from + 64 * i + 4 * j, 4);
#endif
}

/// Bytes [n, 16] -> 16 rows of n, n a multiple of 16.
inline void transpose_bytes_16(std::uint8_t const* KVANT_RESTRICT from, std::uint8_t* KVANT_RESTRICT to, int n) {
#if KVANT_SIMD_SSE2
  for (int c = 0; c < n; c += 16) {
    __m128i r[16], s[16];
    for (int i = 0; i < 16; ++i)
      r[i] = _mm_loadu_si128(reinterpret_cast<__m128i const*>(from + std::int64_t{c + i} * 16));
    for (int round = 0; round < 4; ++round) {  // each round interleaves row i with row i + 8
      for (int i = 0; i < 8; ++i) {
        s[2 * i] = _mm_unpacklo_epi8(r[i], r[i + 8]);
        s[2 * i + 1] = _mm_unpackhi_epi8(r[i], r[i + 8]);
      }
      for (int i = 0; i < 16; ++i) r[i] = s[i];
    }
    for (int i = 0; i < 16; ++i) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + std::int64_t{i} * n + c), r[i]);
  }
#else
  for (int c = 0; c < n; ++c)
    for (int t = 0; t < 16; ++t) to[std::int64_t{t} * n + c] = from[std::int64_t{c} * 16 + t];
#endif
}

}  // namespace kvant::inline v0::simd
