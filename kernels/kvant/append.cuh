#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <cuda_runtime_api.h>

#include <kvant/block/overlap.cuh>
#include <kvant/cache/step.hpp>
#include <kvant/cache/views.hpp>
#include <kvant/cache/window_element.hpp>
#include <kvant/tuning/append.cuh>
#include <kvant/warp/ptx.cuh>

namespace kvant::inline v0 {

namespace detail {

template <class T, class W>
struct append_arguments {
  new_rows_view<T> rows;
  window_view<W> window;
  side_records_view<W> side;
  sequences_view sequences;
};

/// Eight elements, one 16-byte access.
template <class T>
struct alignas(16) element_vector {
  T at[8];
};

template <class W, class T>
__device__ __forceinline__ uint4 to_window(uint4 loaded) {
  if constexpr (std::is_same_v<T, W>) {
    return loaded;
  } else {
    auto const from = detail::bit_cast<element_vector<T>>(loaded);
    element_vector<W> to;
#pragma unroll
    for (int k = 0; k < 8; ++k) to.at[k] = window_element<W>(from.at[k]);
    return detail::bit_cast<uint4>(to);
  }
}

/// One vector of the keys, or of the values, of a new row.
template <class T>
struct row_vector {
  T const* from;  // in row 0
  std::int64_t token_stride;
  std::int32_t head, channel;
  bool present;  // a row has one of this number

  __device__ row_vector(token_rows<T> const& rows, std::int32_t kv_heads, std::int32_t dim, std::int32_t number) {
    head = number / (dim / 8), channel = 8 * (number - head * (dim / 8));
    from = rows.row(0, head) + channel, token_stride = rows.token_stride;
    present = number < kv_heads * (dim / 8);
  }
  __device__ uint4 load(std::int32_t row) const { return *reinterpret_cast<uint4 const*>(from + row * token_stride); }
};

/// CTA (i, j, c) copies run c of the vectors of new row j of sequence i, a thread one of its keys and one of its
/// values.
template <class T, class W>
__launch_bounds__(tuning::append::threads) __global__ void append_kernel(append_arguments<T, W> const a) {
  // What needs no memory comes first, while the previous launch still runs.
  auto const i = static_cast<std::int32_t>(blockIdx.x);
  auto const number = static_cast<std::int32_t>(blockIdx.z * tuning::append::threads + threadIdx.x);
  row_vector<T> const k(a.rows.keys, a.rows.kv_heads, a.rows.key_dim, number),
      v(a.rows.values, a.rows.kv_heads, a.rows.value_dim, number);

  wait_for_previous_launch();
  if (!k.present && !v.present) return;
  std::int32_t const first = a.rows.row_offsets[i], end = a.rows.row_offsets[i + 1];
  std::int32_t const length = a.sequences.length[i], slot = a.sequences.slot_of(i);
  std::int32_t const record = a.side.sinks > 0 ? a.sequences.record_of(i) : -1;
  std::int32_t const row = first + static_cast<std::int32_t>(blockIdx.y), position = length - (end - row);
  if (slot < 0 || row >= end || position < 0) return;  // position: lengths that the step's beginning has not moved
  uint4 key{}, value{};
  if (k.present) key = k.load(row);
  if (v.present) value = v.load(row);

  std::int64_t const ring_row = static_cast<std::uint32_t>(position) % static_cast<std::uint32_t>(a.window.rows);
  auto const to = [&](side s, row_vector<T> const& x) {
    auto* const in_row_0 = reinterpret_cast<std::byte*>(a.window.row(slot, s, x.head, 0) + x.channel);
    return reinterpret_cast<uint4*>(in_row_0 + ring_row * a.window.row_stride);
  };
  uint4 *const key_to = to(side::key, k), *const value_to = to(side::value, v);
  // Ask for the lines of the window while the rows are still coming.
  if (k.present) ptx::prefetch(key_to);
  if (v.present) ptx::prefetch(value_to);
  key = to_window<W, T>(key), value = to_window<W, T>(value);
  if (k.present) *key_to = key;
  if (v.present) *value_to = value;
  if (position < a.side.sinks && record >= 0) {
    auto const sink = [&](side s, row_vector<T> const& x) {
      return reinterpret_cast<uint4*>(a.side.sink(record, s, x.head, position) + x.channel);
    };
    if (k.present) *sink(side::key, k) = key;
    if (v.present) *sink(side::value, v) = value;
  }
}

}  // namespace detail

/// Writes the new rows of a batch into the window, and those at positions below `sinks` into the side records too, each
/// rounded once to the window's element type (window_element). begin_step_async has counted them: new row j of the m of
/// sequence i has position length[i] - m + j. Sequences with a negative slot and rows that no sequence has are padding.
/// Reads every new row once, writes it once or twice. The caller sees to it that a sequence's ring has room: no more
/// than window.rows - (length - history) before the step. Stream-ordered; allocates nothing, and the grid depends on
/// capacities alone (sequences.count, max_rows): graphs may capture it, and lengths, slots, records, row offsets and
/// the contents of the rows may change between replays.
///
/// cudaErrorInvalidValue: a null pointer; a base that is not 16-byte aligned or a stride that is no multiple of 16
/// bytes; key_dim or value_dim no multiple of 8, or longer than a row of the window or of the sinks; counts below 0; a
/// run longer than the ring (max_rows above window.rows) or than 65535.
template <element W, element T>
[[nodiscard]] cudaError_t append_async(layer_view<W> layer, new_rows_view<T> rows, cudaStream_t stream) noexcept {
  static_assert(sizeof(T) == 2 && sizeof(W) == 2, "append_async: rows and windows of half or bfloat16");
  auto const aligned = [](auto... bytes) { return ((static_cast<std::uint64_t>(bytes) % 16 == 0) && ...); };
  auto const address = [](void const* p) { return reinterpret_cast<std::uint64_t>(p); };
  auto const& [pages, window, side, table, sequences] = layer;
  bool const has_sinks = side.sinks > 0;
  if (rows.keys.data == nullptr || rows.values.data == nullptr || rows.row_offsets == nullptr ||
      window.base == nullptr || sequences.length == nullptr || (has_sinks && side.sink_rows == nullptr))
    return cudaErrorInvalidValue;
  if (rows.kv_heads < 1 || rows.key_dim < 8 || rows.key_dim % 8 != 0 || rows.value_dim < 8 || rows.value_dim % 8 != 0 ||
      rows.max_rows < 0 || rows.max_rows > window.rows || window.rows < 1 || sequences.count < 0 || 0 > side.sinks)
    return cudaErrorInvalidValue;
  std::int64_t const row_bytes = std::int64_t{2} * std::max(rows.key_dim, rows.value_dim);
  if (window.row_stride < row_bytes || (has_sinks && side.sink_row_stride < row_bytes)) return cudaErrorInvalidValue;
  if (!aligned(address(rows.keys.data), 2 * rows.keys.token_stride, 2 * rows.keys.head_stride,
               address(rows.values.data), 2 * rows.values.token_stride, 2 * rows.values.head_stride,
               address(window.base), window.slot_stride, window.side_stride, window.head_stride, window.row_stride))
    return cudaErrorInvalidValue;
  if (has_sinks && !aligned(address(side.sink_rows), side.record_stride, side.sink_side_stride, side.sink_head_stride,
                            side.sink_row_stride))
    return cudaErrorInvalidValue;
  constexpr int threads = tuning::append::threads;
  constexpr std::int64_t most = 65535;  // of a grid's second and third dimension
  std::int64_t const vectors = std::int64_t{rows.kv_heads} * (std::max(rows.key_dim, rows.value_dim) / 8);
  std::int64_t const runs = (vectors + threads - 1) / threads;
  if (runs > most || rows.max_rows > most) return cudaErrorInvalidValue;
  if (sequences.count == 0 || rows.max_rows == 0) return cudaSuccess;
  dim3 const grid(static_cast<unsigned>(sequences.count), static_cast<unsigned>(rows.max_rows),
                  static_cast<unsigned>(runs));
  return detail::launch_overlapped(detail::append_kernel<T, W>, grid, threads, stream,
                                   detail::append_arguments<T, W>{rows, window, side, sequences});
}

}  // namespace kvant::inline v0
