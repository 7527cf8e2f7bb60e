#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <kvant/cache/page_codec.hpp>
#include <kvant/cache/views.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/status.hpp>

namespace report {

/// One sequence of one layer, quantized and exact, in plain buffers: all of it that fills whole pages up to `history` in
/// pages, all of it in the window, its first tokens in the sinks. Stands where a cache object will.
template <kvant::kv_format Key, kvant::kv_format Value>
class plain_cache {
  using half = kvant::half;

 public:
  /// keys and values: rows [tokens, kv heads, dim]. history: a multiple of the page's tokens, at most `tokens`.
  kvant::status build(kvant::page_shape shape, kvant::token_rows<half> keys, kvant::token_rows<half> values, int tokens,
                      int history, int sinks) {
    if (auto s = codec_.prepare(shape); !s.ok()) return s;
    auto const& layout = codec_.layout();
    shape_ = layout.shape, tokens_ = tokens, history_ = history, sinks_ = sinks;
    rows_ = (tokens + 15) / 16 * 16;
    row_bytes_ = 2 * std::max(shape_.key_dim, shape_.value_dim);
    window_.assign(size(2LL * shape_.kv_heads * rows_ * row_bytes_), std::byte{});
    sink_rows_.assign(size(2LL * shape_.kv_heads * sinks * row_bytes_), std::byte{});
    auto const view = this->view();
    for (int head = 0; head < shape_.kv_heads; ++head)
      for (int t = 0; t < tokens; ++t) {
        copy(keys.row(t, head), shape_.key_dim, view.window.row(0, kvant::side::key, head, t));
        copy(values.row(t, head), shape_.value_dim, view.window.row(0, kvant::side::value, head, t));
        if (t >= sinks) continue;
        copy(keys.row(t, head), shape_.key_dim, view.side.sink(0, kvant::side::key, head, t));
        copy(values.row(t, head), shape_.value_dim, view.side.sink(0, kvant::side::value, head, t));
      }
    return encode(keys, values);
  }

  /// Without sequences: whoever attends adds their lengths. Every sequence has the same pages, window and sinks.
  [[nodiscard]] kvant::layer_view<half> view() {
    kvant::layer_view<half> v;
    v.pages = pages();
    v.window.base = window_.data();
    v.window.row_stride = row_bytes_;
    v.window.head_stride = std::int64_t{rows_} * row_bytes_;
    v.window.side_stride = shape_.kv_heads * v.window.head_stride;
    v.window.rows = rows_;
    v.side.sink_rows = sink_rows_.data();
    v.side.sinks = sinks_;
    v.side.sink_row_stride = row_bytes_;
    v.side.sink_head_stride = std::int64_t{sinks_} * row_bytes_;
    v.side.sink_side_stride = shape_.kv_heads * v.side.sink_head_stride;
    v.side.factors = factors_.empty() ? nullptr : reinterpret_cast<std::byte*>(factors_.data());
    v.side.factor_head_stride = 2LL * shape_.key_dim;
    v.table.ids = ids_.data();
    v.table.capacity = static_cast<std::int32_t>(ids_.size());
    return v;
  }

  /// What the pages say: the tokens [0, history) of one kv head, decoded. Sinks are not part of it.
  template <class Real>
  void decode(int head, Real* keys, Real* values) {  // [history, key_dim], [history, value_dim]
    auto const pages = this->pages();
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      auto const token = static_cast<std::int64_t>(i) * shape_.page_tokens;
      codec_.decode_unit(pages.unit(ids_[i], head), factors(head), keys + token * shape_.key_dim,
                         values + token * shape_.value_dim);
    }
  }

  [[nodiscard]] kvant::page_shape shape() const { return shape_; }

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  static void copy(half const* from, int dim, half* to) { std::memcpy(to, from, 2 * size(dim)); }

  half* factors(int head) { return factors_.empty() ? nullptr : factors_.data() + std::int64_t{head} * shape_.key_dim; }

  kvant::pages_view pages() {
    kvant::pages_view v;
    v.base = bytes_.data();
    v.head_stride = codec_.layout().unit_bytes();
    v.page_stride = codec_.layout().page_bytes();
    v.count = 2 * static_cast<std::int64_t>(ids_.size());
    return v;
  }

  /// Pages lie apart and backwards, as a pool would leave them; what lies between them is NaN.
  kvant::status encode(kvant::token_rows<half> keys, kvant::token_rows<half> values) {
    int const count = history_ / shape_.page_tokens;
    ids_.resize(size(count));
    for (int i = 0; i < count; ++i) ids_[size(i)] = 2 * (count - 1 - i) + 1;
    bytes_.assign(size(2 * count * codec_.layout().page_bytes()), std::byte{0xff});
    factors_.clear();
    if constexpr (Key::is_balanced) {
      if (count > 0) factors_.resize(size(std::int64_t{shape_.kv_heads} * shape_.key_dim));
      for (int head = 0; count > 0 && head < shape_.kv_heads; ++head)
        codec_.make_factors(keys.row(0, head), keys.token_stride, sinks_, factors(head));
    }
    for (int i = 0; i < count; ++i) {
      std::int64_t const token = std::int64_t{i} * shape_.page_tokens;
      auto const from = [token](kvant::token_rows<half> rows) {
        return kvant::token_rows<half>{rows.row(token, 0), rows.token_stride, rows.head_stride};
      };
      auto const s = codec_.encode_page(from(keys), from(values), i == 0 ? sinks_ : 0,
                                        factors_.empty() ? nullptr : factors_.data(), pages(), ids_[size(i)]);
      if (!s.ok()) return s;
    }
    return {};
  }

  kvant::page_codec<Key, Value> codec_;
  kvant::page_shape shape_;
  int tokens_ = 0, history_ = 0, sinks_ = 0, rows_ = 0, row_bytes_ = 0;
  std::vector<std::byte> bytes_, window_, sink_rows_;
  std::vector<half> factors_;      // [kv heads, key_dim]
  std::vector<std::int32_t> ids_;  // page ids by index in the sequence
};

}  // namespace report
