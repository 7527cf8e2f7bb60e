#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <new>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <kvant/cache/append.hpp>
#include <kvant/cache/backend.hpp>
#include <kvant/cache/geometry.hpp>
#include <kvant/cache/page_writer.hpp>
#include <kvant/plan/plan.hpp>
#include <kvant/result.hpp>

namespace kvant::inline v0 {

namespace detail {

/// Bytes of a memory resource; uninitialized.
class memory_block {
 public:
  memory_block(std::int64_t bytes, std::pmr::memory_resource* memory)
      : memory_(memory),
        bytes_(static_cast<std::size_t>(bytes)),
        data_(bytes == 0 ? nullptr : static_cast<std::byte*>(memory->allocate(bytes_, alignment))) {}
  memory_block(memory_block&& other) noexcept
      : memory_(other.memory_), bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  memory_block& operator=(memory_block&& other) noexcept {
    std::swap(memory_, other.memory_), std::swap(bytes_, other.bytes_), std::swap(data_, other.data_);
    return *this;
  }
  ~memory_block() {
    if (data_ != nullptr) memory_->deallocate(data_, bytes_, alignment);
  }
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  static constexpr std::size_t alignment = 64;
  std::pmr::memory_resource* memory_;
  std::size_t bytes_;
  std::byte* data_;
};

template <class List>
struct formats_of;
template <class... Ls>
struct formats_of<type_list<Ls...>> {
  using type = typename distinct<type_list<>, type_list<typename Ls::key, typename Ls::value>...>::type;
};

template <element W, class List>
struct writers_of;
template <element W, class... Pairs>
struct writers_of<W, type_list<Pairs...>> {
  template <class Pair>
  struct of;
  template <class Key, class Value>
  struct of<type_list<Key, Value>> {
    using type = page_writer<Key, Value, W>;
  };
  using type = std::tuple<std::vector<typename of<Pairs>::type>...>;
};

}  // namespace detail

/// A cache's bytes in host memory, moved by loops over page_codec on the calling thread. Scratch (one page of each format
/// and shape) is neither in memory() nor from the resource.
template <class Plan, element W = half>
class host_backend {
 public:
  /// "out of memory" where the resource or the heap does not suffice.
  [[nodiscard]] static result<host_backend> create(cache_geometry const& geometry, std::pmr::memory_resource* memory) {
    host_backend made;
    for (std::size_t i = 0; i < geometry.layers.size(); ++i) {
      status const s = visit_layer(Plan{}, static_cast<int>(i), status{}, [&]<class Layer>(std::type_identity<Layer>) {
        return made.template add_layer<Layer>(geometry.layers[i], geometry.group_of(i), geometry.max_sequences, memory);
      });
      if (!s.ok()) return s;
    }
    return made;
  }

  [[nodiscard]] layer_view<W> view(int layer) const { return layers_[static_cast<std::size_t>(layer)].view; }
  [[nodiscard]] group_tables publish(std::int32_t, group_tables const& tables, std::int32_t) { return tables; }

  template <element T>
  [[nodiscard]] status append(int, layer_view<W> const& view, new_rows_view<T> const& rows) {
    return kvant::append(view, rows);
  }
  [[nodiscard]] status commit(int layer, layer_view<W> const& view, std::int32_t window_tokens) {
    return with_writer(layer, [&](auto& writer) { return writer.commit(view, window_tokens, &not_finite_); });
  }
  template <element T>
  [[nodiscard]] status prefill(int layer, layer_view<W> const& view, new_rows_view<T> const& rows,
                               std::int32_t window_tokens) {
    return with_writer(layer, [&](auto& writer) { return writer.prefill(view, rows, window_tokens, &not_finite_); });
  }
  [[nodiscard]] status restore(int layer, layer_view<W> const& view, std::int32_t page, std::int32_t begin,
                               std::int32_t end) {
    return with_writer(layer, [&](auto& writer) { return writer.restore(view, 0, page, begin, end); });
  }
  [[nodiscard]] status copy_window(int layer, std::int32_t from, std::int32_t to, std::int32_t begin,
                                   std::int32_t end) {
    window_view<W> const& window = layers_[static_cast<std::size_t>(layer)].view.window;
    // The rows of a head are one run of the ring, or two.
    std::int32_t const first = begin % window.rows, count = end - begin, at_end = std::min(count, window.rows - first);
    for_each_head(layer, [&](side s, int head) {
      copy_rows(window.ring_row(from, s, head, first), window.ring_row(to, s, head, first), at_end, window.row_stride);
      copy_rows(window.ring_row(from, s, head, 0), window.ring_row(to, s, head, 0), count - at_end, window.row_stride);
    });
    return {};
  }
  [[nodiscard]] status copy_sinks(int layer, std::int32_t from, std::int32_t to, std::int32_t rows) {
    side_records_view<W> const& records = layers_[static_cast<std::size_t>(layer)].view.side;
    for_each_head(layer, [&](side s, int head) {
      if (rows > 0)
        copy_rows(records.sink(from, s, head, 0), records.sink(to, s, head, 0), rows, records.sink_row_stride);
    });
    return {};
  }

  [[nodiscard]] cache_memory memory() const { return memory_; }
  [[nodiscard]] std::int64_t not_finite() const { return not_finite_; }
  [[nodiscard]] static constexpr std::string_view path() { return "cpu"; }

 private:
  using formats = typename detail::formats_of<typename Plan::distinct_layers>::type;
  using writers = typename detail::writers_of<W, formats>::type;
  struct layer_memory {
    layer_view<W> view;
    page_shape shape;
    std::size_t writer;  // among those of its formats
    detail::memory_block pages, windows, records;
  };

  host_backend() = default;

  template <class Layer>
  [[nodiscard]] status add_layer(layer_geometry const& g, group_geometry const& group, std::int64_t sequences,
                                 std::pmr::memory_resource* memory) {
    auto& same = writers_for<Layer>();
    std::size_t writer = 0;
    while (writer < same.size() && !(same[writer].shape() == g.shape)) ++writer;
    if (writer == same.size()) {
      same.emplace_back();
      if (status s = same.back().prepare(g.shape); !s.ok()) return s;
    }
    std::int64_t const heads = g.shape.kv_heads, page_bytes = heads * g.unit_bytes,
                       record_bytes = g.sink_bytes(group) + g.factor_bytes();
    layers_.push_back({{},
                       g.shape,
                       writer,
                       {group.pages * page_bytes, memory},
                       {sequences * g.slot_bytes(group), memory},
                       {sequences * record_bytes, memory}});
    auto& [view, shape, index, pages, windows, records] = layers_.back();
    view.pages = {pages.data(), page_bytes, g.unit_bytes, group.pages};
    std::int64_t const window_head = group.ring_rows * g.row_bytes, sink_head = group.sinks * g.row_bytes;
    view.window = {windows.data(), g.slot_bytes(group), heads * window_head, window_head, g.row_bytes, group.ring_rows};
    view.side = {records.data(),
                 g.is_balanced ? records.data() + g.sink_bytes(group) : nullptr,
                 record_bytes,
                 heads * sink_head,
                 sink_head,
                 g.row_bytes,
                 2LL * g.shape.key_dim,
                 group.sinks};
    memory_ += arena_memory(g, group, sequences);
    return {};
  }

  template <class Layer>
  auto& writers_for() {
    return std::get<std::vector<page_writer<typename Layer::key, typename Layer::value, W>>>(writers_);
  }
  template <class Fn>
  [[nodiscard]] status with_writer(int layer, Fn&& fn) {
    return visit_layer(Plan{}, layer, status{}, [&]<class Layer>(std::type_identity<Layer>) {
      return fn(writers_for<Layer>()[layers_[static_cast<std::size_t>(layer)].writer]);
    });
  }
  template <class Fn>
  void for_each_head(int layer, Fn&& fn) const {
    for (side const s : {side::key, side::value})
      for (int h = 0; h < layers_[static_cast<std::size_t>(layer)].shape.kv_heads; ++h) fn(s, h);
  }
  static void copy_rows(W const* from, W* to, std::int64_t rows, std::int64_t row_bytes) {
    if (rows > 0) std::memcpy(to, from, static_cast<std::size_t>(rows * row_bytes));
  }

  std::vector<layer_memory> layers_;
  writers writers_;
  cache_memory memory_;
  std::int64_t not_finite_ = 0;
};

}  // namespace kvant::inline v0
