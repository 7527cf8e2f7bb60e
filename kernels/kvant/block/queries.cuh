#pragma once

#include <cstdint>

#include <kvant/format/format.hpp>
#include <kvant/half.hpp>

namespace kvant::inline v0::detail {

/// The queries of a segment, one a column: as they came and rotated, by position (layout/slot_order.hpp: position p of
/// `rotated` is slot slot_of(p)), both divided by a power of two that brings the largest entry to [0.5, 1).
template <int Dim>
struct query_storage {
  alignas(16) float plain[8][Dim + 4], rotated[8][Dim + 4];
  float plain_scale[8], rotated_scale[8];  // the powers of two
};

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

/// Bit i set where the rotation's sign of position 4 lane + i is negative. A permutation of slots that permutes the bits
/// of the index leaves the Hadamard matrix alone, so positions serve as slots here.
template <class Rotation>
__device__ __forceinline__ void apply_signs(float (&x)[4], int lane) {
  if constexpr (Rotation::rotates) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (negative_sign(Rotation::seed, 4 * lane + i)) x[i] = -x[i];
  }
}

template <class F>
__device__ __forceinline__ void rotate_128(float (&x)[4], int lane) {
  using rotation = rotation_of<F>;
  if constexpr (rotation::rotates) {
    apply_signs<rotation>(x, lane);
    hadamard_128(x, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] *= 0.08838834764f;
  }
}
template <class F>
__device__ __forceinline__ void rotate_back_128(float (&x)[4], int lane) {
  using rotation = rotation_of<F>;
  if constexpr (rotation::rotates) {
    hadamard_128(x, lane);
    apply_signs<rotation>(x, lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] *= 0.08838834764f;
  }
}

/// The power of two that brings the largest |x| of the warp to [0.5, 1); 1 for zeros.
__device__ __forceinline__ float normalizing_power(float const (&x)[4]) {
  float largest = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  return largest > 0.f ? exp2f(ceilf(log2f(largest))) : 1.f;
}

/// One query into column c; null: zeros.
template <class Key, int Dim, class T>
__device__ void prepare_query(query_storage<Dim>& s, int c, T const* row, half const* factors, int lane) {
  static_assert(Dim == 128, "prepare_query: head_dim 128");
  float plain[4] = {}, rotated[4];
  if (row != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) plain[i] = static_cast<float>(row[4 * lane + i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    rotated[i] = plain[i];
    if constexpr (Key::is_balanced) rotated[i] *= effective_factor(factors[4 * lane + i]);
  }
  rotate_128<Key>(rotated, lane);
  float const plain_power = normalizing_power(plain), rotated_power = normalizing_power(rotated);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    s.plain[c][4 * lane + i] = plain[i] / plain_power;
    s.rotated[c][4 * lane + i] = rotated[i] / rotated_power;
  }
  if (lane == 0) s.plain_scale[c] = plain_power, s.rotated_scale[c] = rotated_power;
}

}  // namespace kvant::inline v0::detail
