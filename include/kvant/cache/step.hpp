#pragma once

#include <cstdint>
#include <type_traits>

#include <kvant/cache/views.hpp>
#include <kvant/config.hpp>
#include <kvant/half.hpp>

namespace kvant::inline v0 {

/// The lengths that a step moves, arrays of `count`. Sequence i has the new rows [row_offsets[i], row_offsets[i + 1]).
/// Null `slot` is 0, 1, 2, ...; a sequence with a negative slot is padding and keeps its lengths.
struct step_view {
  std::int32_t* length = nullptr;
  std::int32_t* history = nullptr;
  std::int32_t const* slot = nullptr;
  std::int32_t const* row_offsets = nullptr;  // [count + 1]
  std::int32_t count = 0;
  [[nodiscard]] KVANT_HD constexpr bool is_padding(std::int32_t i) const { return slot != nullptr && slot[i] < 0; }
};

/// New rows of a batch: sequence i has rows [row_offsets[i], row_offsets[i + 1]) of keys and of values.
template <element T>
struct new_rows_view {
  token_rows<T> keys, values;                 // [rows, kv heads, key_dim], [rows, kv heads, value_dim]
  std::int32_t const* row_offsets = nullptr;  // [sequences + 1]
  std::int32_t kv_heads = 0, key_dim = 0, value_dim = 0;
  std::int32_t max_rows = 1;  // no sequence has more; what a launch is sized for
};

/// The tokens of a sequence that lie in pages once a step has been committed: whole pages of `page_tokens` (above 0), the
/// newest `window_tokens` (at least 0) kept exact; never less than `history`.
[[nodiscard]] KVANT_HD constexpr std::int32_t history_after_commit(std::int32_t history, std::int32_t length,
                                                                   std::int32_t window_tokens,
                                                                   std::int32_t page_tokens) {
  std::int32_t const pages = length > window_tokens ? (length - window_tokens) / page_tokens : 0;
  return pages * page_tokens > history ? pages * page_tokens : history;
}

static_assert(std::is_trivially_copyable_v<step_view> && std::is_aggregate_v<new_rows_view<half>>);
static_assert(history_after_commit(0, 128, 128, 64) == 0 && history_after_commit(0, 191, 128, 64) == 0);
static_assert(history_after_commit(0, 192, 128, 64) == 64 && history_after_commit(64, 140, 128, 64) == 64);
static_assert(history_after_commit(0, 64, 0, 64) == 64 && history_after_commit(0, 3, 0, 128) == 0);

}  // namespace kvant::inline v0
