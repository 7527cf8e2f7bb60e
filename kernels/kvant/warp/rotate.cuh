#pragma once

#include <cstdint>

#include <kvant/format/rotation.hpp>

namespace kvant::inline v0::detail {

// Rotations of 128 channels within a warp, in fp32. A permutation of slots that permutes the bits of the index leaves
// the Hadamard matrix alone, so positions serve as slots here (layout/slot_order.hpp).

/// Bit i set: the rotation turns the sign of channel 32 word + i.
template <class Rotation>
__host__ __device__ constexpr std::uint32_t sign_word(int word) {
  std::uint32_t bits = 0;
  if constexpr (Rotation::rotates)
    for (int i = 0; i < 32; ++i) bits |= (negative_sign(Rotation::seed, 32 * word + i) ? 1u : 0u) << i;
  return bits;
}
template <class Rotation>
__device__ __forceinline__ std::uint32_t signs_of(int word) {
  constexpr std::uint32_t w0 = sign_word<Rotation>(0), w1 = sign_word<Rotation>(1), w2 = sign_word<Rotation>(2),
                          w3 = sign_word<Rotation>(3);
  return word < 2 ? (word == 0 ? w0 : w1) : (word == 2 ? w2 : w3);
}
/// x, or -x where bit `bit` of `signs` is set.
__device__ __forceinline__ float with_sign(float x, std::uint32_t signs, int bit) {
  return __uint_as_float(__float_as_uint(x) ^ ((signs << (31 - bit)) & 0x80000000u));
}

inline constexpr float inverse_root_128 = 0.08838834764f;

/// y = H x over 128 positions, four neighbours a lane: shuffles over the lanes.
__device__ __forceinline__ void hadamard_128(float (&x)[4], int lane) {
  float const a = x[0] + x[1], b = x[0] - x[1], c = x[2] + x[3], d = x[2] - x[3];
  x[0] = a + c, x[1] = b + d, x[2] = a - c, x[3] = b - d;
#pragma unroll
  for (int step = 1; step < 32; step *= 2)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float const y = __shfl_xor_sync(~0u, x[i], step);
      x[i] = lane & step ? y - x[i] : x[i] + y;
    }
}

template <class Rotation>
__device__ __forceinline__ void rotate_128(float (&x)[4], int lane) {
  if constexpr (Rotation::rotates) {
    std::uint32_t const signs = signs_of<Rotation>(lane >> 3) >> (4 * (lane & 7));
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = with_sign(x[i], signs, i);
    hadamard_128(x, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] *= inverse_root_128;
  }
}
template <class Rotation>
__device__ __forceinline__ void rotate_back_128(float (&x)[4], int lane) {
  if constexpr (Rotation::rotates) {
    std::uint32_t const signs = signs_of<Rotation>(lane >> 3) >> (4 * (lane & 7));
    hadamard_128(x, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = with_sign(x[i], signs, i) * inverse_root_128;
  }
}

/// Channel of output row 16k + g + 8h of exact values (warp/exact_tile.cuh); g = 4 g2 + 2 g1 + g0.
__host__ __device__ constexpr int exact_channel(int row) {
  int const k = row >> 4, h = (row >> 3) & 1, g = row & 7;
  return 64 * (k >> 2) + 32 * (g & 1) + 16 * (g >> 2) + 8 * ((g >> 1) & 1) + 2 * (k & 3) + h;
}

/// The output of exact values, out[k][2h + c] the channel exact_channel(16k + g + 8h) of column c, turned into the
/// rotated basis in place: out[m][2h + c] is slot 16m + g + 8h, times `factor`.
///
/// Channel bits are p6 p2 p1 = k, p0 = h, p5 = g0, p4 = g2, p3 = g1; slot bits are m = p6 p5 p2, h = p1, g = p4 p3 p0.
/// So p5 and p0 change places (one shuffle for two registers), and only p4 and p3 need a butterfly over lanes.
template <class Rotation, int Own>
__device__ __forceinline__ void rotate_output_128(float (&out)[8][4], float factor, int lane) {
  static_assert(Rotation::rotates);
  std::uint32_t const g0 = (lane >> 2) & 1;
  int const eight = 16 * ((lane >> 4) & 1) + 8 * ((lane >> 3) & 1);
#pragma unroll
  for (int c = 0; c < Own; ++c) {
    float x[2][2][2][2];  // p6, p2, p1, then p0, later p5
#pragma unroll
    for (int half_of_row = 0; half_of_row < 2; ++half_of_row) {
      std::uint32_t const signs = signs_of<Rotation>(2 * half_of_row + static_cast<int>(g0)) >> eight;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        x[half_of_row][i >> 2][(i >> 1) & 1][i & 1] =
            with_sign(out[4 * half_of_row + i / 2][2 * (i & 1) + c], signs, i) * factor;
    }
    auto const butterfly = [](float& a, float& b) {
      float const sum = a + b, difference = a - b;
      a = sum, b = difference;
    };
#pragma unroll
    for (int i = 0; i < 8; ++i) butterfly(x[0][i >> 2][(i >> 1) & 1][i & 1], x[1][i >> 2][(i >> 1) & 1][i & 1]);
#pragma unroll
    for (int i = 0; i < 8; ++i) butterfly(x[i >> 2][0][(i >> 1) & 1][i & 1], x[i >> 2][1][(i >> 1) & 1][i & 1]);
#pragma unroll
    for (int i = 0; i < 8; ++i) butterfly(x[i >> 2][(i >> 1) & 1][0][i & 1], x[i >> 2][(i >> 1) & 1][1][i & 1]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float &zero = x[i >> 2][(i >> 1) & 1][i & 1][0], &one = x[i >> 2][(i >> 1) & 1][i & 1][1];
      butterfly(zero, one);
      float const other = __shfl_xor_sync(~0u, g0 ? zero : one, 4);
      float const at_0 = g0 ? other : zero, at_1 = g0 ? one : other;
      zero = at_0, one = at_1;
      butterfly(zero, one);
    }
#pragma unroll
    for (int step = 8; step < 32; step *= 2)
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float& v = x[i >> 3][(i >> 2) & 1][(i >> 1) & 1][i & 1];
        float const y = __shfl_xor_sync(~0u, v, step);
        v = lane & step ? y - v : v + y;
      }
#pragma unroll
    for (int m = 0; m < 8; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) out[m][2 * h + c] = x[m >> 2][m & 1][h][(m >> 1) & 1];
  }
}

}  // namespace kvant::inline v0::detail
