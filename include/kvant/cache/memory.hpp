#pragma once

#include <cstddef>
#include <cstdint>

#include <kvant/cache/geometry.hpp>
#include <kvant/cache/sequence_book.hpp>
#include <kvant/cache/step_batch.hpp>
#include <kvant/half.hpp>

namespace kvant::inline v0 {

/// Bytes of the bookkeeping of a cache.
[[nodiscard]] inline std::int64_t table_bytes(cache_geometry const& geometry) {
  return sequence_book::bytes(geometry) + step_batch::bytes(geometry.max_sequences);
}

/// What a cache of these sizes allocates: kv_cache::memory() before there is one.
[[nodiscard]] inline cache_memory memory_of(cache_geometry const& geometry) {
  cache_memory sum;
  for (std::size_t i = 0; i < geometry.layers.size(); ++i)
    sum += arena_memory(geometry.layers[i], geometry.group_of(i), geometry.max_sequences);
  sum.tables = table_bytes(geometry);
  return sum;
}

/// The longest sequence that a cache of this plan holds in so many bytes, window, sinks and tables counted: the greatest
/// max_tokens of a cache for one sequence whose memory_of is at most `bytes`. 0 where not one token fits, or a format
/// cannot serve the shape.
template <class Plan, element W = half>
[[nodiscard]] std::int32_t tokens_that_fit(std::int64_t bytes, Plan, page_shape shape) {
  layer_options const layer{shape, 0};
  auto const fits = [&](std::int32_t tokens) {
    cache_options options;
    options.layers = {&layer, 1}, options.max_tokens = tokens;
    auto const geometry = make_geometry<Plan, W>(options);
    return geometry.ok() && memory_of(*geometry).total() <= bytes;
  };
  std::int32_t most = 0;  // fits; most + step may not
  for (std::int32_t step = 1 << 29; step > 0; step /= 2)
    if (fits(most + step)) most += step;
  return most;
}

}  // namespace kvant::inline v0
