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
  std::int32_t sequence, page;  // page: index in the sequence
  std::int32_t fresh;           // tokens of the page from here on are rows of T, not of W
  bool without_factors;         // they are to be made of the sequence's first page; page 0 stores them
  half* factors;                // of the sequence and head
};
/// Where what a job needs lies: rows, and the page's id in the block table.
struct job_source {
  lane_rows rows;
  std::int32_t const* id;
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
  static constexpr int steps = Dim / 16;

  struct nothing {};
  /// Rows wait in one place while those of the job before are in registers, or in two where they are read twice.
  static constexpr int stages = Key::is_centered ? 2 : 1;
  struct storage {
    alignas(256) std::byte rows[stages][warps][staged_rows::bytes];
    unit_job job[warps][2];  // odd and even numbers: registers are for rows
    std::int32_t id[warps][2];
    alignas(16) uint4 operand[steps][32];  // H_16 with the signs of the values
    alignas(
        16) std::uint32_t sign[Key::is_centered ? 1 : 4][Dim / 8];  // of the keys, as pairs of halves, if not centered
    std::conditional_t<Key::is_centered, centering_storage<Dim, warps>, nothing> centering;
  };

  storage& s;
  std::int32_t const sinks;
  std::uint32_t const one;  // half2(1, 1), which the compiler cannot see
  int const warp, lane;

  /// The first of the two tokens of a page that the lane loads.
  [[nodiscard]] __device__ __forceinline__ int first_token() const { return 16 * warp + (lane >> 2); }

  /// Codes job after job: next(job, source, n, lane, first_token()) sets job number n and where it lies, or returns
  /// false; unit(id, sequence) is where a page is written, or null; factor_bits(sequence, token, channel) is an element
  /// of a sequence's first page. By all threads of the CTA. What a job needs is asked for while the one before is coded.
  template <class Next, class Unit, class FactorBits>
  __device__ __forceinline__ void run(Next next, Unit unit, FactorBits factor_bits) const {
    if (!request(0, next)) return;
    fill_operands();
    __syncthreads();
#pragma unroll 1
    for (std::int32_t n = 0;; ++n) {
      ptx::wait_for_copies();
      __syncwarp();
      bool more = false;
      if constexpr (stages > 1) more = request(n + 1, next);
      if (job_of(n).which == side::key)
        code_rows<side::key>(n, more, next, unit, factor_bits);
      else
        code_rows<side::value>(n, more, next, unit, factor_bits);
      if (!more) return;
    }
  }

 private:
  using pairs = row_pairs<Dim>;
  template <side S>
  using format_of = std::conditional_t<S == side::key, Key, Value>;

  [[nodiscard]] __device__ __forceinline__ staged_rows staged(std::int32_t n) const {
    return {ptx::shared_address(s.rows[n % stages][warp])};
  }
  [[nodiscard]] __device__ __forceinline__ unit_job const& job_of(std::int32_t n) const { return s.job[warp][n & 1]; }

  template <class Next>
  __device__ __forceinline__ bool request(std::int32_t n, Next& next) const {
    unit_job job{side::key, 0, 0, 0, false, nullptr};
    job_source source;
    if (!next(job, source, n, lane, first_token())) return false;
    staged(n).request(source.rows.at, lane);
    if (lane == 0) {
      s.job[warp][n & 1] = job;
      ptx::copy_4(ptx::shared_address(&s.id[warp][n & 1]), source.id);
    }
    if constexpr (balanced)
      if (warp == 0 && lane < Dim / 8 && job.which == side::key && !job.without_factors)
        ptx::copy_16(ptx::shared_address(s.centering.factor[n & 1] + 8 * lane), job.factors + 8 * lane);
    return true;
  }

  /// Codes job number n; asks for the next one once its rows are in registers, where they wait in one place.
  template <side S, class Next, class Unit, class FactorBits>
  __device__ __forceinline__ void code_rows(std::int32_t n, bool& more, Next& next, Unit& unit,
                                            FactorBits& factor_bits) const {
    using format = format_of<S>;
    using quantizer = row_quantizer<format, S, Dim>;
    pairs x;
    float norm[2], back[2];
    quantizer q;
    if constexpr (format::is_centered) {
      if (masked_of(n) > 0 || !std::is_same_v<T, W>) {
        load_rows(x, n);
        staged(n).store(x, lane);
        __syncwarp();
      }
      center_rows<quantizer>(x, n, unit, factor_bits, norm, back);
    } else {
      load_rows(x, n);
      if constexpr (stages == 1) {
        __syncwarp();
        more = request(n + 1, next);
      }
      normalize<quantizer>(x, norm, back);
    }
    if constexpr (S == side::key) {
      if constexpr (!format::is_centered) turn_signs(x);
      q.rotate(x, make_operand(lane, half_pair(quantizer::gain), 0, 0), one);
    } else {
      q.rotate(x, [&](int step) { return s.operand[step][lane]; });
    }
    q.code(norm, back, one, lane);
    if (std::byte* const at = unit(s.id[warp][n & 1], job_of(n).sequence); at != nullptr) {
      int const masked = masked_of(n);
      if (masked > 0) mask_codes<S>(q.word, masked);
      store<S>(q, at, masked);
    }
  }
  /// How many of the warp's tokens are masked; may be less than none.
  [[nodiscard]] __device__ __forceinline__ int masked_of(std::int32_t n) const {
    return (job_of(n).page == 0 ? sinks : 0) - 16 * warp;
  }

  // ---- input ----

  /// Staged rows, those of masked tokens as zeros, those of T as halves.
  __device__ __forceinline__ void load_rows(pairs& x, std::int32_t n) const {
    staged(n).load(x, lane);
    if constexpr (!std::is_same_v<T, W>)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (first_token() + 8 * r >= job_of(n).fresh)
#pragma unroll
          for (int c = 0; c < Dim / 32; ++c) {
            uint4 const v =
                eight_elements<W, T>(make_uint4(x[r][4 * c], x[r][4 * c + 1], x[r][4 * c + 2], x[r][4 * c + 3]));
            x[r][4 * c] = v.x, x[r][4 * c + 1] = v.y, x[r][4 * c + 2] = v.z, x[r][4 * c + 3] = v.w;
          }
    if (int const masked = masked_of(n); masked > 0)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if ((lane >> 2) + 8 * r < masked)
#pragma unroll
          for (int i = 0; i < Dim / 8; ++i) x[r][i] = 0;
  }

  __device__ __forceinline__ void fill_operands() const {
    using quantizer = row_quantizer<Value, side::value, Dim>;
    std::uint32_t const signs = sign_bits<rotation_of<Value>, Dim>(lane & 3);
    for (int step = warp; step < steps; step += warps) {
      hadamard_operand const h =
          make_operand(lane, half_pair(quantizer::gain), (signs << (15 - 2 * step)) & 0x80008000u,
                       (signs << (14 - 2 * step)) & 0x80008000u);
      s.operand[step][lane] = make_uint4(h.low, h.low, h.high, h.high ^ 0x80008000u);
    }
    if constexpr (!Key::is_centered)
      if (int const t = 32 * warp + lane; t < 4) {
        std::uint32_t const bits = sign_bits<rotation_of<Key>, Dim>(t);
        for (int i = 0; i < Dim / 8; ++i) s.sign[t][i] = half_pair(1.f) | ((bits << (15 - i)) & 0x80008000u);
      }
  }
  __device__ __forceinline__ void turn_signs(pairs& x) const {
#pragma unroll
    for (int c = 0; c < Dim / 32; ++c) {
      std::uint32_t sign[4];
      ptx::load_shared(sign, ptx::shared_address(s.sign[lane & 3] + 4 * c));
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < 4; ++i) x[r][4 * c + i] = ptx::mul2(x[r][4 * c + i], sign[i]);
    }
  }

  template <class Quantizer>
  static __device__ __forceinline__ bool out_of_range(float const (&norm)[2]) {
    bool out = false;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      out = out || !(norm[r] <= Quantizer::most_square && (norm[r] >= Quantizer::least_square || norm[r] == 0.f));
    return __any_sync(~0u, out);
  }
  /// Rows as they are, times powers of two (1 / back) where their norms want it.
  template <class Quantizer>
  __device__ __forceinline__ void normalize(pairs& x, float (&norm)[2], float (&back)[2]) const {
    squared_norms<Dim>(x, lane, norm);
    back[0] = back[1] = 1.f;
    if (!out_of_range<Quantizer>(norm)) return;
    if (__any_sync(~0u, !(norm[0] + norm[1] < INFINITY))) {
      make_finite<Dim>(x);
      squared_norms<Dim>(x, lane, norm);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // The exponent of the norm is half of its square's; powers of two that are halves.
      int const exponent = ((static_cast<int>(__float_as_uint(norm[r]) >> 23) - 127) >> 1) - 2;
      int const power = norm[r] > 0.f ? max(-14, min(15, -exponent)) : 0;
      float const p = __uint_as_float(static_cast<unsigned>(127 + power) << 23);
      back[r] = __uint_as_float(static_cast<unsigned>(127 - power) << 23);
      norm[r] = __fmul_rn(__fmul_rn(norm[r], p), p);
      std::uint32_t const pair = ptx::half2_bits(p, p);
#pragma unroll
      for (int i = 0; i < Dim / 8; ++i) x[r][i] = ptx::mul2(x[r][i], pair);
    }
  }

  /// Mean off, factors out, signs on. Writes the header.
  template <class Quantizer, class Unit, class FactorBits>
  __device__ __forceinline__ void center_rows(pairs& x, std::int32_t n, Unit& unit, FactorBits& factor_bits,
                                              float (&norm)[2], float (&back)[2]) const {
    auto& c = s.centering;
    auto const center_page = [&] {
      staged(n).sum(c.partial[warp], lane);
      __syncthreads();
      if (warp == 0)
        center<Key>(c, c.factor[n & 1], page_tokens - (job_of(n).page == 0 ? sinks : 0), lane,
                    unit(s.id[warp][n & 1], job_of(n).sequence));
      __syncthreads();
    };
    if constexpr (balanced && !std::is_same_v<FactorBits, factors_stored>)
      if (job_of(n).without_factors) {
        int const channel = 32 * warp + lane;
        half const factor = make_factor<Key, Dim, page_tokens, 1>(
            c.factors(), 0, channel, sinks, [&](int token) { return factor_bits(job_of(n).sequence, token, channel); });
        c.factor[n & 1][channel] = factor;
        if (job_of(n).page == 0 && unit(s.id[warp][n & 1], job_of(n).sequence) != nullptr)
          job_of(n).factors[channel] = factor;
      }
    center_page();
    staged(n).load(x, lane);
    if (c.spoiled) {
      int const again = opaque(lane);
      make_finite<Dim>(x);
      staged(n).store(x, again);
      __syncwarp();
      center_page();
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
    back[0] = back[1] = 1.f;
    // Halves will do where no residual comes near the ends of their range.
    float const least = fminf(norm[0], norm[1]);
    if (__any_sync(~0u, !(least >= Quantizer::least_square && fmaxf(norm[0], norm[1]) <= Quantizer::most_square)))
      center_in_float(x, n, norm, back);
  }

  /// The same in fp32, for residuals of any size, to a norm of 4: once for the norms, once for the rows, where they are
  /// staged.
  __device__ __forceinline__ void center_in_float(pairs& x, std::int32_t n, float (&norm)[2], float (&back)[2]) const {
    auto const& c = s.centering;
    staged_rows const rows = staged(n);
    int const again = opaque(lane);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      auto const value = [&](std::uint32_t pair, int at, bool high) {
        float const v = high ? ptx::high_half(pair) : ptx::low_half(pair);
        return __fmaf_rn(__fsub_rn(v, c.mean[at + high]), c.slope[at + high], c.shift[at + high]);
      };
      auto const each_pair = [&](auto use) {
#pragma unroll 1
        for (int k = 0; k < Dim / 32; ++k) {
          std::uint32_t pair[4];
          rows.load_chunk(pair, r, k, again);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            int const at = 32 * k + 8 * (again & 3) + 2 * i;
            use(pair[i], value(pair[i], at, false), value(pair[i], at, true));
          }
          rows.store_chunk(pair, r, k, again);
        }
      };
      float total = 0.f;
      each_pair(
          [&](std::uint32_t&, float low, float high) { total = __fmaf_rn(high, high, __fmaf_rn(low, low, total)); });
      total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 1));
      total = __fadd_rn(total, __shfl_xor_sync(~0u, total, 2));
      bool const some = total > 1e-30f;  // what is less decodes to zeros
      float const scale = some ? __fmul_rn(4.f, ptx::rsqrt(total)) : 0.f;
      norm[r] = some ? 16.f : 0.f, back[r] = some ? ptx::rcp(scale) : 0.f;
      each_pair([&](std::uint32_t& pair, float low, float high) {
        pair = ptx::half2_bits(__fmul_rn(low, scale), __fmul_rn(high, scale));
      });
    }
    rows.load(x, again);
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
