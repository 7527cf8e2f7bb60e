#pragma once

#include <cstdint>

#include <kvant/config.hpp>

namespace kvant::inline v0 {

/// The tokens of a sequence that lie in pages once a step has been committed: whole pages of `page_tokens` (above 0), the
/// newest `window_tokens` (at least 0) kept exact; never less than `history`.
[[nodiscard]] KVANT_HD constexpr std::int32_t history_after_commit(std::int32_t history, std::int32_t length,
                                                                   std::int32_t window_tokens,
                                                                   std::int32_t page_tokens) {
  std::int32_t const pages = length > window_tokens ? (length - window_tokens) / page_tokens : 0;
  return pages * page_tokens > history ? pages * page_tokens : history;
}

static_assert(history_after_commit(0, 128, 128, 64) == 0 && history_after_commit(0, 191, 128, 64) == 0);
static_assert(history_after_commit(0, 192, 128, 64) == 64 && history_after_commit(64, 140, 128, 64) == 64);
static_assert(history_after_commit(0, 64, 0, 64) == 64 && history_after_commit(0, 3, 0, 128) == 0);

}  // namespace kvant::inline v0
