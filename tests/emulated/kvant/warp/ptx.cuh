#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include <cuda_runtime_api.h>

#include <kvant/config.hpp>
#include <kvant/half.hpp>

// What kernels/kvant/warp/ptx.cuh has, computed by the lanes of an emulated warp.
namespace kvant::inline v0::ptx {

inline std::uint32_t prmt(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  std::uint32_t r = 0;
  for (int i = 0; i < 4; ++i) {
    std::uint32_t const pick = selector >> (4 * i) & 15u;
    std::uint32_t const byte = ((pick & 4u) != 0 ? b : a) >> (8 * (pick & 3u)) & 255u;
    r |= ((pick & 8u) == 0 ? byte : (byte & 128u) != 0 ? 255u : 0u) << (8 * i);
  }
  return r;
}
inline float exp2(float x) { return std::exp2(x); }
inline float log2(float x) { return std::log2(x); }

inline float half_at(std::uint32_t pair, int i) {
  half h;
  h.bits = static_cast<std::uint16_t>(pair >> (16 * i));
  return static_cast<float>(h);
}
inline std::uint32_t half2_bits(float low, float high) {
  return half{low}.bits | static_cast<std::uint32_t>(half{high}.bits) << 16;
}
inline float low_half(std::uint32_t pair) { return half_at(pair, 0); }
inline float high_half(std::uint32_t pair) { return half_at(pair, 1); }
inline std::uint32_t max_halves(std::uint32_t a, std::uint32_t b) {
  return half2_bits(std::fmax(half_at(a, 0), half_at(b, 0)), std::fmax(half_at(a, 1), half_at(b, 1)));
}
inline bool any_greater(std::uint32_t a, std::uint32_t b) {
  return half_at(a, 0) > half_at(b, 0) || half_at(a, 1) > half_at(b, 1);
}
inline std::uint32_t pair_bits(half, float low, float high) { return half2_bits(low, high); }
inline std::uint32_t pair_bits(bfloat16, float low, float high) {
  return bfloat16{low}.bits | static_cast<std::uint32_t>(bfloat16{high}.bits) << 16;
}
inline float2 pair_values(half, std::uint32_t pair) { return {low_half(pair), high_half(pair)}; }
inline float2 pair_values(bfloat16, std::uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

inline std::uint32_t movmatrix(std::uint32_t a) {
  return emulated::block::running->meet<std::uint32_t>(a, [](std::uint32_t const* in, std::uint32_t* out) {
    auto const at = [&](int row, int column) { return in[4 * row + column / 2] >> (16 * (column & 1)) & 0xffffu; };
    for (int lane = 0; lane < 32; ++lane) {
      int const g = lane / 4, t = lane % 4;
      out[lane] = at(2 * t, g) | at(2 * t + 1, g) << 16;
    }
  });
}

template <class C>
struct fragments {
  std::uint32_t a[4], b[2];
  C c[4];
};
template <class C>
struct accumulators {
  C c[4];
};
/// D = A B + C over a warp: A of 16 rows, B of 8 columns; a register holds `per` neighbours of k, value(word, i) the
/// i-th.
template <int Per, class C, class Value>
void multiply(C (&c)[4], std::uint32_t const (&a)[4], std::uint32_t b0, std::uint32_t b1, Value value) {
  fragments<C> mine{{a[0], a[1], a[2], a[3]}, {b0, b1}, {c[0], c[1], c[2], c[3]}};
  auto const all =
      emulated::block::running->meet<accumulators<C>>(mine, [&](fragments<C> const* in, accumulators<C>* out) {
        for (int lane = 0; lane < 32; ++lane)
          for (int i = 0; i < 4; ++i) {
            int const row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
            double sum = static_cast<double>(in[lane].c[i]);
            for (int t = 0; t < 4; ++t)
              for (int high = 0; high < 2; ++high)
                for (int k = 0; k < Per; ++k)
                  sum += static_cast<double>(value(in[4 * (row % 8) + t].a[2 * high + row / 8], k)) *
                         static_cast<double>(value(in[4 * column + t].b[high], k));
            out[lane].c[i] = static_cast<C>(sum);
          }
      });
  for (int i = 0; i < 4; ++i) c[i] = all.c[i];
}
inline void mma(float (&c)[4], std::uint32_t const (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  multiply<2>(c, a, b0, b1, half_at);
}
inline void mma(half, float (&c)[4], std::uint32_t const (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  mma(c, a, b0, b1);
}
inline void mma(bfloat16, float (&c)[4], std::uint32_t const (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  multiply<2>(c, a, b0, b1, [](std::uint32_t w, int i) { return __uint_as_float(w >> (16 * i) << 16); });
}
inline void mma(std::int32_t (&c)[4], std::uint32_t const (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  multiply<4>(c, a, b0, b1, [](std::uint32_t w, int i) { return static_cast<std::int8_t>(w >> (8 * i)); });
}

/// A shared address is a distance from a variable of the program: static shared memory lies near it.
alignas(1024) inline std::byte shared_anchor;
inline std::uint32_t shared_address(void const* p) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::intptr_t>(p) -
                                    reinterpret_cast<std::intptr_t>(&shared_anchor));
}
inline std::byte* shared_pointer(std::uint32_t address) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::intptr_t>(&shared_anchor) +
                                      static_cast<std::int32_t>(address));
}
/// Asynchronous copies are done at once by even lanes, which shows who overwrites what is still read, and when they are
/// waited for by odd lanes, which shows who reads what has not come.
inline void copy_later(std::uint32_t to, void const* from, std::size_t bytes) {
  if (emulated_lane() % 2 == 0)
    std::memcpy(shared_pointer(to), from, bytes);
  else
    emulated::block::running->later().groups.back().push_back([=] { std::memcpy(shared_pointer(to), from, bytes); });
}
inline void copy_16(std::uint32_t to, void const* from) { copy_later(to, from, 16); }
inline void copy_4(std::uint32_t to, void const* from) { copy_later(to, from, 4); }
inline void end_copy_group() { emulated::block::running->later().groups.emplace_back(); }
template <int UnderWay>
void wait_for_copy_groups() {
  auto& groups = emulated::block::running->later().groups;
  for (; groups.size() > UnderWay + 1; groups.pop_front())
    for (auto const& copy : groups.front()) copy();
}
inline void wait_for_copies() {
  end_copy_group();
  wait_for_copy_groups<0>();
}
inline void load_shared(std::uint32_t* to, std::uint32_t address) { std::memcpy(to, shared_pointer(address), 16); }
inline void store_shared(std::uint32_t address, std::uint32_t const* from) {
  std::memcpy(shared_pointer(address), from, 16);
}
inline int fresh_thread_x() { return static_cast<int>(threadIdx.x); }
inline std::int32_t fresh_block_x() { return static_cast<std::int32_t>(blockIdx.x); }

struct four_words {
  std::uint32_t at[4];
};
inline void ldmatrix_transposed(std::uint32_t (&a)[4], std::uint32_t address) {
  auto const all = emulated::block::running->meet<four_words>(address, [](std::uint32_t const* in, four_words* out) {
    for (int m = 0; m < 4; ++m) {
      std::uint16_t matrix[8][8];
      for (int row = 0; row < 8; ++row) std::memcpy(matrix[row], shared_pointer(in[8 * m + row]), 16);
      for (int lane = 0; lane < 32; ++lane) {
        int const g = lane / 4, t = lane % 4;
        out[lane].at[m] = matrix[2 * t][g] | static_cast<std::uint32_t>(matrix[2 * t + 1][g]) << 16;
      }
    }
  });
  std::memcpy(a, all.at, sizeof a);
}

template <class F>
std::uint32_t both_halves(F f) {
  return half2_bits(static_cast<float>(f(0)), static_cast<float>(f(1)));
}
inline double exactly(std::uint32_t pair, int i) { return static_cast<double>(half_at(pair, i)); }
inline std::uint32_t fma2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  return both_halves([=](int i) { return exactly(a, i) * exactly(b, i) + exactly(c, i); });
}
inline std::uint32_t mul2(std::uint32_t a, std::uint32_t b) {
  return both_halves([=](int i) { return exactly(a, i) * exactly(b, i); });
}
inline std::uint32_t add2(std::uint32_t a, std::uint32_t b) {
  return both_halves([=](int i) { return exactly(a, i) + exactly(b, i); });
}
inline std::uint32_t sub2(std::uint32_t a, std::uint32_t b) {
  return both_halves([=](int i) { return exactly(a, i) - exactly(b, i); });
}
inline std::uint32_t min_magnitude2(std::uint32_t a, std::uint32_t b) {
  return both_halves([=](int i) { return std::fmin(std::fabs(exactly(a, i)), exactly(b, i)); });
}
inline float rsqrt(float x) { return 1.f / std::sqrt(x); }
inline float rcp(float x) { return 1.f / x; }

inline void mma_halves(std::uint32_t (&c)[2], std::uint32_t const (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  float sum[4] = {};
  mma(sum, a, b0, b1);
  c[0] = half2_bits(sum[0], sum[1]), c[1] = half2_bits(sum[2], sum[3]);
}
inline void mma_k8(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
  std::uint32_t const a[4] = {a0, a1, 0, 0};
  mma(c, a, b, 0);
}

inline void prefetch(void const*) {}
inline bool elect() { return emulated_lane() == 0; }
template <class T>
void store_relaxed(T* to, T v) {
  *to = v;
}
template <class T>
void load_relaxed(T& v, T const* from) {
  emulated::block::running->yield();
  v = *from;
}
inline float warp_largest(float x) { return __reduce_max_sync(~0u, x); }
inline float warp_max(float x) { return __reduce_max_sync(~0u, x); }
inline void barrier(int id, int threads) { emulated::block::running->barrier(id, threads); }
inline std::byte* dynamic_shared() { return emulated::block::running->shared(); }

}  // namespace kvant::inline v0::ptx
