#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <kvant/config.hpp>
#include <kvant/format/scale.hpp>
#include <kvant/half.hpp>

namespace kvant::inline v0 {

// Views are trivially copyable aggregates over memory that somebody owns; caches and kernels take them by value. Strides
// are bytes unless the name says otherwise. Negative ids and slots mark padding.

/// Rows of elements, [tokens, heads, channels] by strides in elements; channels are adjacent.
template <element T>
struct token_rows {
  T const* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;  // elements
  [[nodiscard]] KVANT_HD constexpr T const* row(std::int64_t token, int head) const {
    return data + token * token_stride + head * head_stride;
  }
};

/// Pages of one layer; the unit of kv head h of page p is unit_bytes from unit(p, h) on (layout/page_layout.hpp).
struct pages_view {
  std::byte* base = nullptr;
  std::int64_t page_stride = 0, head_stride = 0;
  std::int64_t count = 0;  // pages that exist: ids below it are valid
  [[nodiscard]] KVANT_HD constexpr std::byte* unit(std::int64_t page, int head) const {
    return base + page * page_stride + head * head_stride;
  }
};

/// Pages of exact rows, [page, token, head, channel] or [page, head, token, channel] by stride: an engine's own 16-bit
/// cache where it lies.
template <element T>
struct exact_pages_view {
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  std::int64_t page_stride = 0, token_stride = 0, head_stride = 0;
  std::int64_t count = 0;
  [[nodiscard]] KVANT_HD T* row(side s, std::int64_t page, int token, int head) const {
    return reinterpret_cast<T*>((s == side::key ? keys : values) + page * page_stride + token * token_stride +
                                head * head_stride);
  }
};

/// The newest tokens as they came: [slot, K or V, kv head, ring row, channel]. Position p of a sequence lies in ring row
/// p mod rows of its slot.
template <element T>
struct window_view {
  std::byte* base = nullptr;
  std::int64_t slot_stride = 0, side_stride = 0, head_stride = 0, row_stride = 0;
  std::int32_t rows = 0;  // R = W + P - 1 + M rounded up to 16
  [[nodiscard]] KVANT_HD T* row(std::int64_t slot, side s, int head, std::int64_t position) const {
    return ring_row(slot, s, head, position % rows);
  }
  [[nodiscard]] KVANT_HD T* ring_row(std::int64_t slot, side s, int head, std::int64_t index) const {
    return reinterpret_cast<T*>(base + slot * slot_stride + (s == side::key ? 0 : side_stride) + head * head_stride +
                                index * row_stride);
  }
};

/// What a sequence keeps beside its pages, for one layer: exact copies of its first `sinks` tokens,
/// [record, K or V, kv head, row, channel], and the balance factors of its keys, [record, kv head, channel] half.
template <element T>
struct side_records_view {
  std::byte* sink_rows = nullptr;
  std::byte* factors = nullptr;  // null where the key format is not balanced
  std::int64_t record_stride = 0;
  std::int64_t sink_side_stride = 0, sink_head_stride = 0, sink_row_stride = 0;
  std::int64_t factor_head_stride = 0;
  std::int32_t sinks = 0;  // S, less than the tokens of a page
  [[nodiscard]] KVANT_HD T* sink(std::int64_t record, side s, int head, std::int64_t position) const {
    return reinterpret_cast<T*>(sink_rows + record * record_stride + (s == side::key ? 0 : sink_side_stride) +
                                head * sink_head_stride + position * sink_row_stride);
  }
  [[nodiscard]] KVANT_HD half* factor(std::int64_t record, int head) const {
    return factors == nullptr ? nullptr
                              : reinterpret_cast<half*>(factors + record * record_stride + head * factor_head_stride);
  }
};

/// Page ids of sequences: entry i of a row is the page of positions [i P, (i + 1) P). A row is a ring of `capacity`
/// entries where old pages are returned (sliding-window layers).
struct block_table_view {
  std::int32_t const* ids = nullptr;
  std::int64_t row_stride = 0;  // entries
  std::int32_t capacity = 0;    // entries in a row
  [[nodiscard]] KVANT_HD constexpr std::int32_t page(std::int64_t sequence, std::int64_t index) const {
    return ids[sequence * row_stride + index % capacity];
  }
};

/// The sequences of a batch: arrays of `count`. Tokens [first, history) lie in pages, [history, length) in the window,
/// [0, min(S, length)) in the sinks; all three count absolute positions. Null `first` and `position_base` are zeros,
/// null `slot` and `record` are 0, 1, 2, ...
struct sequences_view {
  std::int32_t const* length = nullptr;
  std::int32_t const* history = nullptr;
  std::int32_t const* first = nullptr;
  std::int32_t const* position_base = nullptr;  // added to positions: dropped context, context parallelism
  std::int32_t const* slot = nullptr;           // row of the window arena
  std::int32_t const* record = nullptr;         // side record
  std::int32_t count = 0;
  [[nodiscard]] KVANT_HD constexpr std::int32_t first_of(std::int32_t i) const {
    return first == nullptr ? 0 : first[i];
  }
  [[nodiscard]] KVANT_HD constexpr std::int32_t base_of(std::int32_t i) const {
    return position_base == nullptr ? 0 : position_base[i];
  }
  [[nodiscard]] KVANT_HD constexpr std::int32_t slot_of(std::int32_t i) const { return slot == nullptr ? i : slot[i]; }
  [[nodiscard]] KVANT_HD constexpr std::int32_t record_of(std::int32_t i) const {
    return record == nullptr ? i : record[i];
  }
};

/// What attention over one layer reads.
template <element T>
struct layer_view {
  pages_view pages;
  window_view<T> window;
  side_records_view<T> side;
  block_table_view table;
  sequences_view sequences;
};

/// Queries of a batch, [rows, q heads, key_dim]; sequence i has rows [row_offsets[i], row_offsets[i + 1]), or without
/// row offsets row i.
template <element T>
struct queries_view {
  T const* data = nullptr;
  std::int64_t row_stride = 0, head_stride = 0;  // elements
  std::int32_t const* row_offsets = nullptr;     // [sequences + 1] or null: one row each
  std::int32_t q_heads = 0;
  std::int32_t max_rows = 1;  // no sequence has more; what a launch is sized for
  [[nodiscard]] KVANT_HD constexpr T const* row(std::int64_t row_index, int head) const {
    return data + row_index * row_stride + head * head_stride;
  }
  /// The first row of sequence i; that of i + 1 is behind its last.
  [[nodiscard]] KVANT_HD constexpr std::int32_t first_row(std::int32_t i) const {
    return row_offsets == nullptr ? i : row_offsets[i];
  }
};

static_assert(std::is_trivially_copyable_v<layer_view<half>> && std::is_aggregate_v<layer_view<half>>);
static_assert(std::is_trivially_copyable_v<queries_view<bfloat16>> && std::is_aggregate_v<exact_pages_view<half>>);

}  // namespace kvant::inline v0
