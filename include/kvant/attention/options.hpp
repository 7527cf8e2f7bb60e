#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include <kvant/status.hpp>

namespace kvant::inline v0 {

/// Where the m query rows of a sequence stand, and what they see of its cache.
enum class query_rows {
  causal_tail,  ///< its last m tokens: row r is at position length - m + r and sees the keys up to its own
  new_chunk,    ///< tokens that are not in the cache yet: row r is at position length + r and sees every key
};

/// What one attention call is asked for; every path honours a member or refuses it by name. A logit is
/// softmax_scale * (q . k), then soft-capped, then with ALiBi added, in this order. Pointers are to host or device
/// memory, wherever attention runs.
struct attention_options {
  double softmax_scale = 0;         // 0: 1 / sqrt(key_dim)
  double soft_cap = 0;              // s -> soft_cap * tanh(s / soft_cap); 0: none
  std::int32_t sliding_window = 0;  // a query at position i sees key j only if i - j < sliding_window; 0: none
  query_rows rows = query_rows::causal_tail;
  float const* sink_logits = nullptr;  // [q_heads]: a logit of no token, in the denominator alone; minus infinity: none
  float const* alibi_slopes = nullptr;  // [q_heads]: adds slope * (j - i) to the logit of key j for a query at i
};
static_assert(std::is_trivially_copyable_v<attention_options> && std::is_aggregate_v<attention_options>);

/// Whether the numbers mean something.
[[nodiscard]] inline status check(attention_options const& options) {
  if (!std::isfinite(options.softmax_scale))
    return status::error("softmax_scale: expected a finite number (0: 1 / sqrt(key_dim)), got " +
                         std::to_string(options.softmax_scale));
  if (!std::isfinite(options.soft_cap) || options.soft_cap < 0)
    return status::error("soft_cap: expected a finite number above 0 (0: none), got " +
                         std::to_string(options.soft_cap));
  if (options.sliding_window < 0)
    return status::error("sliding_window: expected at least 1 (0: none), got " +
                         std::to_string(options.sliding_window));
  return {};
}

}  // namespace kvant::inline v0
