#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <kvant/cache/kv_cache.hpp>

#include "support/cache_compare.hpp"
#include "support/cache_model.hpp"
#include "support/cache_operation.hpp"

namespace support {

/// Rows of one layer: keys with a bias that differs by head and channel, now and then a value that is not finite.
inline model_rows make_rows(kvant::page_shape const& shape, int tokens, std::uint64_t content, std::uint64_t layer) {
  std::uint64_t state = content * 1000 + layer;
  auto const noise = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31f;
  };
  model_rows rows;
  bool const odd = content % 97 == 0;
  for (int i = 0; i < tokens * shape.kv_heads * shape.key_dim; ++i) {
    float const x = noise() + (i % (shape.kv_heads * shape.key_dim) % 7 == 0 ? 8.f : 0.f);
    rows.keys.push_back(half{odd && i % 501 == 7 ? 1.f / 0.f : x});
  }
  for (int i = 0; i < tokens * shape.kv_heads * shape.value_dim; ++i) rows.values.push_back(half{4.f * noise()});
  return rows;
}

/// Runs operations on a cache and on the model side by side.
template <class Plan>
class cache_script {
 public:
  explicit cache_script(kvant::cache_options const& options)
      : cache_(*kvant::kv_cache<Plan>::create(options)), model_(cache_.geometry()), options_(options) {}

  /// Where the two part; empty where they do not.
  std::string run(std::vector<cache_operation> const& script) {
    for (std::size_t i = 0; i < script.size(); ++i) {
      std::string found = step(script[i]);
      if (found.empty()) found = difference<Plan>(cache_, sequences_);
      if (!found.empty()) return "operation " + std::to_string(i) + " " + to_string(script[i]) + ": " + found;
    }
    return "";
  }
  [[nodiscard]] int refused() const { return refused_; }
  [[nodiscard]] int done() const { return done_; }

 private:
  using op = cache_operation;
  struct run_of {
    std::size_t sequence;
    int tokens;
  };

  std::string step(op const& o) {
    if (o.kind == op::add) {
      auto const id = cache_.add();
      if (bool const fits = sequences_.size() < static_cast<std::size_t>(options_.max_sequences); fits != id.ok())
        return "add: " + id.message();
      if (id.ok()) sequences_.push_back({*id, model_.empty()});
      return "";
    }
    if (sequences_.empty()) return "";
    std::size_t const at = o.which % sequences_.size();
    tracked_sequence& s = sequences_[at];
    int const length = s.model.groups.front().length;
    switch (o.kind) {
      case op::fork:
        return fork(at);
      case op::release: {
        if (auto const done = cache_.release(s.id); !done.ok()) return done.message();
        if (cache_.release(s.id).ok() || cache_.commit(s.id).ok()) return "a released sequence was found";
        sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(at));
        return "";
      }
      case op::append:
        return append({{at, static_cast<int>(o.amount % 40)}}, o.content);
      case op::append_all: {
        std::vector<run_of> batch;
        for (std::size_t i = 0; i < sequences_.size(); ++i)
          batch.push_back({(i + at) % sequences_.size(), static_cast<int>((o.amount + i) % 5)});
        return append(batch, o.content);
      }
      case op::prefill:
        return prefill(at, static_cast<int>(o.amount % 3 == 0 ? o.amount % 700 : o.amount % 90), o.content);
      case op::commit:
        if (auto const done = cache_.commit(s.id); !done.ok()) return done.message();
        model_.commit(s.model);
        return "";
      case op::commit_all:
        if (auto const done = cache_.commit(); !done.ok()) return done.message();
        for (auto& each : sequences_) model_.commit(each.model);
        return "";
      case op::truncate: {  // one in three to the beginning: into page 0, into the sinks
        auto const most = static_cast<std::uint32_t>(length + 1);
        return truncate(s, static_cast<int>(o.amount % 3 == 0 ? o.amount / 3 % 140 % most : o.amount % most));
      }
      case op::draft:
        return truncate(s, std::max(0, length - static_cast<int>(o.amount % 6)));
      case op::drop: {
        int const position = static_cast<int>(o.amount % static_cast<std::uint32_t>(length + 1));
        if (auto const done = cache_.drop(s.id, position); !done.ok()) return done.message();
        for (std::size_t g = 0; g < s.model.groups.size(); ++g) model_.drop(s.model, g, position);
        return "";
      }
      case op::reserve:
        return reserve(at, static_cast<int>(o.amount % 200));
      default:
        s.model.position_base = static_cast<int>(o.amount);
        return cache_.set_position_base(s.id, s.model.position_base).message();
    }
  }

  /// Pages that a group has left; held against the model after every operation.
  [[nodiscard]] std::int64_t free_pages(std::size_t g) const { return cache_.group_of(layer_of(g)).pages().free(); }
  [[nodiscard]] int layer_of(std::size_t g) const {
    int layer = 0;
    while (static_cast<std::size_t>(model_.geometry().layers[static_cast<std::size_t>(layer)].group) != g) ++layer;
    return layer;
  }
  /// The end of the pages that a sequence must own before `length` tokens are committed.
  [[nodiscard]] int reserved_for(model_group_state g, std::size_t group, int length) const {
    auto const& r = model_.rules(group);
    g.length = length;
    return std::max(g.reserved,
                    std::min(model_.committed(group, g) / r.page_tokens, g.first / r.page_tokens + r.table_capacity));
  }
  [[nodiscard]] bool fits_table(model_sequence const& s, int length) const {
    for (std::size_t g = 0; g < s.groups.size(); ++g)
      if (model_.rules(g).sliding_window == 0 && length - s.groups[g].first > options_.max_tokens) return false;
    return true;
  }
  std::string outcome(char const* what, bool expected, kvant::status const& got) {
    (expected ? done_ : refused_) += 1;
    if (expected == got.ok()) return "";
    return std::string(what) + (expected ? " was refused: " + got.message() : " was not refused");
  }
  [[nodiscard]] std::vector<model_rows> rows(int tokens, std::uint64_t content) const {
    std::vector<model_rows> all;
    for (std::size_t i = 0; i < model_.geometry().layers.size(); ++i)
      all.push_back(make_rows(model_.geometry().layers[i].shape, tokens, content, i));
    return all;
  }
  [[nodiscard]] kvant::layer_rows<half> handed(std::vector<model_rows> const& all, int layer) const {
    auto const& shape = model_.geometry().layers[static_cast<std::size_t>(layer)].shape;
    auto const& r = all[static_cast<std::size_t>(layer)];
    return {{r.keys.data(), std::int64_t{shape.kv_heads} * shape.key_dim, shape.key_dim},
            {r.values.data(), std::int64_t{shape.kv_heads} * shape.value_dim, shape.value_dim}};
  }

  std::string append(std::vector<run_of> const& batch, std::uint64_t content) {
    int tokens = 0;
    bool fits = true;
    for (auto const& run : batch) {
      auto const& m = sequences_[run.sequence].model;
      tokens += run.tokens;
      fits &= fits_table(m, m.groups.front().length + run.tokens);
      for (std::size_t g = 0; g < m.groups.size(); ++g)
        fits &= run.tokens <= model_.rules(g).ring_rows - (m.groups[g].length - m.groups[g].history);
    }
    for (std::size_t g = 0; g < model_.geometry().groups.size(); ++g) {
      std::int64_t needed = 0;
      for (auto const& run : batch) {
        auto const& state = sequences_[run.sequence].model.groups[g];
        needed += reserved_for(state, g, state.length + run.tokens) - state.reserved;
      }
      fits &= needed <= free_pages(g);
    }
    auto const all = rows(tokens, content);
    std::vector<kvant::token_run> runs;
    for (auto const& run : batch) runs.push_back({sequences_[run.sequence].id, run.tokens});
    auto const done = cache_.append(runs, [&](int layer) {
      auto r = handed(all, layer);
      if (tokens == 0) r.keys.data = r.values.data = nullptr;
      return r;
    });
    if (!fits) return outcome("append", fits, done);
    int at = 0;
    for (auto const& run : batch) {
      auto& m = sequences_[run.sequence].model;
      std::vector<model_rows> part;
      for (std::size_t i = 0; i < all.size(); ++i) {
        auto const& shape = model_.geometry().layers[i].shape;
        int const k = shape.kv_heads * shape.key_dim, v = shape.kv_heads * shape.value_dim;
        part.push_back({{all[i].keys.begin() + at * k, all[i].keys.begin() + (at + run.tokens) * k},
                        {all[i].values.begin() + at * v, all[i].values.begin() + (at + run.tokens) * v}});
      }
      at += run.tokens;
      for (std::size_t g = 0; g < m.groups.size(); ++g)
        m.groups[g].reserved = reserved_for(m.groups[g], g, m.groups[g].length + run.tokens);
      model_.append(m, part, run.tokens);
    }
    return outcome("append", fits, done);
  }

  std::string prefill(std::size_t at, int tokens, std::uint64_t content) {
    auto& m = sequences_[at].model;
    bool fits = fits_table(m, m.groups.front().length + tokens);
    for (std::size_t g = 0; g < m.groups.size(); ++g) {
      auto state = m.groups[g];
      auto const& r = model_.rules(g);
      state.length += tokens;
      int const after = model_.committed(g, state);
      int const kept =
          r.sliding_window > 0
              ? std::max(state.first, std::max(0, after - r.sliding_window + 1) / r.page_tokens * r.page_tokens)
              : state.first;
      fits &= after / r.page_tokens - std::max(kept / r.page_tokens, state.reserved) <= free_pages(g);
    }
    auto const all = rows(tokens, content);
    auto const done = cache_.prefill(sequences_[at].id, tokens, [&](int layer) { return handed(all, layer); });
    if (fits) {
      model_.append(m, all, tokens);
      model_.commit(m);
    }
    return outcome("prefill", fits, done);
  }

  std::string fork(std::size_t at) {
    model_sequence child = sequences_[at].model;
    bool fits = sequences_.size() < static_cast<std::size_t>(options_.max_sequences);
    for (std::size_t g = 0; g < child.groups.size(); ++g) {
      auto& state = child.groups[g];
      state.reserved = state.history / model_.rules(g).page_tokens;
      int const reserved = reserved_for(state, g, state.length);
      fits &= reserved - state.reserved <= free_pages(g);
      state.reserved = reserved;
    }
    auto const id = cache_.fork(sequences_[at].id);
    if (fits && id.ok()) sequences_.push_back({*id, child});
    return outcome("fork", fits, id.error());
  }

  std::string reserve(std::size_t at, int tokens) {
    auto& m = sequences_[at].model;
    int const length = m.groups.front().length + tokens;
    bool fits = fits_table(m, length);
    for (std::size_t g = 0; g < m.groups.size(); ++g)
      fits &= reserved_for(m.groups[g], g, length) - m.groups[g].reserved <= free_pages(g);
    auto const done = cache_.reserve(sequences_[at].id, tokens);
    for (std::size_t g = 0; g < m.groups.size() && fits; ++g)
      m.groups[g].reserved = reserved_for(m.groups[g], g, length);
    return outcome("reserve", fits, done);
  }

  std::string truncate(tracked_sequence& s, int length) {
    auto const exact = model_.truncate(s.model, length);
    auto const done = cache_.truncate(s.id, length);
    if (exact.has_value() && done.ok() && *exact != (*done == kvant::truncation::exact))
      return "truncate: exact or not?";
    return outcome("truncate", exact.has_value(), done.error());
  }

  kvant::kv_cache<Plan> cache_;
  cache_model<Plan> model_;
  kvant::cache_options options_;
  std::vector<tracked_sequence> sequences_;
  int refused_ = 0, done_ = 0;
};

}  // namespace support
