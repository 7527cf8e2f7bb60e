#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include <kvant/attention/options.hpp>
#include <kvant/cache/views.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/status.hpp>

namespace kvant::inline v0::detail {

[[nodiscard]] inline status unexpected(std::string const& what, std::string const& expected, std::int64_t got) {
  return status::error(what + ": expected " + expected + ", got " + std::to_string(got));
}

/// What can be wrong with one sequence of a batch.
template <kv_format Key, kv_format Value, element T>
status check_sequence(page_layout<Key, Value> const& layout, layer_view<T> const& layer, std::int32_t i) {
  auto const& s = layer.sequences;
  std::string const name = "sequence " + std::to_string(i) + ": ";
  int const page_tokens = layout.shape.page_tokens;
  std::string const multiple = "a multiple of the page's " + std::to_string(page_tokens) + " tokens";
  std::int32_t const length = s.length[i], history = s.history[i], first = s.first_of(i);
  if (length < 0) return unexpected(name + "length", "at least 0", length);
  if (history < 0 || history > length)
    return unexpected(name + "history", "0 to the length " + std::to_string(length), history);
  if (history % page_tokens != 0) return unexpected(name + "history", multiple, history);
  if (first < 0 || first > history)
    return unexpected(name + "first", "0 to the history " + std::to_string(history), first);
  if (first % page_tokens != 0) return unexpected(name + "first", multiple, first);

  if (length - history > layer.window.rows)
    return unexpected(name + "window rows",
                      "at least " + std::to_string(length - history) + " (length " + std::to_string(length) +
                          " - history " + std::to_string(history) + ")",
                      layer.window.rows);
  if (length > std::max(history, layer.side.sinks) && layer.window.base == nullptr)
    return status::error(name + "window: expected memory, got a null pointer");
  bool const needs_sinks = layer.side.sinks > 0 && length > 0, needs_factors = Key::is_balanced && history > first;
  if (needs_sinks && layer.side.sink_rows == nullptr)
    return status::error(name + "sinks: expected rows, got a null pointer");
  if (needs_factors && layer.side.factors == nullptr)
    return status::error(name +
                         "balance factors: expected [kv_heads, key_dim] halves for balanced keys, got a null pointer");
  if ((needs_sinks || needs_factors) && s.record_of(i) < 0)
    return unexpected(name + "side record", "at least 0", s.record_of(i));

  if (history == first) return {};
  if (layer.pages.base == nullptr) return status::error(name + "pages: expected memory, got a null pointer");
  if (layer.table.ids == nullptr) return status::error(name + "block table: expected page ids, got a null pointer");
  std::int32_t const pages = (history - first) / page_tokens;
  if (layer.table.capacity < pages)
    return unexpected(name + "block table",
                      "a capacity of at least " + std::to_string(pages) + " entries (pages of positions " +
                          std::to_string(first) + " to " + std::to_string(history - 1) + ")",
                      layer.table.capacity);
  for (std::int32_t index = first / page_tokens; index < history / page_tokens; ++index) {
    std::int32_t const id = layer.table.page(i, index);
    if (id < 0 || id >= layer.pages.count)
      return unexpected(name + "page " + std::to_string(index),
                        "an id from 0 to " + std::to_string(layer.pages.count - 1), id);
  }
  return {};
}

/// What can be wrong with a call of attention, whatever path takes it. Looks at no key, value or query.
template <kv_format Key, kv_format Value, element T, element Q>
status check_attention(page_layout<Key, Value> const& layout, layer_view<T> const& layer,
                       queries_view<Q> const& queries, attention_options const& options) {
  if (status s = check(options); !s.ok()) return s;
  int const kv_heads = layout.shape.kv_heads;
  if (queries.q_heads < 1 || queries.q_heads % kv_heads != 0)
    return unexpected("q_heads", "a multiple of the " + std::to_string(kv_heads) + " kv_heads", queries.q_heads);
  if (0 > layer.side.sinks || layer.side.sinks >= layout.shape.page_tokens)
    return unexpected("sinks", "0 to " + std::to_string(layout.shape.page_tokens - 1) + " (less than a page)",
                      layer.side.sinks);
  if (layer.pages.base != nullptr && layer.pages.head_stride < layout.unit_bytes())
    return unexpected("head stride of pages", "at least " + std::to_string(layout.unit_bytes()) + " bytes (a unit)",
                      layer.pages.head_stride);
  auto const& sequences = layer.sequences;
  if (sequences.count < 0) return unexpected("sequences", "a count of at least 0", sequences.count);
  if (sequences.count == 0) return {};
  if (sequences.length == nullptr || sequences.history == nullptr)
    return status::error("sequences: expected arrays of length and history, got a null pointer");
  if (queries.first_row(0) < 0) return unexpected("row_offsets[0]", "at least 0", queries.first_row(0));
  for (std::int32_t i = 0; i < sequences.count; ++i) {
    std::int32_t const begin = queries.first_row(i), end = queries.first_row(i + 1);
    if (end < begin)
      return unexpected("row_offsets[" + std::to_string(i + 1) + "]",
                        "at least " + std::to_string(begin) + ", the offset before it", end);
    if (end > begin && queries.data == nullptr) return status::error("queries: expected rows, got a null pointer");
    if (sequences.slot_of(i) < 0) continue;
    if (status s = check_sequence(layout, layer, i); !s.ok()) return s;
    std::int32_t const length = sequences.length[i];
    if (options.rows == query_rows::causal_tail && length > 0 && end - begin > length)
      return unexpected("sequence " + std::to_string(i) + ": query rows",
                        "at most " + std::to_string(length) + ", its tokens", end - begin);
  }
  return {};
}

}  // namespace kvant::inline v0::detail
