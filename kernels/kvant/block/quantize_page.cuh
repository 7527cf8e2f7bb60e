#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <kvant/block/page_mean.cuh>
#include <kvant/cache/window_element.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/warp/quantize_rows.cuh>

namespace kvant::inline v0::detail {

/// Eight elements of a row of T as elements of W.
template <class W, class T>
__device__ __forceinline__ uint4 eight_elements(uint4 loaded) {
  if constexpr (std::is_same_v<T, W>) {
    return loaded;
  } else {
    struct alignas(16) eight_of_t {
      T at[8];
    };
    struct alignas(16) eight_of_w {
      W at[8];
    };
    auto const from = detail::bit_cast<eight_of_t>(loaded);
    eight_of_w to;
#pragma unroll
    for (int k = 0; k < 8; ++k) to.at[k] = window_element<W>(from.at[k]);
    return detail::bit_cast<uint4>(to);
  }
}

/// The rows of one lane: tokens g and g + 8 of its warp's 16, as W or, where fresh, as T.
struct lane_rows {
  void const* at[2] = {};
  bool fresh[2] = {};
};
/// One unit of a page to be coded, as one warp sees it.
struct unit_job {
  lane_rows rows;
  std::byte* unit = nullptr;  // null: nothing is coded
  std::int32_t page = 0;             // index in the sequence
  std::int32_t without_factors = -1;  // the sequence, if they are to be made of its first page; page 0 stores them
  half* factors = nullptr;           // of the sequence and head
};

/// In place of an element of a sequence's first page, where the factors are always there already.
struct factors_stored {
  __device__ half operator()(std::int32_t, int, int) const { return {}; }
};

/// Codes units with one warp for 16 tokens of keys or of values: warps 0..3 the keys, 4..7 the values. Window rows are W,
/// new rows T.
template <class Key, class Value, int Dim, class W, class T>
struct page_quantizer {
  using layout_type = page_layout<Key, Value>;
  static constexpr layout_type layout{page_shape{1, Dim, Dim, layout_type::least_page_tokens}};
  static constexpr int page_tokens = layout.shape.page_tokens, tile_tokens = layout.tile_tokens;
  static constexpr int side_warps = page_tokens / 16, side_threads = 32 * side_warps, threads = 2 * side_threads;
  static constexpr int header_bytes = layout.header_bytes(), tile_bytes = layout.tile_bytes();
  static constexpr int key_codes = layout.template codes_offset<side::key>(0) - header_bytes;
  static constexpr int value_codes = layout.template codes_offset<side::value>(0) - header_bytes;
  static constexpr int key_scalars = layout.template token_scalar_byte<side::key>(0, 0) - header_bytes;
  static constexpr int value_scalars = layout.template token_scalar_byte<side::value>(0, 0) - header_bytes;
  static constexpr bool balanced = Key::is_balanced;
  static_assert(tile_tokens == 32, "page_quantizer: tiles of 32 tokens");
  static_assert(!balanced || side_threads == Dim, "page_quantizer: a thread a channel makes the factors");
  static_assert(std::is_same_v<W, half> && sizeof(T) == 2, "page_quantizer: rows of half, or halves made of T");
  static constexpr float root = 11.31370849898f;  // sqrt(Dim)
  static constexpr int steps = Dim / 16;

  struct nothing {};
  struct parked_job {
    std::byte* unit;
    std::int32_t masked, number, sinks;
  };
  struct storage {
    alignas(16) uint4 operand[2][steps][32];  // [side]; not the keys' where they are centered
    parked_job job[2 * side_warps];           // registers are for the rows
    std::conditional_t<Key::is_centered, centering_storage<Dim, side_warps>, nothing> centering;
    std::conditional_t<balanced, factor_storage<Dim, 1>, nothing> factors;
  };

  storage& s;
  std::int32_t const sinks;
  std::uint32_t const one;  // half2(1, 1), which the compiler cannot see
  int const warp, lane;

  [[nodiscard]] __device__ __forceinline__ bool codes_keys() const { return warp < side_warps; }
  /// The first of the two tokens of a page that the lane loads.
  [[nodiscard]] __device__ __forceinline__ int first_token() const {
    return 16 * (warp % side_warps) + (lane >> 2);
  }

  /// Codes job after job: next(job, n) sets job number n, or returns false; factor_bits(sequence, token, channel) is an element
  /// of a sequence's first page. By all threads of the CTA. The rows of a job are asked for while the one before is coded.
  template <class Next, class FactorBits>
  __device__ __forceinline__ void run(Next next, FactorBits factor_bits) const {
    if (codes_keys())
      run_side<side::key>(next, factor_bits);
    else
      run_side<side::value>(next, factor_bits);
  }

 private:
  using pairs = row_pairs<Dim>;
  template <side S>
  using format_of = std::conditional_t<S == side::key, Key, Value>;
  template <side S>
  static constexpr int barrier_of = S == side::key ? 1 : 2;

  template <side S, class Next, class FactorBits>
  __device__ __forceinline__ void run_side(Next& next, FactorBits& factor_bits) const {
    using format = format_of<S>;
    using quantizer = row_quantizer<format, S, Dim>;
    unit_job job;
    if (!next(job, 0)) return;
    pairs x;
    load(x, job);
    if (lane == 0) s.job[warp].number = 0, s.job[warp].sinks = sinks;
    hadamard_operand const unsigned_operand = make_operand(lane, 0, 0);
    if constexpr (!format::is_centered) fill_operands<S>();
    while (true) {
      convert(x, job);
      int masked = (job.page == 0 ? sinks : 0) - 16 * (warp % side_warps);  // of the warp's tokens
      if (masked > 0) mask_rows(x, masked);
      __syncwarp();
      if (lane == 0) s.job[warp].unit = job.unit, s.job[warp].masked = masked;
      float norm[2], inverse[2];
      quantizer q;
      if constexpr (format::is_centered) {
        center_rows(x, job, factor_bits, quantizer::quantize::input_rms, norm, inverse);
        q.rotate(x, [&](int) { return operand_registers<S>(unsigned_operand); });
      } else {
        normalize(x, quantizer::quantize::input_rms, norm, inverse);
        q.rotate(x, [&](int step) { return s.operand[S == side::key ? 0 : 1][step][lane]; });
      }
      __syncwarp();
      std::int32_t const number = s.job[warp].number + 1;
      __syncwarp();
      if (lane == 0) s.job[warp].number = number;
      bool const more = next(job, number);
      if (more) load(x, job);
      q.code(norm, inverse, one, lane);
      std::byte* const unit = s.job[warp].unit;
      masked = s.job[warp].masked;
      if (unit != nullptr) {
        if (masked > 0) mask_codes<S>(q.word, masked);
        store<S>(q, unit, masked);
      }
      if (!more) return;
    }
  }

  // ---- input ----

  __device__ __forceinline__ void load(pairs& x, unit_job const& job) const {
    int const channel = 8 * (lane & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int c = 0; c < Dim / 32; ++c) {
        uint4 const v = __ldcs(reinterpret_cast<uint4 const*>(static_cast<W const*>(job.rows.at[r]) + 32 * c + channel));
        x[r][4 * c] = v.x, x[r][4 * c + 1] = v.y, x[r][4 * c + 2] = v.z, x[r][4 * c + 3] = v.w;
      }
  }
  __device__ __forceinline__ void convert(pairs& x, unit_job const& job) const {
    if constexpr (!std::is_same_v<T, W>)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (job.rows.fresh[r])
#pragma unroll
          for (int c = 0; c < Dim / 32; ++c) {
            uint4 const v = eight_elements<W, T>(
                make_uint4(x[r][4 * c], x[r][4 * c + 1], x[r][4 * c + 2], x[r][4 * c + 3]));
            x[r][4 * c] = v.x, x[r][4 * c + 1] = v.y, x[r][4 * c + 2] = v.z, x[r][4 * c + 3] = v.w;
          }
  }
  __device__ __forceinline__ void mask_rows(pairs& x, int masked) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if ((lane >> 2) + 8 * r < masked)
#pragma unroll
        for (int i = 0; i < Dim / 8; ++i) x[r][i] = 0;
  }

  template <side S>
  __device__ __forceinline__ void fill_operands() const {
    std::uint32_t const signs = sign_bits<rotation_of<format_of<S>>, Dim>(lane & 3);
    for (int step = warp % side_warps; step < steps; step += side_warps) {
      std::uint32_t const low = (signs << (15 - 2 * step)) & 0x80008000u;
      std::uint32_t const high = step < steps - 1 || Dim < 128 ? (signs << (14 - 2 * step)) & 0x80008000u
                                                               : signs & 0x80008000u;
      s.operand[S == side::key ? 0 : 1][step][lane] = operand_registers<S>(make_operand(lane, low, high));
    }
    ptx::barrier(barrier_of<S>, side_threads);
  }

  /// Rows as they are: scaled in fp16 by a half, after a power of two where that would leave fp16's range.
  __device__ __forceinline__ void normalize(pairs& x, float rms, float (&norm)[2], float (&inverse)[2]) const {
    squared_norms<Dim>(x, lane, norm);
    if (__any_sync(~0u, !(norm[0] + norm[1] < INFINITY))) {
      make_finite<Dim>(x);
      squared_norms<Dim>(x, lane, norm);
    }
    float scale[2], power[2];
    bool far = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      scale[r] = norm[r] > 0.f ? __fmul_rn(rms, ptx::rsqrt(norm[r])) : 0.f;
      power[r] = scale[r] > 0x1p12f ? 0x1p13f : scale[r] < 0x1p-12f ? 0x1p-12f : 1.f;
      far = far || power[r] != 1.f;
    }
    if (__any_sync(~0u, far)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        std::uint32_t const p = ptx::half2_bits(power[r], power[r]);
#pragma unroll
        for (int i = 0; i < Dim / 8; ++i) x[r][i] = ptx::mul2(x[r][i], p);
        scale[r] = __fmul_rn(scale[r], ptx::rcp(power[r]));
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      std::uint32_t const h = ptx::half2_bits(scale[r], scale[r]);
      float const used = __fmul_rn(power[r], ptx::low_half(h));
      inverse[r] = used > 0.f ? ptx::rcp(__fmul_rn(used, root)) : 0.f;
#pragma unroll
      for (int i = 0; i < Dim / 8; ++i) x[r][i] = ptx::mul2(x[r][i], h);
    }
  }

  /// Mean off, factors out, signs on, in fp32; then the rows at norm `rms` as halves. Writes the header.
  template <class FactorBits>
  __device__ __forceinline__ void center_rows(pairs& x, unit_job const& job, FactorBits& factor_bits, float rms,
                                              float (&norm)[2], float (&inverse)[2]) const {
    constexpr int barrier_id = barrier_of<side::key>;
    auto& c = s.centering;
    // What depends on the lane alone is made anew for each unit: between units, registers are for rows.
    int lane_now = lane;
    asm volatile("" : "+r"(lane_now));
    if constexpr (balanced) {
      int const channel = static_cast<int>(threadIdx.x);
      half factor;
      if (!std::is_same_v<FactorBits, factors_stored> && job.without_factors >= 0) {
        // Sinks by way of shared memory: nothing of this shall wait in registers from unit to unit.
        factor = make_factor<Key, Dim, page_tokens, 1>(
            s.factors, 0, channel, s.job[warp].sinks, barrier_id,
            [&](int token) { return factor_bits(job.without_factors, token, channel); });
        if (job.page == 0 && job.unit != nullptr) job.factors[channel] = factor;
      } else {
        factor = job.factors[channel];
      }
      c.inverse_factor[channel] = __fdiv_rn(1.f, effective_factor(factor));
    }
    float sum[4];
    sum_rows<Dim>(x, lane_now, sum);
    float const all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    if (__any_sync(~0u, !(fabsf(all) < INFINITY))) {
      make_finite<Dim>(x);
      sum_rows<Dim>(x, lane_now, sum);
    }
    *reinterpret_cast<float4*>(&c.partial[warp][first_channel_of(lane_now)]) =
        make_float4(sum[0], sum[1], sum[2], sum[3]);
    ptx::barrier(barrier_id, side_threads);
    if (warp == 0) center<Key>(c, page_tokens - (job.page == 0 ? sinks : 0), lane_now, job.unit);
    ptx::barrier(barrier_id, side_threads);
    float v[2][Dim / 4];
    float total[2] = {};
    int const t = lane_now & 3;
#pragma unroll
    for (int i = 0; i < Dim / 8; i += 2) {
      int const at = 32 * (i / 4) + 8 * t + 2 * (i % 4);
      float4 const mean = *reinterpret_cast<float4 const*>(&c.mean[at]);
      float4 const slope = *reinterpret_cast<float4 const*>(&c.slope[at]);
      float4 const shift = *reinterpret_cast<float4 const*>(&c.shift[at]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float* const to = &v[r][2 * i];
        to[0] = __fmaf_rn(__fsub_rn(ptx::low_half(x[r][i]), mean.x), slope.x, shift.x);
        to[1] = __fmaf_rn(__fsub_rn(ptx::high_half(x[r][i]), mean.y), slope.y, shift.y);
        to[2] = __fmaf_rn(__fsub_rn(ptx::low_half(x[r][i + 1]), mean.z), slope.z, shift.z);
        to[3] = __fmaf_rn(__fsub_rn(ptx::high_half(x[r][i + 1]), mean.w), slope.w, shift.w);
#pragma unroll
        for (int k = 0; k < 4; ++k) total[r] = __fmaf_rn(to[k], to[k], total[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total[r] = __fadd_rn(total[r], __shfl_xor_sync(~0u, total[r], 1));
      total[r] = __fadd_rn(total[r], __shfl_xor_sync(~0u, total[r], 2));
      norm[r] = total[r] > 1e-30f ? total[r] : 0.f;  // what is less decodes to zeros
      float const scale = norm[r] > 0.f ? __fmul_rn(rms, ptx::rsqrt(norm[r])) : 0.f;
      inverse[r] = scale > 0.f ? ptx::rcp(__fmul_rn(scale, root)) : 0.f;
#pragma unroll
      for (int i = 0; i < Dim / 8; ++i)
        x[r][i] = ptx::half2_bits(__fmul_rn(v[r][2 * i], scale), __fmul_rn(v[r][2 * i + 1], scale));
    }
  }

  // ---- output ----

  template <side S, class Quantizer>
  __device__ __forceinline__ void store(Quantizer const& q, std::byte* unit, int masked) const {
    int const block = warp % side_warps, half_tile = block & 1;
    std::byte* const tile = unit + header_bytes + block / 2 * tile_bytes;
    store_words(q.word, tile + (S == side::key ? key_codes : value_codes), half_tile);
    // Tokens `token` and token + 8, whose scalars are neighbours.
    int token;
    bool holds;
    std::uint32_t low, high;
    if constexpr (S == side::key) {
      token = lane >> 2, holds = (lane & 3) == (token >> 1);
      low = q.scalar[0].bits, high = q.scalar[1].bits;
    } else {
      token = 2 * (lane & 3) + ((lane >> 3) & 1), holds = lane < 16 && !(lane & 4);
      low = q.scalar[0].bits, high = __shfl_xor_sync(~0u, low, 16);
    }
    if (token < masked) low = 0;
    if (token + 8 < masked) high = 0;
    std::byte* const scalars = tile + (S == side::key ? key_scalars : value_scalars);
    if (holds) *reinterpret_cast<std::uint32_t*>(scalars + 8 * token + 4 * half_tile) = low | high << 16;
  }

  /// Codes of tokens below `masked` (of the warp's 16) become zeros.
  template <side S, int Words>
  __device__ __forceinline__ void mask_codes(std::uint32_t (&word)[Words], int masked) const {
    constexpr int bits = codec_of<format_of<S>>::bits;
    using order = code_order<bits, S>;
    std::uint32_t keep[order::words];
    pack_unit<bits, S>(
        [&](int n) { return order::cell(0, lane, n, tile_tokens, Dim).token < masked ? 0u : (1u << bits) - 1; }, keep);
#pragma unroll
    for (int w = 0; w < Words; ++w) word[w] &= keep[w % order::words];
  }

  /// Half `half_tile` of a lane's words of a tile (word_byte): 16 bytes where a chunk is whole.
  template <int Words>
  __device__ __forceinline__ void store_words(std::uint32_t const (&w)[Words], std::byte* codes, int half_tile) const {
    static_assert(Words % 2 == 0);
    if constexpr (Words % 4 == 0) {
      uint4* const to = reinterpret_cast<uint4*>(codes) + half_tile * (Words / 4) * 32 + lane;
#pragma unroll
      for (int i = 0; i < Words / 4; ++i)
        __stcs(to + 32 * i, make_uint4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]));
    } else {
#pragma unroll
      for (int i = 0; i < Words / 2; ++i) {
        int const at = half_tile * (Words / 2) + i;  // in pairs of words
        *(reinterpret_cast<uint2*>(codes) + (at / 2 * 32 + lane) * 2 + at % 2) = make_uint2(w[2 * i], w[2 * i + 1]);
      }
    }
  }
};

}  // namespace kvant::inline v0::detail
