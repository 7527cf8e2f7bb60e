#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <kvant/format/format.hpp>
#include <kvant/half.hpp>
#include <kvant/warp/quantize_rows.cuh>
#include <kvant/warp/rotate.cuh>

namespace kvant::inline v0::detail {

/// What make_factor shares.
template <int Dim, int Groups>
struct factor_storage {
  float sum[4][Dim];
  double square[Groups][Dim];
};

/// What the warps that code the centered keys of a unit share: sums of their rows and what is taken off the rows,
///   coded row = (row - mean) * slope + shift: slope = sign of the rotation / balance factor, shift = what the stored
///   mean leaves of the mean, turned back to channels (so that it needs no pass after the rotation)
/// once in fp32, and once as halves, where the shift has what the rounding of the mean leaves.
template <int Dim, int Warps>
struct centering_storage {
  alignas(16) float partial[Warps][Dim];
  alignas(16) float mean[Dim], slope[Dim], shift[Dim];
  alignas(16) std::uint16_t half_mean[Dim], half_slope[Dim], half_shift[Dim];
  alignas(16) half factor[2][Dim];  // balance factors, of odd and even jobs
  std::int32_t spoiled;             // a value of the page is not finite

  /// In the place of partial, mean and slope, which are made after them.
  __device__ __forceinline__ factor_storage<Dim, 1>& factors() {
    static_assert(sizeof(factor_storage<Dim, 1>) == sizeof partial + sizeof mean + sizeof slope);
    return *reinterpret_cast<factor_storage<Dim, 1>*>(partial);
  }
};
/// y = H x in the order of the host (hadamard_transform over slots), four neighbouring positions a lane: position bits
/// j, hi, b, t0, t1, c0, c1 are slot bits 0, 3, 4, 1, 2, 5, 6. The same bits as the host's sums.
__device__ __forceinline__ void hadamard_in_slot_order(float (&x)[4], int lane) {
  auto const in_lane = [&](int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (!(i & step)) {
        float const a = x[i], b = x[i + step];
        x[i] = __fadd_rn(a, b), x[i + step] = __fsub_rn(a, b);
      }
  };
  auto const over_lanes = [&](int step) {
    float const sign = lane & step ? -1.f : 1.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = __fmaf_rn(x[i], sign, __shfl_xor_sync(~0u, x[i], step));
  };
  in_lane(1), over_lanes(2), over_lanes(4), in_lane(2), over_lanes(1), over_lanes(8), over_lanes(16);
}

/// The mean from the partial sums, its rotation and what is stored of it, by one warp: writes the unit's header and
/// what the warps share. `tokens` counts those that are not masked.
template <class Key, int Dim, int Warps>
__device__ __forceinline__ void center(centering_storage<Dim, Warps>& s, half const* factor, int tokens, int lane,
                                       std::byte* header) {
  static_assert(Dim == 128, "center: head_dim 128");
  using rotation = rotation_of<Key>;
  constexpr float root = inverse_root_128;
  std::uint32_t const signs = signs_of<rotation>(lane >> 3) >> (4 * (lane & 7));
  float mean[4], slope[4], x[4];
  float largest = 0.f;
  bool spoiled = false;
  {
    float4 sum = reinterpret_cast<float4 const*>(s.partial[0])[lane];
#pragma unroll
    for (int w = 1; w < Warps; ++w) {
      float4 const more = reinterpret_cast<float4 const*>(s.partial[w])[lane];
      sum.x = __fadd_rn(sum.x, more.x), sum.y = __fadd_rn(sum.y, more.y);
      sum.z = __fadd_rn(sum.z, more.z), sum.w = __fadd_rn(sum.w, more.w);
    }
    mean[0] = sum.x, mean[1] = sum.y, mean[2] = sum.z, mean[3] = sum.w;
  }
  float const share = __frcp_rn(static_cast<float>(tokens));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    spoiled = spoiled || !(fabsf(mean[i]) < INFINITY);
    mean[i] = __fmul_rn(mean[i], share);
    slope[i] = 1.f;
    if constexpr (Key::is_balanced) slope[i] = ptx::rcp(effective_factor(factor[4 * lane + i]));
    slope[i] = with_sign(slope[i], signs, i);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = __fmul_rn(mean[i], slope[i]);
  hadamard_in_slot_order(x, lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = __fmul_rn(x[i], root), largest = fmaxf(largest, fabsf(x[i]));
  largest = ptx::warp_max(largest);
  half const scale = saturate_to_half(__fdiv_rn(largest, 127.f));
  float const unit = static_cast<float>(scale), inverse_unit = unit > 0.f ? __frcp_rn(unit) : 0.f;
  std::uint32_t bytes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int const stored = __float2int_rn(fminf(127.f, fmaxf(-127.f, __fmul_rn(x[i], inverse_unit))));
    bytes |= (static_cast<std::uint32_t>(stored) & 255u) << (8 * i);
    x[i] = __fsub_rn(x[i], __fmul_rn(static_cast<float>(stored), unit));
  }
  if (header != nullptr) {
    reinterpret_cast<std::uint32_t*>(header)[lane] = bytes;
    if (lane == 0) reinterpret_cast<uint4*>(header)[Dim / 16] = make_uint4(scale.bits, 0, 0, 0);
  }
  hadamard_in_slot_order(x, lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = __fmul_rn(x[i], root);
  reinterpret_cast<float4*>(s.mean)[lane] = make_float4(mean[0], mean[1], mean[2], mean[3]);
  reinterpret_cast<float4*>(s.slope)[lane] = make_float4(slope[0], slope[1], slope[2], slope[3]);
  reinterpret_cast<float4*>(s.shift)[lane] = make_float4(x[0], x[1], x[2], x[3]);
  std::uint32_t m[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    m[i] = ptx::half2_bits(mean[2 * i], mean[2 * i + 1]);
    x[2 * i] = __fmaf_rn(__fsub_rn(ptx::low_half(m[i]), mean[2 * i]), slope[2 * i], x[2 * i]);
    x[2 * i + 1] = __fmaf_rn(__fsub_rn(ptx::high_half(m[i]), mean[2 * i + 1]), slope[2 * i + 1], x[2 * i + 1]);
  }
  reinterpret_cast<uint2*>(s.half_mean)[lane] = make_uint2(m[0], m[1]);
  reinterpret_cast<uint2*>(s.half_slope)[lane] =
      make_uint2(ptx::half2_bits(slope[0], slope[1]), ptx::half2_bits(slope[2], slope[3]));
  reinterpret_cast<uint2*>(s.half_shift)[lane] = make_uint2(ptx::half2_bits(x[0], x[1]), ptx::half2_bits(x[2], x[3]));
  spoiled = __any_sync(~0u, spoiled);
  if (lane == 0) s.spoiled = spoiled;
}

/// The balance factor of channel `c` from the rows of a sequence's first page: side_codec::make_factors, but that the
/// squares are added in another order, in double. By a CTA of Groups times Dim threads, group j taking every Groups-th
/// block of 16 tokens; bits(token) is the channel's value as half, of any token of the page.
template <class Key, int Dim, int PageTokens, int Groups, class Bits>
__device__ __forceinline__ half make_factor(factor_storage<Dim, Groups>& s, int group, int c, int masked, Bits bits) {
  constexpr int blocks = PageTokens / 16, mine = blocks / Groups;
  static_assert(blocks == 4 && blocks % Groups == 0, "make_factor: pages of 64 tokens");
  float x[16];  // one block at a time: registers are for the rows that wait
  auto const load = [&](int first) {
    half h[16];
#pragma unroll
    for (int t = 0; t < 16; ++t) h[t] = bits(first + t);
#pragma unroll
    for (int t = 0; t < 16; ++t) {
      float const v = static_cast<float>(h[t]);
      x[t] = first + t >= masked && v - v == 0.f ? v : 0.f;
    }
  };
#pragma unroll 1
  for (int b = 0; b < mine; ++b) {
    load(16 * (group + b * Groups));
    float sum[8];
#pragma unroll
    for (int t = 0; t < 8; ++t) sum[t] = __fadd_rn(x[t], x[t + 8]);
#pragma unroll
    for (int t = 0; t < 4; ++t) sum[t] = __fadd_rn(sum[t], sum[t + 4]);
    s.sum[group + b * Groups][c] = __fadd_rn(__fadd_rn(sum[0], sum[2]), __fadd_rn(sum[1], sum[3]));
  }
  __syncthreads();
  int const tokens = PageTokens - masked, partner = Key::pairs::partner(c, Dim);
  auto const mean_of = [&](int channel) {
    float const a = __fadd_rn(s.sum[0][channel], s.sum[1][channel]);
    return __fdiv_rn(__fadd_rn(__fadd_rn(a, s.sum[2][channel]), s.sum[3][channel]), static_cast<float>(tokens));
  };
  float const mean = mean_of(c), partner_mean = mean_of(partner);
  double square = 0;
#pragma unroll 1
  for (int b = 0; b < mine; ++b) {
    int const first = 16 * (group + b * Groups);
    if (mine > 1) load(first);
#pragma unroll
    for (int t = 0; t < 16; ++t)
      if (first + t >= masked) {
        double const r = static_cast<double>(__fsub_rn(x[t], mean));
        square = __fma_rn(r, r, square);
      }
  }
  s.square[group][c] = square;
  __syncthreads();
  double sum = 0;
#pragma unroll
  for (int j = 0; j < Groups; ++j) sum += s.square[j][min(c, partner)] + s.square[j][max(c, partner)];
  double const pair_mean = fmax(fabs(static_cast<double>(mean)), fabs(static_cast<double>(partner_mean)));
  double const factor = sqrt(fmax(sqrt(sum / (2.0 * tokens)), pair_mean * 0x1p-9));
  return saturate_to_half(static_cast<float>(fmax(factor, 1e-4)));
}

}  // namespace kvant::inline v0::detail
