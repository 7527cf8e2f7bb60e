#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include <kvant/cache/step.hpp>
#include <kvant/cache/views.hpp>
#include <kvant/cache/window_element.hpp>
#include <kvant/status.hpp>

namespace kvant::inline v0 {

// The step of a cache on the host, over views whose memory anybody may own: begin_step, for each layer append (then
// attend), for each layer page_writer::commit, end_step. The launchers of kernels/kvant are the same on a device.

namespace detail {

[[nodiscard]] inline status expected_got(std::string const& what, std::string const& expected, std::int64_t got) {
  return status::error(what + ": expected " + expected + ", got " + std::to_string(got));
}
[[nodiscard]] inline std::string sequence_name(std::int64_t i) { return "sequence " + std::to_string(i) + ": "; }

/// A row into the window's element type.
template <element W, element T>
void copy_row(T const* from, std::int32_t dim, W* to) {
  if constexpr (std::is_same_v<T, W>)
    std::memcpy(to, from, sizeof(W) * static_cast<std::size_t>(dim));
  else
    for (std::int32_t c = 0; c < dim; ++c) to[c] = window_element<W>(from[c]);
}

/// What must hold of the new rows of a batch whose lengths have been begun, whatever becomes of them.
template <element W, element T>
[[nodiscard]] status check_new_rows(layer_view<W> const& layer, new_rows_view<T> const& rows) {
  auto const& sequences = layer.sequences;
  if (rows.kv_heads < 1 || rows.key_dim < 1 || rows.value_dim < 1)
    return status::error("new rows: expected kv_heads, key_dim and value_dim of at least 1, got " +
                         std::to_string(rows.kv_heads) + ", " + std::to_string(rows.key_dim) + " and " +
                         std::to_string(rows.value_dim));
  std::int64_t const row_bytes =
      std::int64_t{sizeof(W)} * (rows.key_dim > rows.value_dim ? rows.key_dim : rows.value_dim);
  if (layer.window.base == nullptr) return status::error("window: expected memory, got a null pointer");
  if (layer.window.rows < 1) return expected_got("window rows", "at least 1", layer.window.rows);
  if (layer.window.row_stride < row_bytes || layer.window.row_stride % std::int64_t{sizeof(W)} != 0)
    return expected_got("row stride of the window",
                        "a whole number of elements, at least " + std::to_string(row_bytes) + " bytes",
                        layer.window.row_stride);
  if (layer.side.sinks > 0 && layer.side.sink_rows == nullptr)
    return status::error("sinks: expected memory, got a null pointer");
  if (layer.side.sinks > 0 && layer.side.sink_row_stride < row_bytes)
    return expected_got("row stride of the sinks", "at least " + std::to_string(row_bytes) + " bytes",
                        layer.side.sink_row_stride);
  if (sequences.count < 0) return expected_got("sequences", "a count of at least 0", sequences.count);
  if (sequences.count == 0) return {};
  if (sequences.length == nullptr || sequences.history == nullptr || rows.row_offsets == nullptr)
    return status::error("sequences: expected arrays of length, history and row_offsets, got a null pointer");
  for (std::int32_t i = 0; i < sequences.count; ++i) {
    std::int32_t const count = rows.row_offsets[i + 1] - rows.row_offsets[i];
    if (count < 0) return expected_got(sequence_name(i) + "new rows", "at least 0", count);
    if (sequences.slot_of(i) < 0 || count == 0) continue;
    if (rows.keys.data == nullptr || rows.values.data == nullptr)
      return status::error("new rows: expected keys and values, got a null pointer");
    if (sequences.length[i] < count)
      return expected_got(sequence_name(i) + "length", "at least its " + std::to_string(count) + " new rows",
                          sequences.length[i]);
    if (layer.side.sinks > 0 && sequences.record_of(i) < 0)
      return expected_got(sequence_name(i) + "side record", "at least 0", sequences.record_of(i));
  }
  return {};
}

/// Row `j` of sequence i, at `position`, of every head; into the window, or into the side record.
template <element W, element T>
void copy_new_row(layer_view<W> const& layer, new_rows_view<T> const& rows, std::int32_t i, std::int32_t position,
                  bool to_window) {
  auto const& sequences = layer.sequences;
  std::int64_t const row = rows.row_offsets[i + 1] - (sequences.length[i] - position);
  for (side const s : {side::key, side::value})
    for (int h = 0; h < rows.kv_heads; ++h)
      copy_row((s == side::key ? rows.keys : rows.values).row(row, h), s == side::key ? rows.key_dim : rows.value_dim,
               to_window ? layer.window.row(sequences.slot_of(i), s, h, position)
                         : layer.side.sink(sequences.record_of(i), s, h, position));
}

}  // namespace detail

/// Begins a step: every length grows by the new rows of its sequence; padding keeps its own. An error changes nothing.
[[nodiscard]] inline status begin_step(step_view const& step) {
  if (step.count < 0) return detail::expected_got("step", "a count of at least 0", step.count);
  if (step.count > 0 && (step.length == nullptr || step.row_offsets == nullptr))
    return status::error("step: expected arrays of length and row_offsets, got a null pointer");
  for (std::int32_t i = 0; i < step.count; ++i) {
    std::int64_t const rows = std::int64_t{step.row_offsets[i + 1]} - step.row_offsets[i];
    if (rows < 0) return detail::expected_got(detail::sequence_name(i) + "new rows", "at least 0", rows);
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    if (!step.is_padding(i) && step.length[i] + rows > most)
      return detail::expected_got(detail::sequence_name(i) + "length", "at most " + std::to_string(most),
                                  step.length[i] + rows);
  }
  for (std::int32_t i = 0; i < step.count; ++i)
    if (!step.is_padding(i)) step.length[i] += step.row_offsets[i + 1] - step.row_offsets[i];
  return {};
}

/// Ends a step: every history becomes history_after_commit; padding keeps its own. After the commits of all layers.
[[nodiscard]] inline status end_step(step_view const& step, std::int32_t window_tokens, std::int32_t page_tokens) {
  if (step.count < 0) return detail::expected_got("step", "a count of at least 0", step.count);
  if (window_tokens < 0) return detail::expected_got("window_tokens", "at least 0", window_tokens);
  if (page_tokens < 1) return detail::expected_got("page_tokens", "at least 1", page_tokens);
  if (step.count > 0 && (step.length == nullptr || step.history == nullptr))
    return status::error("step: expected arrays of length and history, got a null pointer");
  for (std::int32_t i = 0; i < step.count; ++i)
    if (!step.is_padding(i))
      step.history[i] = history_after_commit(step.history[i], step.length[i], window_tokens, page_tokens);
  return {};
}

/// Writes the new rows of a batch into the window of one layer, and those at positions below `sinks` into the side
/// records too, each rounded once to the window's element type (window_element). begin_step has counted them: row j of
/// the m of sequence i has position length[i] - m + j. Sequences with a negative slot are padding. Reads every new row
/// once. An error (a null pointer, a stride too short, a sequence whose ring has no room) changes nothing.
template <element W, element T>
[[nodiscard]] status append(layer_view<W> const& layer, new_rows_view<T> const& rows) {
  if (status s = detail::check_new_rows(layer, rows); !s.ok()) return s;
  auto const& sequences = layer.sequences;
  for (std::int32_t i = 0; i < sequences.count; ++i)
    if (sequences.slot_of(i) >= 0 && sequences.length[i] - sequences.history[i] > layer.window.rows)
      return detail::expected_got(detail::sequence_name(i) + "length - history",
                                  "at most the " + std::to_string(layer.window.rows) + " rows of the window",
                                  sequences.length[i] - sequences.history[i]);
  for (std::int32_t i = 0; i < sequences.count; ++i) {
    if (sequences.slot_of(i) < 0) continue;
    std::int32_t const length = sequences.length[i], start = length - (rows.row_offsets[i + 1] - rows.row_offsets[i]);
    for (std::int32_t position = start; position < length; ++position) {
      detail::copy_new_row(layer, rows, i, position, true);
      if (position < layer.side.sinks) detail::copy_new_row(layer, rows, i, position, false);
    }
  }
  return {};
}

}  // namespace kvant::inline v0
