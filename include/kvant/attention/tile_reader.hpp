#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <kvant/format/affine.hpp>
#include <kvant/format/codec.hpp>
#include <kvant/format/format.hpp>
#include <kvant/format/lloyd_max.hpp>
#include <kvant/format/sign.hpp>
#include <kvant/layout/code_order.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/simd/aligned.hpp>
#include <kvant/simd/lookup.hpp>
#include <kvant/simd/rows.hpp>

namespace kvant::inline v0::detail {

/// A codec whose decode(c, p) is level(c) * scale(p) + zero(p).
template <class Codec>
struct linear_levels;
template <int Bits>
struct linear_levels<lloyd_max<Bits>> {
  using params = typename lloyd_max<Bits>::params;
  static constexpr bool has_zero = false;
  static float level(int c) { return static_cast<float>(codebook_table<Bits>::level(c)); }
  static float scale(params p) { return codebook_table<Bits>::step * static_cast<float>(p.scalar[0]); }
  static float zero(params) { return 0.f; }
};
template <int Bits>
struct linear_levels<affine<Bits>> {
  using params = typename affine<Bits>::params;
  static constexpr bool has_zero = true;
  static float level(int c) { return static_cast<float>(c); }
  static float scale(params p) { return static_cast<float>(p.scalar[0]); }
  static float zero(params p) { return static_cast<float>(p.scalar[1]); }
};
template <>
struct linear_levels<sign> {
  using params = sign::params;
  static constexpr bool has_zero = false;
  static float level(int c) { return c != 0 ? 1.f : -1.f; }
  static float scale(params p) { return static_cast<float>(p.scalar[0]); }
  static float zero(params) { return 0.f; }
};

/// Reads one side of a packed tile, 16 tokens at a time, as floats in the coordinates that are coded: keys
/// [channel, 16 tokens], values [16 tokens, channel], so that attention's inner loops run along vectors on either side.
template <kv_format Key, kv_format Value, side S>
class tile_reader {
  using format_type = std::conditional_t<S == side::key, Key, Value>;
  using codec = codec_of<format_type>;
  using grouping = grouping_of<format_type>;
  using layout_type = page_layout<Key, Value>;

 public:
  static constexpr int tokens = 16;

  void prepare(layout_type const& layout) {
    layout_ = layout;
    dim_ = S == side::key ? layout.shape.key_dim : layout.shape.value_dim;
    auto const d = static_cast<std::size_t>(dim_);
    if constexpr (codec::exact) {
      rows_.resize(S == side::key ? d * tokens : 0);
    } else {
      prepare_places();
      prepare_scalars();
      scale_.resize(std::max<std::size_t>(d, tokens));
      zero_.resize(scale_.size());
      for (int c = 0; c < 16; ++c) table_[c] = linear_levels<codec>::level(c % (1 << codec::bits));
    }
  }

  /// Turns to a tile of the unit. The unit is read until the next call.
  void open(std::byte const* unit, int tile) {
    unit_ = unit, tile_ = tile, group_ = -1;
    if constexpr (!codec::exact) load_words(unit + layout_.template codes_offset<S>(tile));
  }

  /// Tokens [from, from + 16) of the tile, from a multiple of 16.
  void read(int from, float* out) {  // -> [channel, 16] or [16, channel]
    if constexpr (codec::exact)
      read_exact(from, out);
    else if constexpr (grouping::along_tokens)
      read_channel_groups(from, out);
    else
      read_token_groups(from, out);
  }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] int token_in_page(int token) const { return tile_ * layout_.tile_tokens + token; }

  void read_exact(int from, float* out) {
    using stored = typename codec::element_type;
    float* const rows = S == side::key ? rows_.data() : out;
    for (int t = 0; t < tokens; ++t) {
      std::byte const* const at = unit_ + layout_.template code_bit<S>(token_in_page(from + t), 0, 0).byte;
      simd::widen(reinterpret_cast<stored const*>(at), rows + std::int64_t{t} * dim_, dim_);
    }
    if constexpr (S == side::key) simd::transpose_16(rows, out, dim_);
  }

  // ---- parameters ----

  /// Where the scalars of tile 0 lie in a unit; those of tile i, i tiles behind.
  void prepare_scalars() {
    int const tile_tokens = layout_.tile_tokens;
    scalar_bytes_.clear();
    if constexpr (grouping::along_tokens) {
      for (int token = 0; token < tile_tokens; token += grouping::group_tokens)
        for (int c = 0; c < dim_; ++c)
          for (int s = 0; s < codec::scalars; ++s)
            scalar_bytes_.push_back(layout_.template channel_scalar_byte<S>(token, c, s));
    } else {
      for (int group = 0; group < grouping::groups(dim_); ++group)
        for (int token = 0; token < tile_tokens; ++token)
          for (int s = 0; s < codec::scalars; ++s)
            scalar_bytes_.push_back(layout_.template token_scalar_byte<S>(token, group * codec::scalars + s));
    }
  }
  /// scale_, zero_ <- n parameters, from the i-th of scalar_bytes_ on.
  void keep(int i, int n) {
    using linear = linear_levels<codec>;
    std::byte const* const tile = unit_ + std::int64_t{tile_} * layout_.tile_bytes();
    std::int32_t const* byte = scalar_bytes_.data() + std::int64_t{i} * codec::scalars;
    for (int j = 0; j < n; ++j, byte += codec::scalars) {
      typename codec::params p;
      for (int s = 0; s < codec::scalars; ++s) std::memcpy(&p.scalar[s], tile + byte[s], 2);
      scale_[index(j)] = linear::scale(p);
      if constexpr (linear::has_zero) zero_[index(j)] = linear::zero(p);
    }
  }

  // ---- codes ----

  using order = code_order<codec::exact ? 8 : codec::bits, S>;
  /// Where 16 neighbours (tokens of a channel of keys, channels of a token of values) are: two runs of the lanes 4g + t,
  /// g = 0..7, of one t. Every order keeps them so (layout/code_order.hpp).
  struct place {
    std::int32_t words[2];  // of the first word of the packing unit
    std::int32_t shifts;
  };
  /// What brings a code from either run's words to the low bits.
  struct alignas(64) code_shifts {
    std::uint32_t right[3][16];  // by bit of the code: 4 bits 0 and 3, the spare codes of 3 bits each one
    int n[2];
  };

  [[nodiscard]] int word_index(int unit, int word, int t) const { return 8 * (4 * (unit * order::words + word) + t); }

  void prepare_places() {
    int const tile_tokens = layout_.tile_tokens;
    words_.resize(index(tile_tokens * dim_ * codec::bits / 32));
    places_.clear(), shifts_.clear();
    int const outer = S == side::key ? tile_tokens / 16 * dim_ : tile_tokens * (dim_ / 16);
    for (int i = 0; i < outer; ++i) {
      place p{};
      int n[2];
      for (int run = 0; run < 2; ++run) {
        int const token = S == side::key ? 16 * (i / dim_) + 8 * run : i / (dim_ / 16);
        int const channel = S == side::key ? i % dim_ : 16 * (i % (dim_ / 16)) + 8 * run;
        code_slot const at = order::slot(token, channel, tile_tokens, dim_);
        p.words[run] = word_index(at.unit, 0, at.lane), n[run] = at.n;
      }
      p.shifts = shifts_of(n[0], n[1]);
      places_.push_back(p);
    }
  }
  std::int32_t shifts_of(int n0, int n1) {
    for (std::size_t i = 0; i < shifts_.size(); ++i)
      if (shifts_[i].n[0] == n0 && shifts_[i].n[1] == n1) return static_cast<std::int32_t>(i);
    code_shifts made{{}, {n0, n1}};
    for (int run = 0; run < 2; ++run)
      for (int g = 0; g < 8; ++g)
        for (int k = 0; k < 3; ++k) {
          int const bit = codec::bits == 4 && k == 1 ? 3 : codec::bits == 3 ? k : 0;
          int const lowest = is_spare(made.n[0]) || bit == 3 ? bit : 0;
          made.right[k][8 * run + g] = static_cast<std::uint32_t>(order::bit(made.n[run], bit).bit - lowest);
        }
    shifts_.push_back(made);
    return static_cast<std::int32_t>(shifts_.size() - 1);
  }
  /// Of 3 bits: the codes whose bits are the spare ones of three words.
  [[nodiscard]] static constexpr bool is_spare(int n) { return codec::bits == 3 && n >= 24; }

  /// words_ <- the words of a tile, eight lanes of one t side by side.
  void load_words(std::byte const* from) {
    int const words = static_cast<int>(words_.size()) / 32, chunks = words / 4;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      alignas(64) std::uint32_t columns[128];  // [t, word, g]
      simd::transpose_words_8x16(from + 512 * chunk, columns);
      for (int w = 0; w < 4; ++w)
        for (int t = 0; t < 4; ++t)
          std::memcpy(words_.data() + 8 * (4 * (4 * chunk + w) + t), columns + 8 * (4 * t + w), 32);
    }
    for (int w = 4 * chunks; w < words; ++w)
      for (int lane = 0; lane < 32; ++lane)
        std::memcpy(&words_[index(8 * (4 * w + lane % 4) + lane / 4)], from + word_byte(w, lane, words), 4);
  }

  using floats = simd::vec<float, 16>;

  /// The levels of 16 neighbours by number of their place. By value, so that no store of a float can change it.
  struct levels {
    place const* places;
    code_shifts const* shifts;
    std::uint32_t const* words;
    floats table;

    void operator()(int i, floats& x) const {
      place const p = places[i];
      code_shifts const& by = shifts[p.shifts];
      if constexpr (codec::bits == 8) {
        float level[16];
        for (int run = 0; run < 2; ++run) {
          unit_bit const at = order::bit(by.n[run], 0);
          for (int g = 0; g < 8; ++g)
            level[8 * run + g] =
                linear_levels<codec>::level(static_cast<int>(words[p.words[run] + 32 * at.word + g] >> at.bit & 255u));
        }
        x.load(level);
      } else {
        simd::words_16 code;
        if constexpr (codec::bits == 3) {
          if (is_spare(by.n[0])) {
            simd::words_16 middle, last;
            take(p, by, 0, 0, code), take(p, by, 1, 1, middle), take(p, by, 2, 2, last);
            middle.keep_only(2, last), code.keep_only(1, middle);
          } else {
            take(p, by, order::bit(by.n[0], 0).word, 0, code);
          }
        } else {
          take(p, by, 0, 0, code);
          if constexpr (codec::bits == 4) {
            simd::words_16 sign;
            take(p, by, 0, 1, sign), code.keep_only(7, sign);
          }
        }
        simd::look_up_16(table, code, x);
      }
    }
    void take(place const& p, code_shifts const& by, int word, int k, simd::words_16& code) const {
      simd::words_16 right;
      code.load_halves(words + p.words[0] + 32 * word, words + p.words[1] + 32 * word);
      right.load(by.right[k]);
      code.shift_right(right);
    }
  };
  [[nodiscard]] levels levels_of_tile() const {
    levels of{places_.data(), shifts_.data(), words_.data(), {}};
    of.table.load(table_);
    return of;
  }
  [[nodiscard]] int place_of_key(int from, int channel) const { return from / 16 * dim_ + channel; }
  [[nodiscard]] int place_of_value(int token, int channel) const { return (token * dim_ + channel) / 16; }

  // ---- floats ----

  static constexpr bool has_zero =
      !codec::exact && linear_levels<std::conditional_t<codec::exact, sign, codec>>::has_zero;
  static void finish(floats& x, floats const& scale, floats const& zero, float* out) {
    if constexpr (has_zero)
      x.scale_add(scale, zero);
    else
      x.scale(scale);
    x.store(out);
  }

  void read_token_groups(int from, float* out) {
    int const groups = grouping::groups(dim_), run = grouping::group_channels(dim_), dim = dim_;
    levels const of = levels_of_tile();
    floats x, scale{}, zero{};
    for (int group = 0; group < groups; ++group) {
      keep(group * layout_.tile_tokens + from, tokens);
      int const begin = group * run, end = std::min(dim, begin + run);
      if constexpr (S == side::key) {
        scale.load(scale_.data()), zero.load(zero_.data());
        for (int c = begin; c < end; ++c) {
          of(place_of_key(from, c), x);
          finish(x, scale, zero, out + std::int64_t{c} * tokens);
        }
      } else {
        for (int t = 0; t < tokens; ++t) {
          scale.fill(scale_[index(t)]), zero.fill(zero_[index(t)]);
          for (int c = begin; c < end; c += 16) {
            of(place_of_value(from + t, c), x);
            finish(x, scale, zero, out + std::int64_t{t} * dim + c);
          }
        }
      }
    }
  }

  void read_channel_groups(int from, float* out) {
    if (int const group = from / grouping::group_tokens; group != group_) {
      group_ = group;
      keep(group * dim_, dim_);
    }
    int const dim = dim_;
    levels const of = levels_of_tile();
    float const *const scales = scale_.data(), *const zeros = zero_.data();
    floats x, scale{}, zero{};
    if constexpr (S == side::key) {
      for (int c = 0; c < dim; ++c) {
        scale.fill(scales[c]), zero.fill(zeros[c]);
        of(place_of_key(from, c), x);
        finish(x, scale, zero, out + std::int64_t{c} * tokens);
      }
    } else {
      for (int t = 0; t < tokens; ++t)
        for (int c = 0; c < dim; c += 16) {
          scale.load(scales + c), zero.load(zeros + c);
          of(place_of_value(from + t, c), x);
          finish(x, scale, zero, out + std::int64_t{t} * dim + c);
        }
    }
  }

  layout_type layout_;
  int dim_ = 0, tile_ = 0, group_ = -1;
  std::byte const* unit_ = nullptr;
  simd::aligned_vector<std::uint32_t> words_;  // of the tile: [word, t, g] of lane 4g + t
  std::vector<place> places_;                  // keys [blocks of 16 tokens, dim], values [tokens, dim / 16]
  std::vector<code_shifts> shifts_;
  std::vector<std::int32_t> scalar_bytes_;    // per token [groups, tokens, scalars], per channel [groups, dim, scalars]
  simd::aligned_vector<float> rows_;          // [16, dim], of exact keys
  simd::aligned_vector<float> scale_, zero_;  // of the block's tokens, or of the group's channels
  alignas(64) float table_[16] = {};
};

}  // namespace kvant::inline v0::detail
