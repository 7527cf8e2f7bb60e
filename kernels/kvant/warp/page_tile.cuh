#pragma once

#include <cstddef>
#include <cstdint>

#include <kvant/block/queries.cuh>
#include <kvant/layout/page_layout.hpp>
#include <kvant/warp/softmax.cuh>
#include <kvant/warp/unpack.cuh>

namespace kvant::inline v0::detail {

/// A lane's words of one side of a tile: 16-byte loads, then planes (layout/code_order.hpp, word_byte).
template <int Words>
__device__ __forceinline__ void load_words(std::uint32_t (&w)[Words], std::byte const* codes, int lane) {
#pragma unroll
  for (int i = 0; i < Words / 4; ++i) {
    uint4 const v = *reinterpret_cast<uint4 const*>(codes + word_byte(4 * i, lane, Words));
    w[4 * i] = v.x, w[4 * i + 1] = v.y, w[4 * i + 2] = v.z, w[4 * i + 3] = v.w;
  }
#pragma unroll
  for (int i = Words / 4 * 4; i < Words; ++i)
    w[i] = *reinterpret_cast<std::uint32_t const*>(codes + word_byte(i, lane, Words));
}

/// Scores and output of one tile of a page for the columns of a warp.
///   score = (S * key scale + C) * A[column]: S the product of levels and query (fp16 mma), C = query . page mean in the
///   same units, A = softmax scale * log2(e) * the query's power * the codec's scale
template <class Key, class Value, int Dim, int Columns>
struct page_tile {
  using layout_type = page_layout<Key, Value>;
  using key_unpack = fragment_unpack<codec_of<Key>>;
  using value_unpack = fragment_unpack<codec_of<Value>>;
  using state = softmax_state<Dim, Columns>;
  static constexpr layout_type layout{page_shape{1, Dim, Dim, layout_type::least_page_tokens}};
  static constexpr int tokens = layout.tile_tokens, blocks = tokens / 16, steps = Dim / 16, own = state::own;
  static constexpr int header_bytes = layout.header_bytes(), mean_scale_byte = layout.mean_scale_byte();
  static constexpr int stage_bytes = layout.tile_offset(1);
  static constexpr int key_words = layout_type::key::code_bytes(tokens, Dim) / 128;
  static constexpr int value_words = layout_type::value::code_bytes(tokens, Dim) / 128;
  static constexpr int value_offset = layout.template codes_offset<side::value>(0) - layout.header_bytes();
  static constexpr int key_scale_offset = layout.template token_scalar_byte<side::key>(0, 0) - layout.header_bytes();
  static constexpr int value_scale_offset =
      layout.template token_scalar_byte<side::value>(0, 0) - layout.header_bytes();
  static_assert(tokens == 32, "page_tile: tiles of 32 tokens");

  query_storage<Dim> const& queries;
  std::uint32_t q[steps][2];  // B operands
  float a[own];               // per column: log2 units of a raw score
  float start[2];             // what the accumulators start from (mma columns 2t, 2t + 1)
  float mean[own];            // C of this page
  std::uint32_t const one;
  int const lane;

  __device__ __forceinline__ page_tile(query_storage<Dim> const& qs, float scale, std::uint32_t ones, int lane_index)
      : queries(qs), one(ones), lane(lane_index) {
    int const g = lane >> 2, t = lane & 3, column = Columns == 4 ? g >> 1 : g;
    float sum = 0.f;
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      float4 const v = *reinterpret_cast<float4 const*>(&qs.rotated[column][32 * (s / 2) + 8 * t + 4 * (s % 2)]);
      q[s][0] = operand(v.x, v.y, sum), q[s][1] = operand(v.z, v.w, sum);
    }
    start[0] = start[1] = 0.f;
    if constexpr (key_unpack::offset != 0.f) {
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      start[0] = -key_unpack::offset * __shfl_sync(~0u, sum, 8 * t);
      start[1] = -key_unpack::offset * __shfl_sync(~0u, sum, 8 * t + 4);
    }
#pragma unroll
    for (int c = 0; c < own; ++c) {
      a[c] = scale * qs.rotated_scale[own * t + c] * key_unpack::scale;
      mean[c] = 0.f;
    }
  }

  /// Two queries as halves: the high part, or in odd columns of four the low part. Adds what the halves hold to `sum`.
  __device__ __forceinline__ std::uint32_t operand(float x, float y, float& sum) const {
    std::uint32_t h = ptx::half2_bits(x, y);
    if (Columns == 4 && ((lane >> 2) & 1)) h = ptx::half2_bits(x - ptx::low_half(h), y - ptx::high_half(h));
    sum += ptx::low_half(h) + ptx::high_half(h);
    return h;
  }

  /// mean[c] <- query . page mean, in units of a raw score: one mma a step, every row of A being the mean.
  __device__ __forceinline__ void read_mean(std::byte const* header) {
    int const g = lane >> 2, t = lane & 3;
    float c[4] = {}, low[4] = {};
#pragma unroll
    for (int s = 0; s < steps; s += 2) {
      uint2 const bytes = *reinterpret_cast<uint2 const*>(header + 16 * s + 8 * t);
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        std::uint32_t const w = (b == 0 ? bytes.x : bytes.y) ^ 0x80808080u;                            // int8 + 128
        std::uint32_t m0 = ptx::prmt(w, 0x64646464u, 0x4140), m1 = ptx::prmt(w, 0x64646464u, 0x4342);  // 1024 + byte
        m0 = minus_1152(m0), m1 = minus_1152(m1);
        std::uint32_t const rows[4] = {m0, m0, m1, m1};
        ptx::mma(c, rows, q[s + b][0], q[s + b][1]);
        if constexpr (Columns == 8) {
          float const* const x = &queries.rotated[g][32 * (s / 2) + 8 * t + 4 * b];
          std::uint32_t const l0 =
              ptx::half2_bits(x[0] - ptx::low_half(q[s + b][0]), x[1] - ptx::high_half(q[s + b][0]));
          std::uint32_t const l1 =
              ptx::half2_bits(x[2] - ptx::low_half(q[s + b][1]), x[3] - ptx::high_half(q[s + b][1]));
          ptx::mma(low, rows, l0, l1);
        }
      }
    }
    half stored;
    stored.bits = *reinterpret_cast<std::uint16_t const*>(header + mean_scale_byte);
    float const scale = static_cast<float>(stored) / key_unpack::scale;
    if constexpr (own == 1) {
      mean[0] = (c[0] + c[1]) * scale;
    } else {
      mean[0] = (c[0] + low[0]) * scale, mean[1] = (c[1] + low[1]) * scale;
    }
  }
  static __device__ __forceinline__ std::uint32_t minus_1152(std::uint32_t pair) {
    std::uint32_t r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(pair), "r"(0x64806480u));
    return r;
  }

  /// A tile in `stage`, behind the page's header if `with_header` (the mean of the last header seen holds else); the tile's
  /// first `masked` tokens are not part of the page.
  __device__ __forceinline__ void attend(state& st, std::byte const* stage, bool with_header, int masked) {
    int const g = lane >> 2;
    if constexpr (Key::is_centered) {
      if (with_header) {
        read_mean(stage);
        stage += header_bytes;
      }
    }
    float s[blocks][4];
#pragma unroll
    for (int b = 0; b < blocks; ++b) s[b][0] = s[b][2] = start[0], s[b][1] = s[b][3] = start[1];
    {
      std::uint32_t w[key_words];
      load_words(w, stage, lane);
#pragma unroll
      for (int k = 0; k < steps; ++k)
#pragma unroll
        for (int b = 0; b < blocks; ++b) {
          int const f = b * steps + k;
          std::uint32_t frag[4];
          key_unpack::unpack(&w[f / key_unpack::fragments_per_unit * key_unpack::words_per_unit],
                             f % key_unpack::fragments_per_unit, one, frag);
          ptx::mma(s[b], frag, q[k][0], q[k][1]);
        }
    }
    uint2 const ks = *reinterpret_cast<uint2 const*>(stage + key_scale_offset + 8 * g);
    uint2 const vs = *reinterpret_cast<uint2 const*>(stage + value_scale_offset + 8 * g);
    float x[blocks][2][own];
    float largest[own], scale = 0.f;
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float const key_scale = row_scale(ks, b, r);
        scale = fmaxf(scale, row_scale(vs, b, r));
#pragma unroll
        for (int c = 0; c < own; ++c) {
          float const raw = own == 1 ? s[b][2 * r] + s[b][2 * r + 1] : s[b][2 * r + c];
          x[b][r][c] = fmaf(raw, key_scale, mean[c]);
        }
      }
    if (masked > 0)
#pragma unroll
      for (int b = 0; b < blocks; ++b)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          if (16 * b + 8 * r + g < masked)
#pragma unroll
            for (int c = 0; c < own; ++c) x[b][r][c] = -INFINITY;
#pragma unroll
    for (int c = 0; c < own; ++c) largest[c] = x[0][0][c];
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int c = 0; c < own; ++c) largest[c] = fmaxf(largest[c], x[b][r][c]);
    st.raise(largest, scale);
    std::uint32_t p[blocks][2];
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float const value_scale = row_scale(vs, b, r) * st.value_unit;
        float e[2] = {0.f, 0.f};
#pragma unroll
        for (int c = 0; c < own; ++c) {
          e[c] = ptx::exp2(fmaf(x[b][r][c], st.a[c], st.shift(c)));
          st.sum[c] += e[c];
        }
        p[b][r] = ptx::movmatrix(ptx::half2_bits(e[0] * value_scale, e[1] * value_scale));
      }
    {
      std::uint32_t w[value_words];
      load_words(w, stage + value_offset, lane);
#pragma unroll
      for (int b = 0; b < blocks; ++b) {
        if constexpr (value_unpack::offset != 0.f) {
          constexpr std::uint32_t pair = 0x00010001u * static_cast<std::uint32_t>(value_unpack::offset * 16777216.f);
          std::uint32_t const constant[4] = {pair, pair, pair, pair};
          ptx::mma(st.offset_out, constant, p[b][0], p[b][1]);
        }
#pragma unroll
        for (int k = 0; k < steps; ++k) {
          int const f = b * steps + k;
          std::uint32_t frag[4];
          value_unpack::unpack(&w[f / value_unpack::fragments_per_unit * value_unpack::words_per_unit],
                               f % value_unpack::fragments_per_unit, one, frag);
          ptx::mma(st.out[k], frag, p[b][0], p[b][1]);
        }
      }
    }
  }

  /// Scale of token 16b + 8r + g: half 2b + r of the lane's four.
  static __device__ __forceinline__ float row_scale(uint2 v, int b, int r) {
    std::uint32_t const pair = b == 0 ? v.x : v.y;
    return r == 0 ? ptx::low_half(pair) : ptx::high_half(pair);
  }

  /// Takes the offset off and the codec's scale in.
  __device__ __forceinline__ void finish(state& st) const {
    if constexpr (value_unpack::offset != 0.f)
#pragma unroll
      for (int k = 0; k < steps; ++k)
#pragma unroll
        for (int j = 0; j < 4; ++j) st.out[k][j] -= st.offset_out[j];
    st.value_power *= value_unpack::scale;
  }
};

}  // namespace kvant::inline v0::detail
