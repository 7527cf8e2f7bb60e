#pragma once

#include <cstddef>
#include <cstdint>

#include <kvant/block/queries.cuh>
#include <kvant/layout/page_layout.hpp>
#include <kvant/warp/key_product.cuh>
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
///   raw score = S * key scale + C: S the product of levels and query, C = query . page mean in the same units; a raw
///   score times a[column] is in log2 units: softmax scale * log2(e) * the query's power * the codec's unit
template <class Key, class Value, int Dim, int Columns>
struct page_tile {
  using layout_type = page_layout<Key, Value>;
  using keys = key_product<codec_of<Key>, Dim, Columns>;
  using value_unpack = fragment_unpack<codec_of<Value>>;
  using state = softmax_state<Dim, Columns>;
  static constexpr layout_type layout{page_shape{1, Dim, Dim, layout_type::least_page_tokens}};
  static constexpr int tokens = layout.tile_tokens, blocks = tokens / 16, steps = Dim / 16, own = state::own;
  static constexpr int header_bytes = layout.header_bytes(), mean_scale_byte = layout.mean_scale_byte();
  static constexpr int key_words = layout_type::key::code_bytes(tokens, Dim) / 128;
  static constexpr int value_words = layout_type::value::code_bytes(tokens, Dim) / 128;
  static constexpr int value_offset = layout.template codes_offset<side::value>(0) - layout.header_bytes();
  static constexpr int key_scale_offset = layout.template token_scalar_byte<side::key>(0, 0) - layout.header_bytes();
  static constexpr int value_scale_offset =
      layout.template token_scalar_byte<side::value>(0, 0) - layout.header_bytes();
  static_assert(tokens == 32, "page_tile: tiles of 32 tokens");
  static constexpr bool has_offset = value_unpack::offset != 0.f;
  static constexpr float out_unit = value_unpack::scale;  // what the output is to be multiplied by

  query_storage<Key, Dim, Columns> const& queries;
  keys product;
  float a[own];     // per column: log2 units of a raw score
  float mean[own];  // C of this page
  std::uint32_t const one;
  int const lane;

  __device__ __forceinline__ page_tile(query_storage<Key, Dim, Columns> const& storage, float scale, std::uint32_t ones,
                                       int lane_index)
      : queries(storage), product(storage.rotated, lane_index), one(ones), lane(lane_index) {
#pragma unroll
    for (int c = 0; c < own; ++c) {
      a[c] = scale * queries.rotated_scale[own * (lane & 3) + c] * keys::unit;
      mean[c] = 0.f;
    }
  }

  /// mean[c] <- query . page mean.
  __device__ __forceinline__ void read_mean(std::byte const* header) {
    float m[own];
    mean_product<Dim, Columns>(queries.rows, header, lane, m);
    half stored;
    stored.bits = *reinterpret_cast<std::uint16_t const*>(header + mean_scale_byte);
    float const scale = static_cast<float>(stored) * (1.f / (127.f * keys::unit));
#pragma unroll
    for (int c = 0; c < own; ++c) mean[c] = m[c] * scale;
  }

  /// A tile; its first `masked` tokens are not part of the page.
  __device__ __forceinline__ void attend(state& st, std::byte const* tile, int masked) {
    int const g = lane >> 2;
    float x[blocks][2][own];
    {
      std::uint32_t w[key_words];
      load_words(w, tile, lane);
      product.scores(w, one, x);
    }
    uint2 const ks = *reinterpret_cast<uint2 const*>(tile + key_scale_offset + 8 * g);
    uint2 const vs = *reinterpret_cast<uint2 const*>(tile + value_scale_offset + 8 * g);
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int c = 0; c < own; ++c) x[b][r][c] = fmaf(x[b][r][c], row_scale(ks, b, r), mean[c]);
    float largest[own];
    largest_of(x, largest);
    std::uint32_t const scales = ptx::max_halves(vs.x, vs.y);
    if (st.is_behind(largest, scales, masked > 0)) {
      if (masked > 0) {
#pragma unroll
        for (int b = 0; b < blocks; ++b)
#pragma unroll
          for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int c = 0; c < own; ++c)
              if (16 * b + 8 * r + g < masked) x[b][r][c] = -INFINITY;
        largest_of(x, largest);
      }
      st.raise(largest, scales);
    }
    std::uint32_t p[blocks][2];
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float const value_scale = row_scale(vs, b, r);
        float e[own];
#pragma unroll
        for (int c = 0; c < own; ++c) {
          e[c] = ptx::exp2(fmaf(x[b][r][c], a[c], st.shift[c]));
          st.sum[c] += e[c];
        }
        p[b][r] = ptx::movmatrix(ptx::half2_bits(e[0] * value_scale, own == 1 ? 0.f : e[own - 1] * value_scale));
      }
    {
      std::uint32_t w[value_words];
      load_words(w, tile + value_offset, lane);
      if constexpr (value_unpack::offset != 0.f) {
        constexpr std::uint32_t pair = 0x00010001u * static_cast<std::uint32_t>(value_unpack::offset * 16777216.f);
        std::uint32_t const constant[4] = {pair, pair, pair, pair};
#pragma unroll
        for (int b = 0; b < blocks; ++b) ptx::mma(st.offset_out, constant, p[b][0], p[b][1]);
      }
#pragma unroll
      for (int b = 0; b < blocks; ++b)
#pragma unroll
        for (int k = 0; k < steps; ++k) {
          int const f = b * steps + k;
          std::uint32_t fragment[4];
          value_unpack::unpack(&w[f / value_unpack::fragments_per_unit * value_unpack::words_per_unit],
                               f % value_unpack::fragments_per_unit, one, fragment);
          ptx::mma(st.out[k], fragment, p[b][0], p[b][1]);
        }
    }
  }

  /// The lane's largest score of each of its columns, log2 units.
  __device__ __forceinline__ void largest_of(float const (&x)[blocks][2][own], float (&largest)[own]) const {
#pragma unroll
    for (int c = 0; c < own; ++c) {
      largest[c] = x[0][0][c];
#pragma unroll
      for (int b = 0; b < blocks; ++b)
#pragma unroll
        for (int r = 0; r < 2; ++r) largest[c] = fmaxf(largest[c], x[b][r][c]);
      largest[c] *= a[c];
    }
  }

  /// Scale of token 16b + 8r + g: half 2b + r of the lane's four.
  static __device__ __forceinline__ float row_scale(uint2 v, int b, int r) {
    std::uint32_t const pair = b == 0 ? v.x : v.y;
    return r == 0 ? ptx::low_half(pair) : ptx::high_half(pair);
  }

  /// Where the slot of an output row lies.
  static __device__ __forceinline__ int position(int row) { return position_of(row, Dim); }

  /// Takes the offset off.
  __device__ __forceinline__ void finish(state& st) const {
    if constexpr (value_unpack::offset != 0.f)
#pragma unroll
      for (int k = 0; k < steps; ++k)
#pragma unroll
        for (int j = 0; j < 4; ++j) st.out[k][j] -= st.offset_out[j];
  }
};

}  // namespace kvant::inline v0::detail
