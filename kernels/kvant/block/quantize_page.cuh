#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <kvant/block/page_mean.cuh>
#include <kvant/block/staged_rows.cuh>
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

/// Where a lane's rows lie: tokens g and g + 8 of its warp's 16.
struct lane_rows {
  void const* at[2];
};
/// Keys or values of one unit of a page to be coded.
struct unit_job {
  side which;
  std::byte* unit;               // null: nothing is written
  std::int32_t page;             // index in the sequence
  std::int32_t fresh;            // tokens of the page from here on are rows of T, not of W
  std::int32_t without_factors;  // the sequence, if they are to be made of its first page; page 0 stores them; else -1
  half* factors;                 // of the sequence and head
};

/// x, of which the compiler does not know that it is x: what is made of it is made where it stands.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// In place of an element of a sequence's first page, where the factors are always there already.
struct factors_stored {
  __device__ half operator()(std::int32_t, int, int) const { return {}; }
};

/// Codes the keys or the values of units, with one warp for 16 tokens. Window rows are W, new rows T.
template <class Key, class Value, int Dim, class W, class T>
struct page_quantizer {
  using layout_type = page_layout<Key, Value>;
  static constexpr layout_type layout{page_shape{1, Dim, Dim, layout_type::least_page_tokens}};
  static constexpr int page_tokens = layout.shape.page_tokens, tile_tokens = layout.tile_tokens;
  static constexpr int warps = page_tokens / 16, threads = 32 * warps;
  static constexpr int header_bytes = layout.header_bytes(), tile_bytes = layout.tile_bytes();
  static constexpr int key_codes = layout.template codes_offset<side::key>(0) - header_bytes;
  static constexpr int value_codes = layout.template codes_offset<side::value>(0) - header_bytes;
  static constexpr int key_scalars = layout.template token_scalar_byte<side::key>(0, 0) - header_bytes;
  static constexpr int value_scalars = layout.template token_scalar_byte<side::value>(0, 0) - header_bytes;
  static constexpr bool balanced = Key::is_balanced;
  static_assert(tile_tokens == 32, "page_quantizer: tiles of 32 tokens");
  static_assert(!balanced || threads == Dim, "page_quantizer: a thread a channel makes the factors");
  static_assert(std::is_same_v<W, half> && sizeof(T) == 2, "page_quantizer: rows of half, or halves made of T");
  static_assert(Dim == 128, "page_quantizer: head_dim 128");
  static constexpr float root = 11.31370849898f;  // sqrt(Dim)
  static constexpr int steps = Dim / 16;

  struct nothing {};
  struct storage {
    alignas(256) std::byte rows[warps][staged_rows::bytes];          // of the job that comes next
    unit_job job[warps][2];                                          // odd and even numbers: registers are for rows
    alignas(16) uint4 operand[Key::is_centered ? 1 : 2][steps][32];  // of the values; of the keys, not centered
    std::conditional_t<Key::is_centered, centering_storage<Dim, warps>, nothing> centering;
  };

  storage& s;
  std::int32_t const sinks;
  std::uint32_t const one;  // half2(1, 1), which the compiler cannot see
  int const warp, lane;

  /// The first of the two tokens of a page that the lane loads.
  [[nodiscard]] __device__ __forceinline__ int first_token() const { return 16 * warp + (lane >> 2); }

  /// Codes job after job: next(job, rows, n, lane, first_token()) sets job number n and where the lane's rows of it
  /// lie, or returns false; factor_bits(sequence, token, channel) is an element of a sequence's first page. By all
  /// threads of the CTA. The rows of a job are asked for while the one before is coded.
  template <class Next, class FactorBits>
  __device__ __forceinline__ void run(Next next, FactorBits factor_bits) const {
    if (!request(0, next)) return;
    fill_operands();
    __syncthreads();
#pragma unroll 1
    for (std::int32_t n = 0;; ++n) {
      ptx::wait_for_copies();
      __syncwarp();
      // What depends on the lane alone is made anew for each job of centered keys, for the same reason.
      page_quantizer const now{s, sinks, one, Key::is_centered ? opaque(warp) : warp,
                               Key::is_centered ? opaque(lane) : lane};
      bool const more = now.job_of(n).which == side::key ? now.template run_one<side::key>(n, next, factor_bits)
                                                         : now.template run_one<side::value>(n, next, factor_bits);
      if (!more) return;
    }
  }

 private:
  using pairs = row_pairs<Dim>;
  template <side S>
  using format_of = std::conditional_t<S == side::key, Key, Value>;

  [[nodiscard]] __device__ __forceinline__ staged_rows staged() const { return {ptx::shared_address(s.rows[warp])}; }

  [[nodiscard]] __device__ __forceinline__ unit_job const& job_of(std::int32_t n) const { return s.job[warp][n & 1]; }

  template <class Next>
  __device__ __forceinline__ bool request(std::int32_t n, Next& next) const {
    unit_job job{side::key, nullptr, 0, 0, -1, nullptr};
    lane_rows rows;
    if (!next(job, rows, n, lane, first_token())) return false;
    staged().request(rows.at, lane);
    if (lane == 0) s.job[warp][n & 1] = job;
    return true;
  }

  /// Codes job number n, and asks for the next one.
  template <side S, class Next, class FactorBits>
  __device__ __forceinline__ bool run_one(std::int32_t n, Next& next, FactorBits& factor_bits) const {
    using format = format_of<S>;
    using quantizer = row_quantizer<format, S, Dim>;
    pairs x;
    if (int const masked = masked_of(n); masked > 0 || !std::is_same_v<T, W>) prepare_rows(x, job_of(n), masked);
    float norm[2], inverse[2];
    quantizer q;
    bool more;
    if constexpr (format::is_centered) {
      center_rows(x, job_of(n), factor_bits, quantizer::quantize::input_rms, norm, inverse);
      __syncwarp();
      more = request(n + 1, next);
      hadamard_operand const h = make_operand(lane, 0, 0);
      q.rotate(x, [&](int) { return operand_registers<S>(h); });
    } else {
      staged().load(x, lane);
      __syncwarp();
      more = request(n + 1, next);
      normalize(x, quantizer::quantize::input_rms, norm, inverse);
      q.rotate(x, [&](int step) { return s.operand[S == side::key ? 1 : 0][step][lane]; });
    }
    q.code(norm, inverse, one, lane);
    if (std::byte* const unit = job_of(n).unit; unit != nullptr) {
      int const masked = masked_of(n);
      if (masked > 0) mask_codes<S>(q.word, masked);
      store<S>(q, unit, masked);
    }
    return more;
  }
  /// How many of the warp's tokens are masked; may be less than none.
  [[nodiscard]] __device__ __forceinline__ int masked_of(std::int32_t n) const {
    return (job_of(n).page == 0 ? sinks : 0) - 16 * warp;
  }

  // ---- input ----

  /// Staged rows of masked tokens become zeros, those of T halves.
  __device__ __forceinline__ void prepare_rows(pairs& x, unit_job const& job, int masked) const {
    staged().load(x, lane);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (!std::is_same_v<T, W>)
        if (first_token() + 8 * r >= job.fresh)
#pragma unroll
          for (int c = 0; c < Dim / 32; ++c) {
            uint4 const v =
                eight_elements<W, T>(make_uint4(x[r][4 * c], x[r][4 * c + 1], x[r][4 * c + 2], x[r][4 * c + 3]));
            x[r][4 * c] = v.x, x[r][4 * c + 1] = v.y, x[r][4 * c + 2] = v.z, x[r][4 * c + 3] = v.w;
          }
      if ((lane >> 2) + 8 * r < masked)
#pragma unroll
        for (int i = 0; i < Dim / 8; ++i) x[r][i] = 0;
    }
    staged().store(x, lane);
    __syncwarp();
  }

  __device__ __forceinline__ void fill_operands() const {
    fill_operands_of<side::value>();
    if constexpr (!Key::is_centered) fill_operands_of<side::key>();
  }
  template <side S>
  __device__ __forceinline__ void fill_operands_of() const {
    std::uint32_t const signs = sign_bits<rotation_of<format_of<S>>, Dim>(lane & 3);
    for (int step = warp; step < steps; step += warps) {
      std::uint32_t const low = (signs << (15 - 2 * step)) & 0x80008000u;
      std::uint32_t const high = (signs << (14 - 2 * step)) & 0x80008000u;
      s.operand[S == side::key ? 1 : 0][step][lane] = operand_registers<S>(make_operand(lane, low, high));
    }
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
    for (int r = 0; r < 2; ++r) scale_row(x[r], scale[r], power[r], inverse[r]);
  }
  /// x <- x * scale, rounded to a half; inverse: 1 / (sqrt(Dim) s) for all that x was multiplied by, `power` before.
  static __device__ __forceinline__ void scale_row(std::uint32_t (&x)[Dim / 8], float scale, float power,
                                                   float& inverse) {
    std::uint32_t const h = ptx::half2_bits(scale, scale);
    float const used = __fmul_rn(power, ptx::low_half(h));
    inverse = used > 0.f ? ptx::rcp(__fmul_rn(used, root)) : 0.f;
#pragma unroll
    for (int i = 0; i < Dim / 8; ++i) x[i] = ptx::mul2(x[i], h);
  }

  /// Mean off, factors out, signs on; then the rows at norm `rms` as halves. Writes the header.
  template <class FactorBits>
  __device__ __forceinline__ void center_rows(pairs& x, unit_job const& job, FactorBits& factor_bits, float rms,
                                              float (&norm)[2], float (&inverse)[2]) const {
    auto& c = s.centering;
    int const tokens = page_tokens - (job.page == 0 ? sinks : 0);
    if constexpr (balanced) {
      int const channel = 32 * warp + lane;
      half factor;
      if (!std::is_same_v<FactorBits, factors_stored> && job.without_factors >= 0) {
        factor = make_factor<Key, Dim, page_tokens, 1>(c.factors(), 0, channel, sinks, [&](int token) {
          return factor_bits(job.without_factors, token, channel);
        });
        if (job.page == 0 && job.unit != nullptr) job.factors[channel] = factor;
      } else {
        factor = job.factors[channel];
      }
      c.inverse_factor[channel] = __fdiv_rn(1.f, effective_factor(factor));
    }
    staged().sum(c.partial[warp], lane);
    __syncthreads();
    if (warp == 0) center<Key>(c, tokens, lane, job.unit);
    __syncthreads();
    staged().load(x, lane);
    if (c.spoiled) {
      int const again = opaque(lane);
      make_finite<Dim>(x);
      staged().store(x, again);
      __syncwarp();
      staged().sum(c.partial[warp], again);
      __syncthreads();
      if (warp == 0) center<Key>(c, tokens, lane, job.unit);
      __syncthreads();
    }
    int const t = lane & 3;
#pragma unroll
    for (int k = 0; k < Dim / 32; ++k) {
      asm volatile("" ::: "memory");  // one quarter's numbers at a time in registers
      uint4 const mean = reinterpret_cast<uint4 const*>(c.half_mean)[4 * k + t];
      uint4 const slope = reinterpret_cast<uint4 const*>(c.half_slope)[4 * k + t];
      uint4 const shift = reinterpret_cast<uint4 const*>(c.half_shift)[4 * k + t];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        x[r][4 * k] = ptx::fma2(ptx::sub2(x[r][4 * k], mean.x), slope.x, shift.x);
        x[r][4 * k + 1] = ptx::fma2(ptx::sub2(x[r][4 * k + 1], mean.y), slope.y, shift.y);
        x[r][4 * k + 2] = ptx::fma2(ptx::sub2(x[r][4 * k + 2], mean.z), slope.z, shift.z);
        x[r][4 * k + 3] = ptx::fma2(ptx::sub2(x[r][4 * k + 3], mean.w), slope.w, shift.w);
      }
    }
    asm volatile("" ::: "memory");
    squared_norms<Dim>(x, lane, norm);
    // Halves will do where no residual comes near the ends of their range.
    float const least = fminf(norm[0], norm[1]);
    if (__any_sync(~0u, !(least >= 0x1p-16f && norm[0] + norm[1] < 0x1p28f))) {
      center_in_float(x, rms, norm, inverse);
      return;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) scale_row(x[r], __fmul_rn(rms, ptx::rsqrt(norm[r])), 1.f, inverse[r]);
  }

  /// The same in fp32, for residuals of any size; once for the norms, once for the rows.
  __device__ __forceinline__ void center_in_float(pairs& x, float rms, float (&norm)[2], float (&inverse)[2]) const {
    auto const& c = s.centering;
    int const again = opaque(lane), t = again & 3;
    staged().load(x, again);
    auto const value = [&](int r, int i, bool high) {
      int const at = 32 * (i / 4) + 8 * t + 2 * (i % 4) + high;
      float const v = high ? ptx::high_half(x[r][i]) : ptx::low_half(x[r][i]);
      return __fmaf_rn(__fsub_rn(v, c.mean[at]), c.slope[at], c.shift[at]);
    };
    float scales[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = 0.f;
#pragma unroll
      for (int i = 0; i < Dim / 8; ++i) {
        float const low = value(r, i, false), high = value(r, i, true);
        total = __fmaf_rn(high, high, __fmaf_rn(low, low, total));
      }
      total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 1));
      total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 2));
      norm[r] = total > 1e-30f ? total : 0.f;  // what is less decodes to zeros
      scales[r] = norm[r] > 0.f ? __fmul_rn(rms, ptx::rsqrt(norm[r])) : 0.f;
      inverse[r] = scales[r] > 0.f ? ptx::rcp(__fmul_rn(scales[r], root)) : 0.f;
    }
    staged().load(x, again);  // rather than 64 values in registers
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float const scale = scales[r];
#pragma unroll
      for (int i = 0; i < Dim / 8; ++i)
        x[r][i] = ptx::half2_bits(__fmul_rn(value(r, i, false), scale), __fmul_rn(value(r, i, true), scale));
    }
  }

  // ---- output ----

  template <side S, class Quantizer>
  __device__ __forceinline__ void store(Quantizer const& q, std::byte* unit, int masked) const {
    int const half_tile = warp & 1;
    std::byte* const tile = unit + header_bytes + warp / 2 * tile_bytes;
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
