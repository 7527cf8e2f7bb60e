#pragma once

#include <cstdint>
#include <string_view>

#include <kvant/cache/sequence_book.hpp>
#include <kvant/cache/sequence_group.hpp>
#include <kvant/cache/views.hpp>

namespace kvant::inline v0 {

/// New rows of one layer, those of a batch one behind the other.
template <element T>
struct layer_rows {
  token_rows<T> keys, values;  // [tokens, kv heads, key_dim], [tokens, kv heads, value_dim]
};

/// Whether the surviving tokens are the ones that were appended, or some of them what a page had made of them.
enum class truncation { exact, approximate };

struct cache_stats {
  std::int32_t sequences = 0, max_sequences = 0;
  std::int64_t tokens = 0;                                        // of all sequences
  std::int64_t pages_used = 0, pages_shared = 0, pages_free = 0;  // of all groups; reserved pages are used
  std::int64_t window_tokens = 0, window_rows = 0;  // rows that hold a token, and all of them; of all groups
  std::int64_t not_finite = 0;                      // values coded as 0 because they were not finite
  std::string_view path;
};

/// What the bookkeeping knows of it.
[[nodiscard]] inline cache_stats count(sequence_book const& book) {
  cache_stats s;
  s.sequences = book.rows().used(), s.max_sequences = book.rows().count();
  for (sequence_group const& g : book.groups()) {
    s.pages_used += g.pages().used(), s.pages_shared += g.pages().shared(), s.pages_free += g.pages().free();
    s.window_rows += std::int64_t{g.geometry().ring_rows} * s.max_sequences;
    for (std::int32_t row = 0; row < s.max_sequences; ++row) s.window_tokens += g.length(row) - g.history(row);
  }
  for (std::int32_t row = 0; row < s.max_sequences; ++row) s.tokens += book.length(row);
  return s;
}

}  // namespace kvant::inline v0
