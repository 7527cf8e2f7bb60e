#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <vector>

#include <kvant/cache/kv_cache.hpp>
#include <kvant/half.hpp>

namespace support {

/// Keys and values of one position, the same whenever they are asked for: rows of any run of positions.
template <kvant::element T = kvant::half>
class position_rows {
 public:
  position_rows(kvant::cache_geometry const& geometry, int positions, std::uint64_t content = 1) : geometry_(geometry) {
    for (std::size_t layer = 0; layer < geometry.layers.size(); ++layer) {
      auto const& s = geometry.layers[layer].shape;
      keys_.push_back(fill(positions * s.kv_heads * s.key_dim, s.kv_heads * s.key_dim, content * 100 + 2 * layer));
      values_.push_back(fill(positions * s.kv_heads * s.value_dim, 1 << 30, content * 100 + 2 * layer + 1));
    }
  }
  /// For append and prefill: the rows from `begin` on.
  [[nodiscard]] auto from(int begin) const {
    return [this, begin](int layer) {
      auto const i = static_cast<std::size_t>(layer);
      auto const& s = geometry_.layers[i].shape;
      std::int64_t const k = std::int64_t{s.kv_heads} * s.key_dim, v = std::int64_t{s.kv_heads} * s.value_dim;
      return kvant::layer_rows<T>{{keys_[i].data() + begin * k, k, s.key_dim},
                                  {values_[i].data() + begin * v, v, s.value_dim}};
    };
  }
  std::vector<std::vector<T>>& keys() { return keys_; }

 private:
  static std::vector<T> fill(int count, int biased, std::uint64_t state) {
    std::vector<T> x;
    for (int i = 0; i < count; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      float const noise = static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31f;
      x.push_back(T{noise + (i % biased == 3 ? 5.f : 0.f)});
    }
    return x;
  }
  kvant::cache_geometry geometry_;
  std::vector<std::vector<T>> keys_, values_;  // [layer][position, head, channel]
};

/// Bytes that a failed check does not print.
struct snapshot_bytes {
  std::vector<std::byte> bytes;
  friend bool operator==(snapshot_bytes const&, snapshot_bytes const&) = default;
  friend std::ostream& operator<<(std::ostream& out, snapshot_bytes const& s) {
    return out << s.bytes.size() << " bytes";
  }
};

/// Everything that attention may read of a sequence, of every layer: numbers, pages, factors, sinks, window.
template <class Cache>
snapshot_bytes snapshot(Cache const& cache, kvant::sequence_id id) {
  snapshot_bytes all;
  auto const put = [&](void const* from, std::int64_t bytes) {
    auto const* const b = static_cast<std::byte const*>(from);
    all.bytes.insert(all.bytes.end(), b, b + bytes);
  };
  auto const& geometry = cache.geometry();
  for (std::size_t i = 0; i < geometry.layers.size(); ++i) {
    auto const v = *cache.view(static_cast<int>(i), id);
    auto const& layer = geometry.layers[i];
    auto const& group = geometry.group_of(i);
    auto const& s = v.sequences;
    for (auto const* n : {s.length, s.history, s.first, s.position_base}) put(n, 4);
    int const length = *s.length, history = *s.history;
    for (int h = 0; h < layer.shape.kv_heads; ++h) {
      for (int p = *s.first; p < history; p += group.page_tokens)
        put(v.pages.unit(v.table.page(0, p / group.page_tokens), h), layer.unit_bytes);
      if (layer.is_balanced && history > 0) put(v.side.factor(*s.record, h), 2 * layer.shape.key_dim);
      for (auto const side : {kvant::side::key, kvant::side::value}) {
        std::int64_t const bytes = 2 * (side == kvant::side::key ? layer.shape.key_dim : layer.shape.value_dim);
        for (int p = 0; p < std::min(length, group.sinks); ++p) put(v.side.sink(*s.record, side, h, p), bytes);
        for (int p = history; p < length; ++p) put(v.window.row(*s.slot, side, h, p), bytes);
      }
    }
  }
  return all;
}

}  // namespace support
