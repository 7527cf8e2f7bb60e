#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <kvant/format/codec.hpp>
#include <kvant/format/exact.hpp>
#include <kvant/format/format.hpp>
#include <kvant/half.hpp>
#include <kvant/layout/code_packer.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/simd/rows.hpp>

namespace kvant::inline v0::detail {

struct no_packer {};

/// Encodes and decodes one side (keys or values) of a unit. Works on 16 tokens at a time, side by side: x[channel * 16 +
/// token], so that every loop over tokens is a vector operation and every sum runs over channels in one fixed order.
/// No result depends on the instruction set: products that are summed are exact in double, other products are stored
/// before they are added (settle).
template <kv_format Key, kv_format Value, side S>
class side_codec {
  using format_type = std::conditional_t<S == side::key, Key, Value>;
  using codec = codec_of<format_type>;
  using rotation = rotation_of<format_type>;
  using grouping = grouping_of<format_type>;
  using layout_type = page_layout<Key, Value>;
  using packer = std::conditional_t<codec::exact, no_packer, code_packer<codec::exact ? 8 : codec::bits, S>>;
  static constexpr int lanes = 16;

 public:
  void prepare(layout_type const& layout) {
    dim_ = S == side::key ? layout.shape.key_dim : layout.shape.value_dim;
    tokens_ = layout.shape.page_tokens;
    auto const values = static_cast<std::size_t>(dim_) * static_cast<std::size_t>(tokens_);
    x_.resize(values);
    y_.resize(values);
    row_.resize(static_cast<std::size_t>(dim_) * lanes);
    if constexpr (format_type::is_centered) {
      mean_.resize(static_cast<std::size_t>(dim_));
      rotated_mean_.resize(static_cast<std::size_t>(dim_));
      stored_mean_.resize(static_cast<std::size_t>(dim_));
    }
    inverse_factors_.assign(static_cast<std::size_t>(dim_), 1.f);
    if constexpr (!codec::exact) {
      codes_.resize(values);
      block_codes_.resize(static_cast<std::size_t>(dim_) * lanes);
      packer_.prepare(layout.tile_tokens, tokens_, dim_);
    }
  }

  template <element T>
  std::int64_t encode(layout_type const& layout, T const* rows, std::int64_t stride, int masked, half const* factors,
                      std::byte* unit) {
    if constexpr (is_exact<format_type>) {
      store_exact_rows(layout, rows, stride, masked, unit);
      return 0;
    } else {
      std::int64_t const not_finite = load(rows, stride, masked);
      if constexpr (format_type::is_balanced) load_factors(factors);
      if constexpr (format_type::is_centered) center(layout, masked, unit);
      for (int b = 0; b < tokens_ / lanes; ++b) {
        rotation::template forward<lanes>(block(x_, b), block(y_, b), dim_);
        if constexpr (format_type::is_centered) subtract_rounding_of_mean(b);
        if constexpr (!codec::exact && !grouping::along_tokens) quantize_tokens(layout, b, masked, unit);
      }
      if constexpr (codec::exact) {
        store_exact(layout, masked, unit);
      } else {
        if constexpr (grouping::along_tokens) quantize_channels(layout, masked, unit);
        for (int tile = 0; tile < layout.tiles(); ++tile)
          packer_.pack(codes_.data(), tile, unit + layout.template codes_offset<S>(tile));
      }
      return not_finite;
    }
  }

  template <class Real>
  void decode(layout_type const& layout, std::byte const* unit, half const* factors, Real* rows) {
    std::vector<Real> scratch;
    Real *coordinates, *channels;
    if constexpr (std::is_same_v<Real, float>) {
      coordinates = block(x_, 0), channels = block(y_, 0);
    } else {
      scratch.resize(static_cast<std::size_t>(dim_) * lanes * 2);
      coordinates = scratch.data(), channels = coordinates + std::int64_t{dim_} * lanes;
    }
    if constexpr (format_type::is_centered) read_mean(layout, unit);
    if constexpr (!codec::exact)
      for (int tile = 0; tile < layout.tiles(); ++tile)
        packer_.unpack(unit + layout.template codes_offset<S>(tile), tile, codes_.data());
    for (int b = 0; b < tokens_ / lanes; ++b) {
      if constexpr (codec::exact)
        load_exact(layout, unit, b, coordinates);
      else if constexpr (grouping::along_tokens)
        dequantize_channels(layout, unit, b, coordinates);
      else
        dequantize_tokens(layout, unit, b, coordinates);
      if constexpr (format_type::is_centered)
        for (int c = 0; c < dim_; ++c)
          for (int t = 0; t < lanes; ++t) coordinates[at(c, t)] += static_cast<Real>(stored_mean_[index(c)]);
      rotation::template inverse<lanes>(coordinates, channels, dim_);
      for (int t = 0; t < lanes; ++t)
        for (int c = 0; c < dim_; ++c) {
          Real x = channels[at(c, t)];
          if constexpr (format_type::is_balanced) x *= static_cast<Real>(effective_factor(factors[c]));
          rows[std::int64_t{b * lanes + t} * dim_ + c] = x;
        }
    }
  }

  /// sqrt(root mean square residual) of each channel's pair over the unmasked tokens, with its floors, as half.
  template <element T>
  void make_factors(layout_type const&, T const* rows, std::int64_t stride, int masked,
                    half* factors) requires format_type::is_balanced {
    load(rows, stride, masked);
    channel_means(masked);
    std::vector<double> square(static_cast<std::size_t>(dim_));
    for (int c = 0; c < dim_; ++c)
      for (int token = masked; token < tokens_; ++token) {
        double const r = static_cast<double>(block(x_, token / lanes)[at(c, token % lanes)] - mean_[index(c)]);
        square[index(c)] += r * r;
      }
    for (int c = 0; c < dim_; ++c) {
      int const partner = format_type::pairs::partner(c, dim_);
      double const mean_square = (square[index(std::min(c, partner))] + square[index(std::max(c, partner))]) /
                                 (2.0 * std::max(1, tokens_ - masked));
      // A pair that hardly varies beside a large mean would blow that mean up, and with it the step of the stored mean,
      // which all channels share: its residual counts as no less than 2^-9 of the mean, what elements are rounded by.
      double const mean = std::max(std::abs(mean_[index(c)]), std::abs(mean_[index(partner)]));
      double const factor = std::sqrt(std::max(std::sqrt(mean_square), mean * 0x1p-9));
      factors[c] = std::isfinite(factor) ? saturate_to_half(static_cast<float>(std::max(factor, 1e-4))) : half{1.f};
    }
  }

 private:
  using code = typename codec::code;

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  static std::size_t at(int channel, int lane) { return static_cast<std::size_t>(channel * lanes + lane); }
  float* block(std::vector<float>& values, int b) const { return values.data() + std::int64_t{b} * dim_ * lanes; }

  // ---- input ----

  /// x_ <- rows, NaN and infinities as 0, magnitudes limited to 2^100 so that no sum overflows; masked tokens are zeros.
  template <element T>
  std::int64_t load(T const* rows, std::int64_t stride, int masked) {
    std::int64_t not_finite = 0;
    for (int b = 0; b < tokens_ / lanes; ++b) {
      for (int t = 0; t < lanes; ++t) {
        float* const row = row_.data() + std::int64_t{t} * dim_;
        int const token = b * lanes + t;
        if (token < masked)
          std::fill_n(row, dim_, 0.f);
        else
          simd::widen(rows + token * stride, row, dim_);
      }
      not_finite += make_finite(row_.data(), dim_ * lanes);
      simd::transpose_16(row_.data(), block(x_, b), dim_);
    }
    return not_finite;
  }

  static std::int32_t make_finite(float* x, int n) {
    constexpr float limit = 0x1p100f;
    std::int32_t bad = 0;
    for (int i = 0; i < n; ++i) {
      float const v = x[i];
      bool const finite = v - v == 0.f;
      bad += finite ? 0 : 1;
      x[i] = !finite ? 0.f : v > limit ? limit : v < -limit ? -limit : v;
    }
    return bad;
  }

  void load_factors(half const* factors) {
    for (int c = 0; c < dim_; ++c) {
      inverse_factors_[index(c)] = 1.f / effective_factor(factors[c]);
    }
  }

  // ---- centering ----

  /// mean_ <- the mean of each channel over the unmasked tokens (the others are zeros); 0 where it is not finite. The 16
  /// tokens of a block are added as a tree (8, 4, 2, 1 apart), blocks in order: what a warp a block does.
  void channel_means(int masked) {
    std::fill(mean_.begin(), mean_.end(), 0.f);
    for (int b = 0; b < tokens_ / lanes; ++b)
      for (int c = 0; c < dim_; ++c) {
        float sum[4];
        float const* const x = block(x_, b) + at(c, 0);
        simd::vec<float, 8> low, high;
        low.load(x), high.load(x + 8), low.set_sum(low, high);
        float eight[8];
        low.store(eight);
        for (int t = 0; t < 4; ++t) sum[t] = eight[t] + eight[t + 4];
        mean_[index(c)] += (sum[0] + sum[2]) + (sum[1] + sum[3]);
      }
    for (float& mean : mean_) {
      mean /= static_cast<float>(std::max(1, tokens_ - masked));
      mean = mean - mean == 0.f ? mean : 0.f;
    }
  }

  /// x_ <- (x_ - mean) / factor for unmasked tokens; writes the header: the rotated mean as int8 and one half.
  void center(layout_type const& layout, int masked, std::byte* unit) {
    channel_means(masked);
    for (int b = 0; b < tokens_ / lanes; ++b)
      for (int c = 0; c < dim_; ++c) {
        float const mean = mean_[index(c)], inverse = inverse_factors_[index(c)];
        float* const x = block(x_, b) + at(c, 0);
        for (int t = 0; t < lanes; ++t) x[t] = (x[t] - mean) * inverse;
      }
    settle(x_.data());
    for (int c = 0; c < dim_; ++c) mean_[index(c)] *= inverse_factors_[index(c)];
    settle(mean_.data());
    rotation::template forward<1>(mean_.data(), rotated_mean_.data(), dim_);
    float largest = 0.f;
    for (float m : rotated_mean_) largest = std::max(largest, std::abs(m));
    half const scale = saturate_to_half(largest / 127.f);
    std::fill_n(unit, layout.header_bytes(), std::byte{0});
    for (int c = 0; c < dim_; ++c) {
      float const q = static_cast<float>(scale) > 0.f ? rotated_mean_[index(c)] / static_cast<float>(scale) : 0.f;
      float const limited = std::min(127.f, std::max(-127.f, q));
      float const rounded = (limited + 12582912.f) - 12582912.f;  // half to even
      unit[layout.mean_byte(c)] = static_cast<std::byte>(static_cast<std::int8_t>(rounded));
    }
    std::memcpy(unit + layout.mean_scale_byte(), &scale, 2);
    read_mean(layout, unit);
  }

  void read_mean(layout_type const& layout, std::byte const* unit) {
    half scale;
    std::memcpy(&scale, unit + layout.mean_scale_byte(), 2);
    for (int c = 0; c < dim_; ++c)
      stored_mean_[index(c)] = static_cast<float>(std::to_integer<std::int8_t>(unit[layout.mean_byte(c)])) *
                               static_cast<float>(scale);  // exact
  }

  /// Block b of y_ <- y_ + (rotated mean - stored mean): the residual of the mean as stored.
  void subtract_rounding_of_mean(int b) {
    for (int c = 0; c < dim_; ++c) {
      float const rest = rotated_mean_[index(c)] - stored_mean_[index(c)];
      float* const y = block(y_, b) + at(c, 0);
      for (int t = 0; t < lanes; ++t) y[t] += rest;
    }
  }

  // ---- codes ----

  static void put(std::byte* unit, int byte, half h) { std::memcpy(unit + byte, &h, 2); }
  static half take(std::byte const* unit, int byte) {
    half h;
    std::memcpy(&h, unit + byte, 2);
    return h;
  }

  std::uint8_t& code_at(int token, int channel) {
    return codes_[index(packer::code_index(token, channel, tokens_, dim_))];
  }

  /// Groups along the channels of a token: the 16 tokens of block b.
  void quantize_tokens(layout_type const& layout, int b, int masked, std::byte* unit) {
    int const groups = grouping::groups(dim_), run = grouping::group_channels(dim_);
    for (int group = 0; group < groups; ++group) {
      int const begin = group * run, end = std::min(dim_, begin + run);
      typename codec::params params[lanes];
      quantize_lanes(block(y_, b), begin, end, params);
      for (int t = 0; t < lanes; ++t) {
        int const token = b * lanes + t;
        for (int s = 0; s < codec::scalars; ++s)
          put(unit, layout.template token_scalar_byte<S>(token, group * codec::scalars + s),
              token < masked ? half{} : params[t].scalar[s]);
      }
    }
    for (int t = 0; b * lanes + t < masked && t < lanes; ++t)
      for (int c = 0; c < dim_; ++c) block_codes_[at(c, t)] = 0;
    if constexpr (S == side::key)
      for (int c = 0; c < dim_; ++c) std::memcpy(&code_at(b * lanes, c), &block_codes_[at(c, 0)], lanes);
    else
      simd::transpose_bytes_16(block_codes_.data(), &code_at(b * lanes, 0), dim_);
  }

  template <class Params>
  void quantize_lanes(float const* KVANT_RESTRICT y, int begin, int end, Params* KVANT_RESTRICT params) {
    typename codec::stats stats[lanes];
    for (int c = begin; c < end; ++c)
      for (int t = 0; t < lanes; ++t) stats[t].observe(y[at(c, t)]);
    typename codec::grid grid[lanes];
    for (int t = 0; t < lanes; ++t) grid[t] = codec::make_grid(stats[t], end - begin);
    if constexpr (level_codec<codec>) {
      double xl[lanes] = {};
      std::int32_t ll[lanes] = {};
      for (int c = begin; c < end; ++c) {
        std::uint8_t* const KVANT_RESTRICT out = &block_codes_[at(c, 0)];
        std::int32_t codes[lanes], levels[lanes];
        for (int t = 0; t < lanes; ++t) {
          auto const coded = codec::encode_level(y[at(c, t)], grid[t]);
          codes[t] = static_cast<std::int32_t>(coded.code), levels[t] = coded.level;
        }
        for (int t = 0; t < lanes; ++t) out[t] = static_cast<std::uint8_t>(codes[t]);
        for (int t = 0; t < lanes; ++t) ll[t] += levels[t] * levels[t];
        for (int t = 0; t < lanes; ++t) xl[t] += static_cast<double>(y[at(c, t)]) * static_cast<double>(levels[t]);
      }
      for (int t = 0; t < lanes; ++t)
        params[t] = codec::template fit<scale_of<format_type, S>>(
            moments{end - begin, stats[t].xx, xl[t], static_cast<double>(ll[t])});
    } else {
      for (int c = begin; c < end; ++c) {
        std::uint8_t* const KVANT_RESTRICT out = &block_codes_[at(c, 0)];
        for (int t = 0; t < lanes; ++t) out[t] = static_cast<std::uint8_t>(codec::encode(y[at(c, t)], grid[t]));
      }
      for (int t = 0; t < lanes; ++t) params[t] = codec::fit(stats[t], end - begin);
    }
  }

  /// Groups along the tokens of a channel; masked tokens take no part, a group without others stores zeros.
  void quantize_channels(layout_type const& layout, int masked, std::byte* unit) {
    constexpr int run = grouping::group_tokens;
    for (int begin = 0; begin < tokens_; begin += run)
      for (int c = 0; c < dim_; ++c) {
        int const first = std::max(begin, masked), end = begin + run;
        typename codec::stats stats;
        for (int token = first; token < end; ++token) stats.observe(block(y_, token / lanes)[at(c, token % lanes)]);
        typename codec::params params{};
        typename codec::grid const grid = first < end ? codec::make_grid(stats, end - first) : typename codec::grid{};
        if (first < end) params = codec::fit(stats, end - first);
        for (int token = begin; token < end; ++token) {
          float const x = block(y_, token / lanes)[at(c, token % lanes)];
          code_at(token, c) = token < masked ? std::uint8_t{0} : static_cast<std::uint8_t>(codec::encode(x, grid));
        }
        for (int s = 0; s < codec::scalars; ++s)
          put(unit, layout.template channel_scalar_byte<S>(begin, c, s), params.scalar[s]);
      }
  }

  template <class Real>
  void dequantize_tokens(layout_type const& layout, std::byte const* unit, int b, Real* out) {
    int const groups = grouping::groups(dim_), run = grouping::group_channels(dim_);
    for (int group = 0; group < groups; ++group)
      for (int t = 0; t < lanes; ++t) {
        typename codec::params params{};
        for (int s = 0; s < codec::scalars; ++s)
          params.scalar[s] =
              take(unit, layout.template token_scalar_byte<S>(b * lanes + t, group * codec::scalars + s));
        for (int c = group * run; c < std::min(dim_, (group + 1) * run); ++c)
          out[at(c, t)] = static_cast<Real>(codec::decode(code_at(b * lanes + t, c), params));
      }
  }

  template <class Real>
  void dequantize_channels(layout_type const& layout, std::byte const* unit, int b, Real* out) {
    for (int c = 0; c < dim_; ++c) {
      typename codec::params params{};
      for (int s = 0; s < codec::scalars; ++s)
        params.scalar[s] = take(unit, layout.template channel_scalar_byte<S>(b * lanes, c, s));
      for (int t = 0; t < lanes; ++t)
        out[at(c, t)] = static_cast<Real>(codec::decode(code_at(b * lanes + t, c), params));
    }
  }

  // ---- exact elements, in rows [token, channel] of each tile ----

  static int exact_byte(layout_type const& layout, int token, int channel) {
    return layout.template code_bit<S>(token, channel, 0).byte;
  }

  template <element T>
  void store_exact_rows(layout_type const& layout, T const* rows, std::int64_t stride, int masked,
                        std::byte* unit) const {
    using stored = typename codec::element_type;
    for (int token = 0; token < tokens_; ++token) {
      std::byte* const out = unit + exact_byte(layout, token, 0);
      T const* const row = rows + token * stride;
      if (token < masked) {
        std::memset(out, 0, sizeof(stored) * index(dim_));
      } else if constexpr (std::is_same_v<T, stored>) {
        std::memcpy(out, row, sizeof(stored) * index(dim_));
      } else {
        for (int c = 0; c < dim_; ++c) {
          stored const v = static_cast<stored>(static_cast<float>(row[c]));
          std::memcpy(out + sizeof(stored) * index(c), &v, sizeof v);
        }
      }
    }
  }

  void store_exact(layout_type const& layout, int masked, std::byte* unit) {
    for (int token = 0; token < tokens_; ++token)
      for (int c = 0; c < dim_; ++c) {
        code const v = token < masked ? code{0} : codec::encode(block(y_, token / lanes)[at(c, token % lanes)]);
        std::memcpy(unit + exact_byte(layout, token, c), &v, sizeof v);
      }
  }

  template <class Real>
  void load_exact(layout_type const& layout, std::byte const* unit, int b, Real* out) const {
    for (int c = 0; c < dim_; ++c)
      for (int t = 0; t < lanes; ++t) {
        code v;
        std::memcpy(&v, unit + exact_byte(layout, b * lanes + t, c), sizeof v);
        out[at(c, t)] = static_cast<Real>(codec::decode(v));
      }
  }

  int dim_ = 0, tokens_ = 0;
  std::vector<float> x_, y_;  // [tokens / 16, dim, 16]: by channel, by coordinate
  std::vector<float> row_;    // [16, dim]
  std::vector<float> mean_, rotated_mean_, stored_mean_, inverse_factors_;
  std::vector<std::uint8_t> codes_;        // of the page, in the packer's order
  std::vector<std::uint8_t> block_codes_;  // [dim, 16]
  packer packer_;
};

}  // namespace kvant::inline v0::detail
