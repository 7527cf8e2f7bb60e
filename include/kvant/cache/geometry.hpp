#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <kvant/cache/append.hpp>
#include <kvant/cache/id_pool.hpp>
#include <kvant/half.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/plan/plan.hpp>
#include <kvant/result.hpp>

namespace kvant::inline v0 {

struct layer_options {
  page_shape shape;                 // page_tokens 0: the least that the layer's formats allow
  std::int32_t sliding_window = 0;  // pages that no query sees any more are returned; 0: all are kept
};

/// What a cache is made for.
struct cache_options {
  std::span<layer_options const> layers;  // one for all layers of the plan, or one each
  std::int32_t max_sequences = 1;         // that exist at one time
  std::int32_t max_tokens = 0;            // of one sequence from `first` on, in layers without a sliding window
  std::int64_t pool_tokens = 0;           // of all sequences, what there are pages for; 0: for all at max_tokens
  std::int32_t max_uncommitted = 16;      // M: tokens appended between two commits
};

/// Bytes by what they hold.
struct cache_memory {
  std::int64_t codes = 0, parameters = 0;  // of pages; balance factors are parameters
  std::int64_t window = 0, sinks = 0;
  std::int64_t tables = 0;  // block tables, lengths, reference counts
  [[nodiscard]] constexpr std::int64_t total() const { return codes + parameters + window + sinks + tables; }
  constexpr cache_memory& operator+=(cache_memory const& m) {
    codes += m.codes, parameters += m.parameters, window += m.window, sinks += m.sinks, tables += m.tables;
    return *this;
  }
  friend constexpr bool operator==(cache_memory const&, cache_memory const&) = default;
};

/// Layers that see the same tokens through the same page size, window, sinks and sliding window: they share page ids,
/// lengths and side records.
struct group_geometry {
  std::int32_t page_tokens = 0, window_tokens = 0, sinks = 0, sliding_window = 0;
  std::int32_t ring_rows = 0;       // R
  std::int32_t table_capacity = 0;  // pages that one sequence holds at most
  std::int32_t pages = 0;           // in the pool
};

/// One layer's memory: arenas of `pages` pages, max_sequences slots and max_sequences side records.
struct layer_geometry {
  std::int32_t group = 0;
  page_shape shape;
  std::int64_t unit_bytes = 0;       // a page is kv_heads of them
  std::int64_t unit_code_bytes = 0;  // of which codes
  std::int64_t row_bytes = 0;        // a row of the window or of the sinks
  bool is_balanced = false;          // has factors in its side record
  bool is_lossless = false;          // pages hold the window's elements as they are
  [[nodiscard]] std::int64_t sink_bytes(group_geometry const& g) const {
    return 2 * std::int64_t{shape.kv_heads} * g.sinks * row_bytes;
  }
  [[nodiscard]] std::int64_t factor_bytes() const { return is_balanced ? 2LL * shape.kv_heads * shape.key_dim : 0; }
  [[nodiscard]] std::int64_t slot_bytes(group_geometry const& g) const {
    return 2 * std::int64_t{shape.kv_heads} * g.ring_rows * row_bytes;
  }
};

/// What the arenas of one layer take.
[[nodiscard]] inline cache_memory arena_memory(layer_geometry const& layer, group_geometry const& group,
                                               std::int64_t sequences) {
  std::int64_t const units = std::int64_t{group.pages} * layer.shape.kv_heads;
  cache_memory m;
  m.codes = units * layer.unit_code_bytes;
  m.parameters = units * (layer.unit_bytes - layer.unit_code_bytes) + sequences * layer.factor_bytes();
  m.window = sequences * layer.slot_bytes(group);
  m.sinks = sequences * layer.sink_bytes(group);
  return m;
}

struct cache_geometry {
  std::vector<group_geometry> groups;
  std::vector<layer_geometry> layers;
  std::int32_t max_sequences = 0, max_tokens = 0;
  [[nodiscard]] group_geometry const& group_of(std::size_t layer) const {
    return groups[static_cast<std::size_t>(layers[layer].group)];
  }
};

namespace detail {

template <class Layer, element W>
result<layer_geometry> make_layer_geometry(page_shape shape) {
  using layout_type = page_layout<typename Layer::key, typename Layer::value>;
  if (status s = layout_type::check(shape); !s.ok()) return s;
  layout_type const layout(shape);
  layer_geometry g;
  g.shape = layout.shape;
  g.unit_bytes = layout.unit_bytes();
  g.unit_code_bytes =
      std::int64_t{layout.tiles()} * (layout_type::key::code_bytes(layout.tile_tokens, layout.shape.key_dim) +
                                      layout_type::value::code_bytes(layout.tile_tokens, layout.shape.value_dim));
  g.row_bytes = std::int64_t{sizeof(W)} * std::max(layout.shape.key_dim, layout.shape.value_dim);
  g.is_balanced = Layer::key::is_balanced;
  if constexpr (is_exact<typename Layer::key> && is_exact<typename Layer::value>)
    g.is_lossless = std::is_same_v<typename codec_of<typename Layer::key>::element_type, W> &&
                    std::is_same_v<typename codec_of<typename Layer::value>::element_type, W>;
  return g;
}

/// The sizes that follow from the options; an error where they leave the range of page ids.
[[nodiscard]] inline status fill_group(group_geometry& g, cache_options const& options) {
  std::int64_t const p = g.page_tokens, uncommitted = options.max_uncommitted;
  std::int64_t const rows = (g.window_tokens + p - 1 + uncommitted + 15) / 16 * 16;
  // Without a sliding window all pages are kept. With one: those that a query at or past history sees, and those that
  // one commit adds before it returns others.
  std::int64_t const pages_of_all = std::max<std::int64_t>(1, (std::int64_t{options.max_tokens} - g.window_tokens) / p);
  std::int64_t const pages_in_window = (g.sliding_window + p + rows - g.window_tokens + p - 1) / p + 1;
  bool const slides = g.sliding_window > 0;
  std::int64_t const capacity = slides ? pages_in_window : pages_of_all;
  // A prefill takes its pages before it returns those that it slides past.
  std::int64_t const most = capacity * options.max_sequences + (slides ? capacity : 0);
  std::int64_t const pages = options.pool_tokens == 0 ? most : std::min(most, (options.pool_tokens + p - 1) / p);
  constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max();
  if (rows > limit / 2) return expected_got("max_uncommitted", "a ring of fewer rows", rows);
  if (pages > limit) return expected_got("pages", "at most " + std::to_string(limit), pages);
  g.ring_rows = static_cast<std::int32_t>(rows);
  g.table_capacity = static_cast<std::int32_t>(capacity);
  g.pages = static_cast<std::int32_t>(pages);
  return {};
}

}  // namespace detail

/// The sizes of a cache of this plan, or what of the options a layer cannot serve.
template <class Plan, element W = half>
[[nodiscard]] result<cache_geometry> make_geometry(cache_options const& options) {
  static_assert(sizeof(W) == 2, "windows are of half or bfloat16");
  using detail::expected_got;
  if (options.layers.size() != 1 && options.layers.size() != static_cast<std::size_t>(Plan::size))
    return expected_got("layers", "options for all layers, or one for each of the plan's " + std::to_string(Plan::size),
                        static_cast<std::int64_t>(options.layers.size()));
  if (options.max_sequences < 1) return expected_got("max_sequences", "at least 1", options.max_sequences);
  constexpr std::int32_t most_tokens = 1 << 30;
  if (options.max_tokens < 1 || options.max_tokens > most_tokens)
    return expected_got("max_tokens", "1 to " + std::to_string(most_tokens), options.max_tokens);
  if (options.pool_tokens < 0) return expected_got("pool_tokens", "at least 0", options.pool_tokens);
  if (options.max_uncommitted < 1) return expected_got("max_uncommitted", "at least 1", options.max_uncommitted);
  cache_geometry geometry;
  geometry.max_sequences = options.max_sequences, geometry.max_tokens = options.max_tokens;
  for (int i = 0; i < Plan::size; ++i) {
    std::string const name = "layer " + std::to_string(i) + ": ";
    layer_options const& wanted = options.layers[options.layers.size() == 1 ? 0 : static_cast<std::size_t>(i)];
    if (wanted.sliding_window < 0)
      return expected_got(name + "sliding_window", "at least 1 (0: none)", wanted.sliding_window);
    group_geometry group;
    auto layer = visit_layer(Plan{}, i, result<layer_geometry>(status::error("no layer")),
                             [&]<class Layer>(std::type_identity<Layer>) {
                               group.window_tokens = Layer::window, group.sinks = Layer::sinks;
                               return detail::make_layer_geometry<Layer, W>(wanted.shape);
                             });
    if (!layer.ok()) return status::error(name + layer.message());
    group.page_tokens = layer->shape.page_tokens, group.sliding_window = wanted.sliding_window;
    if (status s = detail::fill_group(group, options); !s.ok()) return status::error(name + s.message());
    auto const same = std::find_if(geometry.groups.begin(), geometry.groups.end(), [&](group_geometry const& g) {
      return g.page_tokens == group.page_tokens && g.window_tokens == group.window_tokens && g.sinks == group.sinks &&
             g.sliding_window == group.sliding_window;
    });
    layer->group = static_cast<std::int32_t>(same - geometry.groups.begin());
    if (same == geometry.groups.end()) geometry.groups.push_back(group);
    geometry.layers.push_back(*layer);
  }
  return geometry;
}

}  // namespace kvant::inline v0
