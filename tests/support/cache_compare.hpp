#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <kvant/cache/kv_cache.hpp>

#include "support/cache_model.hpp"

namespace support {

/// A sequence as the cache and as the model have it.
struct tracked_sequence {
  kvant::sequence_id id;
  model_sequence model;
};

/// Where one layer of a sequence differs from the model, byte for byte; empty where it does not.
template <class Cache>
std::string difference_in_layer(Cache const& cache, tracked_sequence const& s, int layer) {
  auto const view = cache.view(layer, s.id);
  if (!view.ok()) return view.message();
  auto const& geometry = cache.geometry().layers[static_cast<std::size_t>(layer)];
  auto const& group = cache.geometry().group_of(static_cast<std::size_t>(layer));
  auto const& model = s.model.layers[static_cast<std::size_t>(layer)];
  auto const& numbers = s.model.groups[static_cast<std::size_t>(geometry.group)];
  auto const text = [](auto... n) { return ((" " + std::to_string(n)) + ...); };
  auto const& seen = view->sequences;
  if (seen.length[0] != numbers.length || seen.history[0] != numbers.history || seen.first[0] != numbers.first ||
      seen.position_base[0] != s.model.position_base)
    return "length, history, first, base:" +
           text(seen.length[0], seen.history[0], seen.first[0], seen.position_base[0]) + ", expected" +
           text(numbers.length, numbers.history, numbers.first, s.model.position_base);

  int const p = group.page_tokens, heads = geometry.shape.kv_heads;
  for (int index = numbers.first / p; index < numbers.history / p; ++index) {
    int const id = view->table.page(0, index);
    if (id < 0 || id >= view->pages.count) return "page " + text(index) + " has id" + text(id);
    auto const& expected = *model.pages[static_cast<std::size_t>(index)];
    std::size_t const unit = expected.size() / static_cast<std::size_t>(heads);
    for (int h = 0; h < heads; ++h)
      if (std::memcmp(view->pages.unit(id, h), expected.data() + unit * static_cast<std::size_t>(h), unit) != 0)
        return "bytes of page" + text(index) + ", head" + text(h);
  }
  for (int h = 0; h < heads && numbers.history > 0 && !model.factors.empty(); ++h) {
    auto const dim = static_cast<std::size_t>(geometry.shape.key_dim);
    if (std::memcmp(view->side.factor(seen.record[0], h), model.factors.data() + dim * static_cast<std::size_t>(h),
                    2 * dim) != 0)
      return "balance factors, head" + text(h);
  }
  auto const row = [&](kvant::side side, int position, int h) {
    auto const dim = side == kvant::side::key ? geometry.shape.key_dim : geometry.shape.value_dim;
    auto const& rows = side == kvant::side::key ? model.keys : model.values;
    return std::pair{rows.data() + (std::int64_t{position} * heads + h) * dim, 2 * static_cast<std::size_t>(dim)};
  };
  for (auto const side : {kvant::side::key, kvant::side::value})
    for (int h = 0; h < heads; ++h) {
      for (int position = 0; position < std::min(group.sinks, numbers.length); ++position) {
        auto const [expected, bytes] = row(side, position, h);
        if (std::memcmp(view->side.sink(seen.record[0], side, h, position), expected, bytes) != 0)
          return "sink" + text(position) + ", head" + text(h);
      }
      for (int position = numbers.history; position < numbers.length; ++position) {
        auto const [expected, bytes] = row(side, position, h);
        if (std::memcmp(view->window.row(seen.slot[0], side, h, position), expected, bytes) != 0)
          return "window row of position" + text(position) + ", head" + text(h);
      }
    }
  return "";
}

/// Where the cache differs from the model; empty where it does not.
template <class Plan, class Cache>
std::string difference(Cache const& cache, std::vector<tracked_sequence> const& sequences) {
  kvant::cache_stats const stats = cache.stats();
  auto const& geometry = cache.geometry();
  std::int64_t tokens = 0, used = 0, shared = 0, free = 0, window = 0;
  for (auto const& s : sequences) {
    if (!cache.contains(s.id)) return "a sequence that should exist does not";
    tokens += s.model.groups.front().length;
    for (int layer = 0; layer < Plan::size; ++layer)
      if (std::string const d = difference_in_layer(cache, s, layer); !d.empty())
        return "row " + std::to_string(s.id.row) + ", layer " + std::to_string(layer) + ": " + d;
  }
  for (std::size_t g = 0; g < geometry.groups.size(); ++g) {
    std::size_t layer = 0;
    while (static_cast<std::size_t>(geometry.layers[layer].group) != g) ++layer;
    std::multiset<void const*> pages;
    std::int64_t in_group = 0;
    for (auto const& s : sequences) {
      for (auto const& page : s.model.layers[layer].pages)
        if (page != nullptr) pages.insert(page.get());
      auto const& numbers = s.model.groups[g];
      in_group += numbers.reserved - numbers.history / geometry.groups[g].page_tokens;
      window += numbers.length - numbers.history;
    }
    for (auto it = pages.begin(); it != pages.end(); it = pages.upper_bound(*it)) {
      ++in_group;
      shared += pages.count(*it) > 1 ? 1 : 0;
    }
    used += in_group, free += geometry.groups[g].pages - in_group;
  }
  auto const counts = [](std::initializer_list<std::int64_t> n) {
    std::string s;
    for (std::int64_t const x : n) s += " " + std::to_string(x);
    return s;
  };
  std::string const expected =
                        counts({static_cast<std::int64_t>(sequences.size()), tokens, used, shared, free, window}),
                    got = counts({stats.sequences, stats.tokens, stats.pages_used, stats.pages_shared, stats.pages_free,
                                  stats.window_tokens});
  return expected == got ? ""
                         : "sequences, tokens, pages used, shared, free, window rows:" + got + ", expected" + expected;
}

}  // namespace support
