#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include <kvant/cache/append.hpp>
#include <kvant/cache/page_codec.hpp>
#include <kvant/cache/step.hpp>
#include <kvant/cache/views.hpp>
#include <kvant/status.hpp>

namespace kvant::inline v0 {

/// Moves tokens between the windows and the pages of layers of one shape and one pair of formats, over views whose
/// memory anybody may own. W is the element of the windows. Owns the scratch; one object serves one thread at a time.
/// What a call refuses it refuses before it writes anything.
template <kv_format Key, kv_format Value, element W>
class page_writer {
 public:
  /// Takes the shape; an error names what the formats cannot serve.
  [[nodiscard]] status prepare(page_shape shape) {
    if (status s = codec_.prepare(shape); !s.ok()) return s;
    page_shape const& full = codec_.layout().shape;
    for (side const s : {side::key, side::value}) {
      std::size_t const values = at(std::int64_t{full.page_tokens} * dim(s));
      staged(s).resize(values), decoded(s).resize(values);
    }
    return {};
  }
  [[nodiscard]] page_shape const& shape() const { return codec_.layout().shape; }

  /// Quantizes what leaves the windows of a batch: of each sequence the whole pages between its history and
  /// history_after_commit(history, length, W, P); end_step moves the histories once all layers have been committed.
  /// Balance factors are made at a sequence's first commit and go to its side record. Padding has a negative slot.
  /// Adds to `not_finite`, if given, the values that were coded as 0 because they were not finite.
  [[nodiscard]] status commit(layer_view<W> const& layer, std::int32_t window_tokens,
                              std::int64_t* not_finite = nullptr) {
    if (status s = check(layer, window_tokens, 0); !s.ok()) return s;
    auto const& sequences = layer.sequences;
    for (std::int32_t i = 0; i < sequences.count; ++i) {
      if (sequences.slot_of(i) < 0) continue;
      auto const from_ring = [&](side s, int head, std::int32_t begin) { return ring_rows(layer, i, s, head, begin); };
      write_pages(layer, i, window_tokens, from_ring, not_finite);
    }
    return {};
  }

  /// Appends the new rows of a batch and commits: the bytes that append and commit leave, in whatever runs the tokens
  /// come. begin_step has counted the rows, end_step moves the histories. A run may be longer than the ring: pages are
  /// made from the input where they lie in it, from the ring where they began before. A negative page id is a page that
  /// is not kept (a sliding-window layer whose window it has left): it is not made.
  template <element T>
  [[nodiscard]] status prefill(layer_view<W> const& layer, new_rows_view<T> const& rows, std::int32_t window_tokens,
                               std::int64_t* not_finite = nullptr) {
    if (rows.kv_heads != shape().kv_heads || rows.key_dim != shape().key_dim || rows.value_dim != shape().value_dim)
      return status::error("new rows: expected kv_heads, key_dim and value_dim of " + std::to_string(shape().kv_heads) +
                           ", " + std::to_string(shape().key_dim) + " and " + std::to_string(shape().value_dim) +
                           ", got " + std::to_string(rows.kv_heads) + ", " + std::to_string(rows.key_dim) + " and " +
                           std::to_string(rows.value_dim));
    if (status s = detail::check_new_rows(layer, rows); !s.ok()) return s;
    if (status s = check(layer, window_tokens, -1, rows.row_offsets); !s.ok()) return s;
    auto const& sequences = layer.sequences;
    for (std::int32_t i = 0; i < sequences.count; ++i) {
      if (sequences.slot_of(i) < 0) continue;
      std::int32_t const length = sequences.length[i], row_end = rows.row_offsets[i + 1],
                         start = length - (row_end - rows.row_offsets[i]);
      auto const from = [&](side s, int head, std::int32_t begin) {
        token_rows<T> const& fresh = s == side::key ? rows.keys : rows.values;
        if constexpr (std::is_same_v<T, W>)
          if (begin >= start) return token_rows<W>{fresh.row(row_end - (length - begin), head), fresh.token_stride, 0};
        if (begin + shape().page_tokens <= start) return ring_rows(layer, i, s, head, begin);
        for (std::int32_t t = 0; t < shape().page_tokens; ++t) {
          W* const to = staged(s).data() + std::int64_t{t} * dim(s);
          std::int32_t const position = begin + t;
          if (position < start)
            detail::copy_row<W>(ring_row(layer, i, s, head, position), dim(s), to);
          else
            detail::copy_row<W>(fresh.row(row_end - (length - position), head), dim(s), to);
        }
        return token_rows<W>{staged(s).data(), dim(s), 0};
      };
      write_pages(layer, i, window_tokens, from, not_finite);
      std::int32_t const after = end(layer, i, window_tokens);
      for (std::int32_t p = std::max(start, after); p < length; ++p) detail::copy_new_row(layer, rows, i, p, true);
      for (std::int32_t p = start; p < std::min(length, layer.side.sinks); ++p)
        detail::copy_new_row(layer, rows, i, p, false);
    }
    return {};
  }

  /// Brings tokens [begin, end) of a page back into the window of sequence i, decoded (those below `sinks` exact, from
  /// the side record): what is left of a page that is cut. `begin` is the page's first position. Exact pages of W come
  /// back as they were. `page` is not read where all of them are sinks.
  [[nodiscard]] status restore(layer_view<W> const& layer, std::int32_t i, std::int64_t page, std::int32_t begin,
                               std::int32_t end) {
    bool const reads_page = end > std::max(begin, layer.side.sinks);
    if (reads_page && (page < 0 || page >= layer.pages.count))
      return detail::expected_got(detail::sequence_name(i) + "page id", "0 to " + std::to_string(layer.pages.count - 1),
                                  page);
    if (begin % shape().page_tokens != 0 || end < begin || end - begin > shape().page_tokens ||
        end - begin > layer.window.rows)
      return detail::expected_got(detail::sequence_name(i) + "tokens to restore",
                                  "those of one page from its first, at most the window's rows", end - begin);
    auto const& sequences = layer.sequences;
    for (int h = 0; h < shape().kv_heads; ++h) {
      half const* const factors = Key::is_balanced ? layer.side.factor(sequences.record_of(i), h) : nullptr;
      std::byte const* const unit = reads_page ? layer.pages.unit(page, h) : nullptr;
      if (reads_page) codec_.decode_unit(unit, factors, decoded(side::key).data(), decoded(side::value).data());
      for (std::int32_t p = begin; p < end; ++p) {
        restore_row<side::key, Key>(layer, i, h, unit, p, p - begin);
        restore_row<side::value, Value>(layer, i, h, unit, p, p - begin);
      }
    }
    return {};
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] std::int32_t dim(side s) const { return s == side::key ? shape().key_dim : shape().value_dim; }
  std::vector<W>& staged(side s) { return s == side::key ? staged_keys_ : staged_values_; }
  std::vector<float>& decoded(side s) { return s == side::key ? decoded_keys_ : decoded_values_; }

  [[nodiscard]] std::int32_t end(layer_view<W> const& layer, std::int32_t i, std::int32_t window_tokens) const {
    return history_after_commit(layer.sequences.history[i], layer.sequences.length[i], window_tokens,
                                shape().page_tokens);
  }
  static W* ring_row(layer_view<W> const& layer, std::int32_t i, side s, int head, std::int32_t position) {
    return layer.window.row(layer.sequences.slot_of(i), s, head, position);
  }

  /// The rows of a page that lies in the ring: in place, or staged where the ring wraps within it.
  token_rows<W> ring_rows(layer_view<W> const& layer, std::int32_t i, side s, int head, std::int32_t begin) {
    std::int32_t const first = begin % layer.window.rows, tokens = shape().page_tokens;
    if (first + tokens <= layer.window.rows)
      return {ring_row(layer, i, s, head, begin), layer.window.row_stride / std::int64_t{sizeof(W)}, 0};
    for (std::int32_t t = 0; t < tokens; ++t)
      detail::copy_row<W>(ring_row(layer, i, s, head, begin + t), dim(s), staged(s).data() + std::int64_t{t} * dim(s));
    return {staged(s).data(), dim(s), 0};
  }

  /// from(side, head, first position of a page): its rows.
  template <class From>
  void write_pages(layer_view<W> const& layer, std::int32_t i, std::int32_t window_tokens, From const& from,
                   std::int64_t* not_finite) {
    std::int32_t const history = layer.sequences.history[i], after = end(layer, i, window_tokens);
    for (std::int32_t begin = history; begin < after; begin += shape().page_tokens) {
      std::int32_t const page = layer.table.page(i, begin / shape().page_tokens);
      bool const makes_factors = Key::is_balanced && begin == 0;
      if (page < 0 && !makes_factors) continue;
      for (int h = 0; h < shape().kv_heads; ++h) {
        half* const factors = Key::is_balanced ? layer.side.factor(layer.sequences.record_of(i), h) : nullptr;
        token_rows<W> const keys = from(side::key, h, begin);
        int const masked = begin == 0 ? layer.side.sinks : 0;
        if constexpr (Key::is_balanced)
          if (makes_factors) codec_.make_factors(keys.data, keys.token_stride, masked, factors);
        if (page < 0) continue;
        token_rows<W> const values = from(side::value, h, begin);
        std::int64_t const bad = codec_.encode_unit(keys.data, keys.token_stride, values.data, values.token_stride,
                                                    masked, factors, layer.pages.unit(page, h));
        if (not_finite != nullptr) *not_finite += bad;
      }
    }
  }

  template <side S, class F>
  void restore_row(layer_view<W> const& layer, std::int32_t i, int head, [[maybe_unused]] std::byte const* unit,
                   std::int32_t position, std::int32_t token) {
    W* const to = ring_row(layer, i, S, head, position);
    if (position < layer.side.sinks) {
      detail::copy_row<W>(layer.side.sink(layer.sequences.record_of(i), S, head, position), dim(S), to);
      return;
    }
    if constexpr (is_exact<F>)
      if constexpr (std::is_same_v<typename codec_of<F>::element_type, W>) {
        std::memcpy(to, unit + codec_.layout().template code_bit<S>(token, 0, 0).byte, sizeof(W) * at(dim(S)));
        return;
      }
    detail::copy_row<W>(decoded(S).data() + std::int64_t{token} * dim(S), dim(S), to);
  }

  /// least_id: 0, or -1 where a page may be left out. Without row offsets all that leaves the window lies in it.
  [[nodiscard]] status check(layer_view<W> const& layer, std::int32_t window_tokens, std::int32_t least_id,
                             std::int32_t const* row_offsets = nullptr) const {
    auto const n = [](std::int64_t x) { return std::to_string(x); };
    if (codec_.layout().tile_tokens == 0) return status::error("page writer: expected prepare() before use");
    if (window_tokens < 0) return detail::expected_got("window_tokens", "at least 0", window_tokens);
    auto const& [pages, window, records, table, sequences] = layer;
    std::int32_t const masked = layer.side.sinks;
    std::int32_t const page_tokens = shape().page_tokens;
    if (sequences.count < 0) return detail::expected_got("sequences", "a count of at least 0", sequences.count);
    if (sequences.count == 0) return {};
    if (sequences.length == nullptr || sequences.history == nullptr)
      return status::error("sequences: expected arrays of length and history, got a null pointer");
    if (window.base == nullptr || window.rows < 1) return status::error("window: expected rows, got none");
    if (window.row_stride % std::int64_t{sizeof(W)} != 0 ||
        window.row_stride < std::int64_t{sizeof(W)} * std::max(dim(side::key), dim(side::value)))
      return detail::expected_got("row stride of the window", "a whole number of elements that hold a row",
                                  window.row_stride);
    if (masked < 0 || masked >= page_tokens) return detail::expected_got("sinks", "0 to " + n(page_tokens - 1), masked);
    for (std::int32_t i = 0; i < sequences.count; ++i) {
      if (sequences.slot_of(i) < 0) continue;
      std::string const name = detail::sequence_name(i);
      std::int32_t const length = sequences.length[i], history = sequences.history[i];
      if (history < 0 || history > length || history % page_tokens != 0)
        return detail::expected_got(name + "history",
                                    "a multiple of " + n(page_tokens) + " up to the length " + n(length), history);
      std::int32_t const after = end(layer, i, window_tokens);
      std::int32_t const fresh = row_offsets == nullptr ? 0 : row_offsets[i + 1] - row_offsets[i];
      std::int32_t const in_ring = std::max(length - after, length - fresh - history);
      if (in_ring > window.rows)
        return detail::expected_got(name + "window rows", "at least " + n(in_ring), window.rows);
      if (after == history) continue;
      if (pages.base == nullptr || table.ids == nullptr || table.capacity < 1)
        return status::error(name + "expected pages and a block table, got a null pointer");
      if (pages.head_stride < codec_.layout().unit_bytes() && shape().kv_heads > 1)
        return detail::expected_got("head stride of pages", "at least " + n(codec_.layout().unit_bytes()) + " bytes",
                                    pages.head_stride);
      if (least_id == 0 && (after - history) / page_tokens > table.capacity)
        return detail::expected_got(name + "block table", "at least " + n((after - history) / page_tokens) + " entries",
                                    table.capacity);
      if (Key::is_balanced && (records.factors == nullptr || sequences.record_of(i) < 0))
        return status::error(name + "balance factors: expected a side record with memory for them, got none");
      for (std::int32_t page = history / page_tokens; page < after / page_tokens; ++page)
        if (std::int32_t const id = table.page(i, page); id < least_id || id >= pages.count)
          return detail::expected_got(name + "page " + n(page), "an id from 0 to " + n(pages.count - 1), id);
    }
    return {};
  }

  page_codec<Key, Value> codec_;
  std::vector<W> staged_keys_, staged_values_;        // [page_tokens, dim]
  std::vector<float> decoded_keys_, decoded_values_;  // [page_tokens, dim]
};

}  // namespace kvant::inline v0
