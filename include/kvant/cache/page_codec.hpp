#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <kvant/cache/side_codec.hpp>
#include <kvant/cache/views.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/status.hpp>

namespace kvant::inline v0 {

/// Whole pages of one pair of formats encoded and decoded on the host: what defines the codes. prepare() allocates all
/// scratch but that of decoding to double and of make_factors(); one object serves one thread at a time.
template <kv_format Key, kv_format Value>
class page_codec {
  static_assert(!Value::is_centered && !Value::is_balanced, "page_codec: values are never centered or balanced");

 public:
  using layout_type = page_layout<Key, Value>;

  /// Takes the shape; an error names what the formats cannot serve, and leaves the object as it was.
  status prepare(page_shape shape) {
    if (status s = layout_type::check(shape); !s.ok()) return s;
    layout_ = layout_type(shape);
    keys_.prepare(layout_);
    values_.prepare(layout_);
    return {};
  }
  [[nodiscard]] layout_type const& layout() const { return layout_; }

  /// The unit of one kv head from page_tokens rows of keys and of values (token strides in elements). The first `masked`
  /// tokens (sinks) are left out of every group and all their bits are zero. `factors` are the balance factors of the
  /// head, [key_dim], read if the keys are balanced. Writes unit_bytes() at `unit`, every byte of them. Returns how many
  /// values were not finite and coded as 0.
  template <element T>
  std::int64_t encode_unit(T const* key_rows, std::int64_t key_stride, T const* value_rows, std::int64_t value_stride,
                           int masked, half const* factors, std::byte* unit) {
    return keys_.encode(layout_, key_rows, key_stride, masked, factors, unit) +
           values_.encode(layout_, value_rows, value_stride, masked, nullptr, unit);
  }

  /// The values that a unit stands for, in the channel basis: Real is float or double. Masked tokens decode to whatever
  /// zero bits mean; they are not part of the page. prepare() comes first.
  template <class Real>
  void decode_unit(std::byte const* unit, half const* factors, Real* key_rows,
                   Real* value_rows) {  // [page_tokens, dim]
    keys_.decode(layout_, unit, factors, key_rows);
    values_.decode(layout_, unit, nullptr, value_rows);
  }

  /// The balance factors of one kv head from the rows of a sequence's first page.
  template <element T>
  void make_factors(T const* key_rows, std::int64_t key_stride, int masked, half* factors) {  // -> [key_dim]
    keys_.make_factors(layout_, key_rows, key_stride, masked, factors);
  }

  /// All kv heads of a page: rows [page_tokens, kv heads, dim]. factors: [kv heads, key_dim], may be null unless the keys
  /// are balanced.
  template <element T>
  status encode_page(token_rows<T> key_rows, token_rows<T> value_rows, int masked, half const* factors,
                     pages_view pages, std::int64_t page, std::int64_t* not_finite = nullptr) {
    if (status s = check_call(pages, page, factors); !s.ok()) return s;
    if (masked < 0 || masked >= layout_.shape.page_tokens)
      return status::error("masked tokens: expected 0 to " + std::to_string(layout_.shape.page_tokens - 1) + ", got " +
                           std::to_string(masked));
    if (key_rows.data == nullptr || value_rows.data == nullptr)
      return status::error("rows: expected keys and values, got a null pointer");
    std::int64_t bad = 0;
    for (int h = 0; h < layout_.shape.kv_heads; ++h)
      bad += encode_unit(key_rows.row(0, h), key_rows.token_stride, value_rows.row(0, h), value_rows.token_stride,
                         masked, factors == nullptr ? nullptr : factors + std::int64_t{h} * layout_.shape.key_dim,
                         pages.unit(page, h));
    if (not_finite != nullptr) *not_finite = bad;
    return {};
  }

 private:
  status check_call(pages_view pages, std::int64_t page, half const* factors) const {
    if (layout_.tile_tokens == 0) return status::error("page codec: expected prepare() before use");
    if (pages.base == nullptr) return status::error("pages: expected memory, got a null pointer");
    if (pages.count < 1) return status::error("pages: expected at least one, got " + std::to_string(pages.count));
    if (page < 0 || page >= pages.count)
      return status::error("page id: expected 0 to " + std::to_string(pages.count - 1) + ", got " +
                           std::to_string(page));
    std::int64_t const unit = layout_.unit_bytes(), heads = layout_.shape.kv_heads;
    if (pages.head_stride < unit)
      return status::error("head stride: expected at least " + std::to_string(unit) + " bytes (a unit), got " +
                           std::to_string(pages.head_stride));
    // Pages one after the other, or the pages of a head together: units must not overlap either way.
    std::int64_t const page_span = (heads - 1) * pages.head_stride + unit;
    bool const heads_outermost =
        pages.page_stride >= unit && pages.head_stride >= (pages.count - 1) * pages.page_stride + unit;
    if (pages.count > 1 && pages.page_stride < page_span && !heads_outermost)
      return status::error("page stride: expected at least " + std::to_string(page_span) + " bytes (" +
                           std::to_string(heads) + " units " + std::to_string(pages.head_stride) + " apart), got " +
                           std::to_string(pages.page_stride));
    if (Key::is_balanced && factors == nullptr)
      return status::error(
          "balance factors: expected [kv_heads, key_dim] halves for balanced keys, got a null pointer");
    return {};
  }

  layout_type layout_;
  detail::side_codec<Key, Value, side::key> keys_;
  detail::side_codec<Key, Value, side::value> values_;
};

}  // namespace kvant::inline v0
