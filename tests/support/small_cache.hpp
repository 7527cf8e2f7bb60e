#pragma once

#include <cstdint>
#include <memory_resource>

#include <kvant/cache/kv_cache.hpp>
#include <kvant/plan/plan.hpp>

#include "support/catch.hpp"

namespace support {

inline constexpr int small_window = 40;
/// Two groups: balanced, centered keys beside exact pages. Heads of 16 and 32 channels.
using small_plan = kvant::plan<
    kvant::layer<kvant::turboquant_key<3>, kvant::turboquant<3>, kvant::window<small_window>, kvant::sinks<4>>,
    kvant::layer<kvant::exact<kvant::half>, kvant::exact<kvant::half>, kvant::window<small_window>, kvant::sinks<2>>>;
using small_cache = kvant::kv_cache<small_plan>;
inline constexpr kvant::layer_options small_layers[] = {{{2, 16, 32, 64}, 0}, {{1, 32, 16, 64}, 0}};

struct small_options {
  std::int32_t max_sequences = 1, max_tokens = 800;
  std::int64_t pool_tokens = 0;
};
inline kvant::cache_options options_of(small_options o) {
  kvant::cache_options all;
  all.layers = small_layers, all.max_sequences = o.max_sequences, all.max_tokens = o.max_tokens;
  all.pool_tokens = o.pool_tokens, all.max_uncommitted = 70;
  return all;
}
inline small_cache make_small_cache(small_options o) {
  auto cache = small_cache::create(options_of(o));
  REQUIRE(cache.message() == "");
  return *std::move(cache);
}

}  // namespace support
