#pragma once

#include <concepts>
#include <cstdint>
#include <memory_resource>
#include <string_view>

#include <kvant/cache/geometry.hpp>
#include <kvant/cache/sequence_group.hpp>
#include <kvant/cache/step.hpp>
#include <kvant/cache/views.hpp>
#include <kvant/result.hpp>
#include <kvant/status.hpp>

namespace kvant::inline v0 {

/// What moves the bytes of a kv_cache: it owns the arenas of every layer, in memory of its own resource, and knows
/// nothing of who uses which page. The host's is host_backend; one over the launchers of kernels/kvant has the same
/// calls, each of them a launch or a copy on its stream.
///
/// All arrays that the views handed to it name (lengths, tables, row offsets) are host memory that may change after the
/// call; rows of keys and values are memory of the back end's kind. A call that fails has written nothing that a
/// sequence holds; the cache then leaves its bookkeeping as it was.
///
///     create(geometry, memory)        allocates every arena; an error where memory does not suffice
///     view(layer)                     pages, window and side records of a layer; table and sequences are empty
///     publish(group, tables, row)     the tables as attention shall see them, once the numbers of `row` (-1: of any)
///                                     have changed: the host's own arrays, or copies on a device
///     append, commit, prefill         as the free function append and page_writer's, for one layer
///     restore(layer, view, page, begin, end)   as page_writer::restore, for the only sequence of the view
///     copy_window(layer, from, to, begin, end) positions [begin, end) of a slot into another
///     copy_sinks(layer, from, to, rows)        the first rows of a side record into another
///     memory()                        bytes allocated; tables are 0 unless it keeps copies of them
///     not_finite()                    values coded as 0 because they were not finite
///     path()                          "cpu", "tensor-core", ...
template <class B, class W>
concept cache_backend = element<W> && std::move_constructible<B> &&
    requires(B backend, B const& same, int layer, layer_view<W> const& view, new_rows_view<W> const& rows,
             std::int32_t n, group_tables const& tables, cache_geometry const& geometry,
             std::pmr::memory_resource* memory) {
  { B::create(geometry, memory) } -> std::same_as<result<B>>;
  { same.view(layer) } -> std::same_as<layer_view<W>>;
  { backend.publish(n, tables, n) } -> std::same_as<group_tables>;
  { backend.append(layer, view, rows) } -> std::same_as<status>;
  { backend.commit(layer, view, n) } -> std::same_as<status>;
  { backend.prefill(layer, view, rows, n) } -> std::same_as<status>;
  { backend.restore(layer, view, n, n, n) } -> std::same_as<status>;
  { backend.copy_window(layer, n, n, n, n) } -> std::same_as<status>;
  { backend.copy_sinks(layer, n, n, n) } -> std::same_as<status>;
  { same.memory() } -> std::same_as<cache_memory>;
  { same.not_finite() } -> std::same_as<std::int64_t>;
  { B::path() } -> std::convertible_to<std::string_view>;
};

}  // namespace kvant::inline v0
