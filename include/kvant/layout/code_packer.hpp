#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <kvant/config.hpp>
#include <kvant/layout/code_order.hpp>
#include <kvant/simd/vector.hpp>

namespace kvant::inline v0::detail {

/// Packs and unpacks the codes of tiles on the host, eight lanes at a time: the lanes 4g + t of one t read neighbouring
/// tokens (keys) or channels (values), which code_array keeps adjacent.
template <int Bits, side S>
class code_packer {
  using order = code_order<Bits, S>;

 public:
  /// Codes of a page as bytes: [channel, token] for keys, [token, channel] for values.
  [[nodiscard]] static constexpr int code_index(int token, int channel, int page_tokens, int dim) {
    return S == side::key ? channel * page_tokens + token : token * dim + channel;
  }

  void prepare(int tile_tokens, int page_tokens, int dim) {
    units_ = tile_tokens * dim / (32 * order::codes);
    tile_step_ = code_index(tile_tokens, 0, page_tokens, dim);
    cells_.clear();
    for (int unit = 0; unit < units_; ++unit)
      for (int t = 0; t < 4; ++t)
        for (int n = 0; n < order::codes; ++n) {
          code_cell const c = order::cell(unit, t, n, tile_tokens, dim);
          cells_.push_back(code_index(c.token, c.channel, page_tokens, dim));
        }
  }

  /// The words of tile `tile` of `codes`, a whole page.
  void pack(std::uint8_t const* codes, int tile, std::byte* out) const {
    for_each_lane_group(codes + std::int64_t{tile} * tile_step_,
                        [out](std::uint8_t const* from, std::int32_t const* cell, auto const& byte_of) {
                          simd::word_lanes word[order::words];
                          [&]<int... N>(std::integer_sequence<int, N...>) {
                            (put_lanes<N, 0>(from + cell[N], word), ...);
                          }
                          (std::make_integer_sequence<int, order::codes>{});
                          for (int w = 0; w < order::words; ++w)
                            for (int g = 0; g < 8; ++g) {
                              std::uint32_t const lane = word[w][g];
                              std::memcpy(out + byte_of(w, g), &lane, 4);
                            }
                        });
  }

  /// The inverse of pack().
  void unpack(std::byte const* in, int tile, std::uint8_t* codes) const {
    for_each_lane_group(codes + std::int64_t{tile} * tile_step_,
                        [in](std::uint8_t* to, std::int32_t const* cell, auto const& byte_of) {
                          simd::word_lanes word[order::words];
                          for (int w = 0; w < order::words; ++w)
                            for (int g = 0; g < 8; ++g) {
                              std::uint32_t lane;
                              std::memcpy(&lane, in + byte_of(w, g), 4);
                              word[w].set(g, lane);
                            }
                          [&]<int... N>(std::integer_sequence<int, N...>) { (take_lanes<N>(word, to + cell[N]), ...); }
                          (std::make_integer_sequence<int, order::codes>{});
                        });
  }

 private:
  template <class Codes, class Fn>
  void for_each_lane_group(Codes* codes, Fn fn) const {
    int const words = units_ * order::words;
    std::int32_t const* cell = cells_.data();
    for (int unit = 0; unit < units_; ++unit)
      for (int t = 0; t < 4; ++t, cell += order::codes)
        fn(codes, cell, [=](int w, int g) { return word_byte(unit * order::words + w, 4 * g + t, words); });
  }

  template <int N, int K>
  static void put_lanes(std::uint8_t const* code, simd::word_lanes* word) {
    if constexpr (K < Bits) {
      constexpr int length = run_length<order, Bits, N, K>();
      constexpr unit_bit at = order::bit(N, K);
      word[at.word].put(code, K, (1u << length) - 1, at.bit);
      put_lanes<N, K + length>(code, word);
    }
  }
  template <int N, int K>
  static void gather_lanes(simd::word_lanes const* word, simd::word_lanes& code) {
    if constexpr (K < Bits) {
      constexpr int length = run_length<order, Bits, N, K>();
      constexpr unit_bit at = order::bit(N, K);
      code.take(word[at.word], at.bit, (1u << length) - 1, K);
      gather_lanes<N, K + length>(word, code);
    }
  }
  template <int N>
  static void take_lanes(simd::word_lanes const* word, std::uint8_t* code) {
    simd::word_lanes lanes;
    gather_lanes<N, 0>(word, lanes);
    lanes.store_bytes(code);
  }

  int units_ = 0, tile_step_ = 0;
  std::vector<std::int32_t> cells_;  // [units, t, codes]: index of lane t (g = 0)
};

}  // namespace kvant::inline v0::detail
