#pragma once

#include <cstdint>
#include <string>

#include <kvant/config.hpp>
#include <kvant/format/format.hpp>
#include <kvant/layout/code_order.hpp>
#include <kvant/layout/slot_order.hpp>
#include <kvant/status.hpp>

namespace kvant::inline v0 {

/// The version of the bytes of a page. 0: the order of bits may still change.
inline constexpr int layout_version = 0;

/// What a layer's pages hold. page_tokens 0: the least that both formats allow (64, or 128).
struct page_shape {
  int kv_heads = 0, key_dim = 0, value_dim = 0, page_tokens = 0;
  KVANT_HD friend constexpr bool operator==(page_shape, page_shape) = default;
};

/// A bit of a unit: the bytes of one kv head of a page.
struct bit_place {
  std::int32_t byte = 0, bit = 0;
  KVANT_HD friend constexpr bool operator==(bit_place, bit_place) = default;
};

namespace detail {

/// What one side of a format takes in a tile. Everything is arithmetic on the type and the head size.
template <kv_format F, side S>
struct side_layout {
  using codec = codec_of<F>;
  using grouping = grouping_of<F>;
  static constexpr bool plain_rows = codec::exact;  // rows of elements, not fragments
  static constexpr int group_tokens = grouping::group_tokens;

  KVANT_HD static constexpr bool fills_words(int tokens, int dim) {
    if constexpr (plain_rows)
      return true;
    else
      return code_order<codec::bits, S>::fills_words(tokens, dim);
  }
  KVANT_HD static constexpr int code_bytes(int tokens, int dim) { return tokens * dim / 8 * codec::bits; }
  /// Halves that one token of a head stores.
  KVANT_HD static constexpr int token_scalars(int dim) {
    if constexpr (grouping::along_tokens)
      return 0;
    else
      return codec::scalars * grouping::groups(dim);
  }
  KVANT_HD static constexpr int channel_bytes(int tokens, int dim) {
    return grouping::along_tokens ? tokens / group_tokens * codec::scalars * dim * 2 : 0;
  }
  KVANT_HD static constexpr int header_bytes(int dim) { return F::is_centered ? (dim + 2 + 15) / 16 * 16 : 0; }
  /// A bit of a code, from the first byte of this side's codes in the tile.
  KVANT_HD static constexpr bit_place code_bit(int token, int channel, int k, int tokens, int dim) {
    if constexpr (plain_rows) {
      return {(token * dim + channel) * (codec::bits / 8) + k / 8, k % 8};
    } else {
      using order = code_order<codec::bits, S>;
      code_slot const at = order::slot(token, channel, tokens, dim);
      unit_bit const b = order::bit(at.n, k);
      int const words = code_bytes(tokens, dim) / 128;
      return {word_byte(at.unit * order::words + b.word, at.lane, words) + b.bit / 8, b.bit % 8};
    }
  }
};

}  // namespace detail

/// Where every byte of a page lies. A page is kv_heads units; a unit is contiguous and a multiple of 16 bytes:
///
///     unit = [ page mean of the keys, if they are centered ] tile 0, tile 1, ...
///     tile = [ K codes | V codes | per-channel parameters of K, of V | per-token scalars of K, of V ]
///
/// Codes lie in fragment order (layout/code_order.hpp), exact elements in rows [token, channel]. The page mean is key_dim
/// int8 in slot order of positions and one half scale, padded to 16 bytes. Per-channel parameters: for each group of the
/// tile and each scalar, one half a channel, position p holding channel slot_of(p). Per-token scalars: for each scalar,
/// for each 32 tokens, 32 halves; half 4g + r is token g + 8r, so one 8-byte load brings the rows of a lane.
template <kv_format Key, kv_format Value>
struct page_layout {
  using key = detail::side_layout<Key, side::key>;
  using value = detail::side_layout<Value, side::value>;

  page_shape shape;
  int tile_tokens = 0;

  /// The least number of tokens of a page that both formats allow.
  static constexpr int least_page_tokens = key::group_tokens > 64 || value::group_tokens > 64 ? 128 : 64;
  static constexpr int most_page_tokens = 1024;

  KVANT_HD static constexpr page_shape with_defaults(page_shape s) {
    if (s.page_tokens == 0) s.page_tokens = least_page_tokens;
    return s;
  }
  /// Whether the shape can be served. check() says why not.
  KVANT_HD static constexpr bool serves(page_shape s) {
    s = with_defaults(s);
    return s.kv_heads >= 1 && rotation_of<Key>::supports(s.key_dim) && rotation_of<Value>::supports(s.value_dim) &&
           s.key_dim <= 1024 && s.value_dim <= 1024 && s.page_tokens >= least_page_tokens &&
           s.page_tokens <= most_page_tokens && s.page_tokens % 64 == 0 && s.page_tokens % tile_tokens_for(s) == 0;
  }
  [[nodiscard]] static status check(page_shape s);

  page_layout() = default;
  /// Precondition: serves(s).
  KVANT_HD constexpr explicit page_layout(page_shape s)
      : shape(with_defaults(s)), tile_tokens(tile_tokens_for(with_defaults(s))) {}

  /// Tokens that one warp copies and works on: 64, or 32 where 64 make more than 5.5 KB and 32 fill whole words; never
  /// less than a per-channel group; the page where both sides are exact.
  KVANT_HD static constexpr int tile_tokens_for(page_shape s) {
    s = with_defaults(s);
    if (is_exact<Key> && is_exact<Value>) return s.page_tokens;
    int const groups = key::group_tokens > value::group_tokens ? key::group_tokens : value::group_tokens;
    if (groups > 64) return groups;
    bool const narrow = groups <= 32 && key::fills_words(32, s.key_dim) && value::fills_words(32, s.value_dim);
    return narrow && bytes_of_tile(64, s) > 5632 ? 32 : 64;
  }

  KVANT_HD constexpr int tiles() const { return shape.page_tokens / tile_tokens; }
  KVANT_HD constexpr int header_bytes() const { return key::header_bytes(shape.key_dim); }
  KVANT_HD constexpr int tile_bytes() const { return bytes_of_tile(tile_tokens, shape); }
  KVANT_HD constexpr int unit_bytes() const { return header_bytes() + tiles() * tile_bytes(); }
  KVANT_HD constexpr std::int64_t page_bytes() const { return std::int64_t{shape.kv_heads} * unit_bytes(); }

  // Offsets within a unit. token: within the page; channel: the coordinate that is coded.
  KVANT_HD constexpr int tile_offset(int tile) const { return header_bytes() + tile * tile_bytes(); }
  KVANT_HD constexpr int mean_byte(int channel) const { return position_of(channel, shape.key_dim); }
  KVANT_HD constexpr int mean_scale_byte() const { return shape.key_dim; }
  template <side S>
  KVANT_HD constexpr int codes_offset(int tile) const {
    return tile_offset(tile) + (S == side::key ? 0 : key::code_bytes(tile_tokens, shape.key_dim));
  }
  template <side S>
  KVANT_HD constexpr bit_place code_bit(int token, int channel, int k) const {
    int const tile = token / tile_tokens, t = token % tile_tokens;
    bit_place at{};
    if constexpr (S == side::key)
      at = key::code_bit(t, channel, k, tile_tokens, shape.key_dim);
    else
      at = value::code_bit(t, channel, k, tile_tokens, shape.value_dim);
    return {codes_offset<S>(tile) + at.byte, at.bit};
  }
  /// Scalar `scalar` of channel `channel` in the group that holds `token`.
  template <side S>
  KVANT_HD constexpr int channel_scalar_byte(int token, int channel, int scalar) const {
    int const tile = token / tile_tokens, t = token % tile_tokens,
              dim = S == side::key ? shape.key_dim : shape.value_dim;
    int const group = t / (S == side::key ? key::group_tokens : value::group_tokens);
    int const scalars = S == side::key ? key::codec::scalars : value::codec::scalars;
    int const base = tile_offset(tile) + key::code_bytes(tile_tokens, shape.key_dim) +
                     value::code_bytes(tile_tokens, shape.value_dim) +
                     (S == side::key ? 0 : key::channel_bytes(tile_tokens, shape.key_dim));
    return base + ((group * scalars + scalar) * dim + position_of(channel, dim)) * 2;
  }
  /// Per-token scalar number `index` (group in the token * scalars of the codec + scalar).
  template <side S>
  KVANT_HD constexpr int token_scalar_byte(int token, int index) const {
    int const tile = token / tile_tokens, t = token % tile_tokens;
    int const before = S == side::key ? 0 : key::token_scalars(shape.key_dim);
    int const base = tile_offset(tile) + key::code_bytes(tile_tokens, shape.key_dim) +
                     value::code_bytes(tile_tokens, shape.value_dim) + key::channel_bytes(tile_tokens, shape.key_dim) +
                     value::channel_bytes(tile_tokens, shape.value_dim);
    return base + ((before + index) * tile_tokens + t / 32 * 32 + 4 * (t % 8) + t % 32 / 8) * 2;
  }

 private:
  KVANT_HD static constexpr int bytes_of_tile(int tokens, page_shape s) {
    return key::code_bytes(tokens, s.key_dim) + value::code_bytes(tokens, s.value_dim) +
           key::channel_bytes(tokens, s.key_dim) + value::channel_bytes(tokens, s.value_dim) +
           2 * tokens * (key::token_scalars(s.key_dim) + value::token_scalars(s.value_dim));
  }
};

template <kv_format Key, kv_format Value>
status page_layout<Key, Value>::check(page_shape s) {
  auto const n = [](int x) { return std::to_string(x); };
  s = with_defaults(s);
  if (s.kv_heads < 1) return status::error("kv_heads: expected at least 1, got " + n(s.kv_heads));
  constexpr char const* sizes = "expected a multiple of 16 up to 1024";
  if (!rotation_of<Key>::supports(s.key_dim) || s.key_dim > 1024)
    return status::error(std::string("key_dim: ") + sizes + rotation_of<Key>::also_expected() + ", got " +
                         n(s.key_dim));
  if (!rotation_of<Value>::supports(s.value_dim) || s.value_dim > 1024)
    return status::error(std::string("value_dim: ") + sizes + rotation_of<Value>::also_expected() + ", got " +
                         n(s.value_dim));
  if (s.page_tokens > most_page_tokens)
    return status::error("page_tokens: expected at most " + n(most_page_tokens) + ", got " + n(s.page_tokens));
  if (s.page_tokens < least_page_tokens || s.page_tokens % 64 != 0 || s.page_tokens % tile_tokens_for(s) != 0)
    return status::error("page_tokens: expected a multiple of " + n(least_page_tokens) + " (token groups of " +
                         n(key::group_tokens > value::group_tokens ? key::group_tokens : value::group_tokens) +
                         "), got " + n(s.page_tokens));
  return {};
}

/// Bytes of a page of this shape, codes, parameters and headers in all.
template <kv_format Key, kv_format Value>
[[nodiscard]] KVANT_HD constexpr std::int64_t page_bytes(page_shape s) {
  return page_layout<Key, Value>(s).page_bytes();
}

/// Bits a value of a page as allocated: keys and values together, parameters and headers included.
template <kv_format Key, kv_format Value>
[[nodiscard]] KVANT_HD constexpr double bits_per_value(page_shape s) {
  page_layout<Key, Value> const layout(s);
  return 8.0 * static_cast<double>(layout.page_bytes()) /
         (static_cast<double>(layout.shape.page_tokens) * layout.shape.kv_heads *
          (layout.shape.key_dim + layout.shape.value_dim));
}

}  // namespace kvant::inline v0
