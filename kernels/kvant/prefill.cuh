#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <cuda_runtime_api.h>

#include <kvant/cache/window_element.hpp>
#include <kvant/commit.cuh>

namespace kvant::inline v0 {

struct prefill_options {
  std::int32_t window_tokens = 128;     // W: the newest tokens that stay exact
  std::int32_t* bad_page_id = nullptr;  // as in commit_options
};

namespace detail {

/// What one prefill call knows of a sequence; positions. Its new rows are [start, length).
struct prefill_span {
  std::int32_t history = 0, length = 0, start = 0, end = 0;  // pages take [history, end)

  /// New rows would overwrite ring rows that pages are made of in this call: those rows are copied by a launch of their
  /// own.
  [[nodiscard]] __device__ __forceinline__ bool overwrites(std::int32_t ring) const {
    return start > history && end > history && length - ring > history;
  }
};

template <class Key, class T, class W, int PageTokens>
struct prefill_work {
  static constexpr std::int32_t page_tokens = PageTokens;
  layer_view<W> layer;
  new_rows_view<T> rows;
  std::int32_t window_tokens;
  std::int32_t* bad_page_id;
  std::uint32_t one;

  /// Of a sequence that is padding: nothing.
  [[nodiscard]] __device__ __forceinline__ prefill_span span(std::int32_t i) const {
    prefill_span s;
    std::int32_t const slot = layer.sequences.slot_of(i), from = rows.row_offsets[i], to = rows.row_offsets[i + 1];
    std::int32_t const history = layer.sequences.history[i], length = layer.sequences.length[i];
    if (slot < 0) return s;
    s.history = history, s.length = length, s.start = max(0, length - (to - from));
    s.end = history_after_commit(history, length, window_tokens, page_tokens);
    return s;
  }
  [[nodiscard]] __device__ __forceinline__ T const* fresh_row(side which, std::int32_t sequence, std::int32_t start,
                                                              std::int32_t head, std::int32_t position) const {
    return (which == side::key ? rows.keys : rows.values).row(rows.row_offsets[sequence] + (position - start), head);
  }
  /// An element of a key of the first page.
  [[nodiscard]] __device__ __forceinline__ W first_key(std::int32_t sequence, std::int32_t start, std::int32_t head,
                                                       int token, int channel) const {
    if (token >= start) return window_element<W>(fresh_row(side::key, sequence, start, head, token)[channel]);
    return first_page_key(layer.window, layer.sequences.slot_of(sequence), head, token, channel);
  }

  /// CTA (head, i) takes jobs i, i + gridDim.y, ...: the keys (even numbers) and values of the batch's pages. It copies
  /// what stays exact of sequences gridDim.y - 1 - i, ...
  template <class Quantizer>
  __device__ __forceinline__ void run(Quantizer const& quantizer) const {
    sequences_view const& sequences = layer.sequences;
    auto const step = static_cast<std::int32_t>(gridDim.y);
#pragma unroll 1
    for (auto i = step - 1 - static_cast<std::int32_t>(blockIdx.y); i < sequences.count; i += step) {
      prefill_span const s = span(i);
      if (!s.overwrites(layer.window.rows)) copy_exact(i, static_cast<std::int32_t>(blockIdx.x), s);
    }
    // What a warp knows of the sequence it is in, and where its lanes' rows would lie if the first page began with the
    // first new row: in shared memory, for registers are for rows.
    __shared__ cursor cursors[Quantizer::warps];
    __shared__ std::byte const* first_row[2][Quantizer::threads];
    cursor& c = cursors[quantizer.warp];
    if (quantizer.lane == 0) c.first = c.pages = 0;
    move(c, static_cast<std::int32_t>(blockIdx.y >> 1), quantizer.lane);
    auto const head_of_grid = static_cast<std::int32_t>(blockIdx.x);
    first_row[0][threadIdx.x] =
        reinterpret_cast<std::byte const*>(rows.keys.row(quantizer.first_token(), head_of_grid));
    first_row[1][threadIdx.x] =
        reinterpret_cast<std::byte const*>(rows.values.row(quantizer.first_token(), head_of_grid));
    __syncwarp();
    quantizer.run(
        [&](unit_job& job, job_source& source, std::int32_t number, int lane, int token) {
          auto const index = static_cast<std::int32_t>(blockIdx.y + static_cast<unsigned>(number) * gridDim.y);
          std::int32_t const in_batch = index >> 1;
          if (static_cast<unsigned>(in_batch - c.first) >= static_cast<unsigned>(c.pages) &&
              (number == 0 || !move_on(c, in_batch, lane)))
            return false;
          std::int32_t const page = in_batch + c.to_page, first = page * Quantizer::page_tokens;
          bool const values = index & 1;
          job.which = values ? side::value : side::key;
          job.sequence = c.sequence, job.page = page, job.fresh = c.start - first;
          source.id = c.ids + table_entry(layer.table, page);
          if (job.fresh <= 0) {
            std::int64_t const stride = 2 * (values ? rows.values.token_stride : rows.keys.token_stride);
            std::byte const* const row =
                first_row[values][threadIdx.x] + static_cast<std::uint32_t>(c.row - job.fresh) * stride;
            source.rows.at[0] = row, source.rows.at[1] = row + 8 * stride;
          } else {
            std::int32_t const head = ptx::fresh_block_x();
            std::int32_t const position = first + token;
            source.rows = ring_rows(layer.window, sequences.slot_of(c.sequence), job.which, head, position);
#pragma unroll
            for (int r = 0; r < 2; ++r)
              if (token + 8 * r >= job.fresh)
                source.rows.at[r] = fresh_row(job.which, c.sequence, c.start, head, position + 8 * r);
          }
          if constexpr (Quantizer::balanced)
            if (!values) job.factors = layer.side.factor(sequences.record_of(c.sequence), ptx::fresh_block_x());
          return true;
        },
        [&](std::int32_t id, std::int32_t sequence) {
          return unit_of(layer, id, sequence, ptx::fresh_block_x(), bad_page_id);
        },
        factors_stored{});  // by factors_kernel
  }

  /// Where a warp is in the batch.
  struct alignas(16) cursor {
    std::int32_t first, pages, to_page;  // its first page, as the batch's pages are numbered; from there to its own
    std::int32_t start, row;             // first new position, and its row
    std::int32_t sequence;
    std::int32_t const* ids;  // its row of the table
  };
  /// To the sequence that has page `index` of the batch; false where none has.
  __device__ __forceinline__ bool move(cursor& c, std::int32_t index, int lane) const {
    page_place const place = find_page(index, layer.sequences.count, lane, [&](std::int32_t i) {
      prefill_span const s = span(i);
      return (s.end - s.history) / page_tokens;
    });
    if (place.sequence < 0) return false;
    prefill_span const s = span(place.sequence);
    __syncwarp();
    if (lane == 0)
      c = {index - place.within,
           (s.end - s.history) / page_tokens,
           s.history / page_tokens - (index - place.within),
           s.start,
           rows.row_offsets[place.sequence],
           place.sequence,
           layer.table.ids + place.sequence * layer.table.row_stride};
    __syncwarp();
    return true;
  }

  /// The same, apart from the code that is run for every job.
  __device__ __noinline__ bool move_on(cursor& c, std::int32_t index, int lane) const { return move(c, index, lane); }

  /// New rows that stay exact, into the ring and the side record: 16 threads a row.
  __device__ __forceinline__ void copy_exact(std::int32_t sequence, std::int32_t head, prefill_span const& s) const {
    std::int32_t const at = static_cast<std::int32_t>(threadIdx.x) / 16,
                       step = static_cast<std::int32_t>(blockDim.x) / 16;
    int const channel = static_cast<int>(threadIdx.x) % 16 * 8;
    std::int64_t const slot = layer.sequences.slot_of(sequence);
    std::int32_t const kept = min(layer.side.sinks, s.length), record = layer.sequences.record_of(sequence);
    auto const load = [&](side which, std::int32_t position) {
      return eight_elements<W, T>(
          __ldcs(reinterpret_cast<uint4 const*>(fresh_row(which, sequence, s.start, head, position) + channel)));
    };
#pragma unroll 1
    for (int k = 0; k < 2; ++k) {
      side const which = k == 0 ? side::key : side::value;
#pragma unroll 4
      for (std::int32_t p = max(max(s.start, s.end), s.length - layer.window.rows) + at; p < s.length; p += step) {
        uint4 const v = load(which, p);
        auto const ring_row = static_cast<std::uint32_t>(p) % static_cast<std::uint32_t>(layer.window.rows);
        *reinterpret_cast<uint4*>(layer.window.row(slot, which, head, 0) + channel +
                                  ring_row * (layer.window.row_stride / 2)) = v;
      }
      if (record >= 0)
#pragma unroll 1
        for (std::int32_t p = s.start + at; p < kept; p += step)
          *reinterpret_cast<uint4*>(layer.side.sink(record, which, head, p) + channel) = load(which, p);
    }
  }
};

/// Balance factors of the sequences whose first page this call makes: a CTA a sequence and head, four threads a
/// channel.
template <class Key, int Dim, int PageTokens, class Work>
__launch_bounds__(4 * Dim) __global__ void factors_kernel(__grid_constant__ Work const work) {
  __shared__ factor_storage<Dim, 4> storage;
  wait_for_previous_launch();
  auto const i = static_cast<std::int32_t>(blockIdx.y), head = static_cast<std::int32_t>(blockIdx.x);
  prefill_span const s = work.span(i);
  if (s.history > 0 || s.end == 0) return;
  int const channel = static_cast<int>(threadIdx.x) % Dim, group = static_cast<int>(threadIdx.x) / Dim;
  auto const factor_with = [&](auto element) {
    return make_factor<Key, Dim, PageTokens, 4>(storage, group, channel, work.layer.side.sinks, element);
  };
  half const factor = s.start == 0
                          ? factor_with([&, row = work.fresh_row(side::key, i, 0, head, 0) + channel](int token) {
                              return window_element<half>(row[token * work.rows.keys.token_stride]);
                            })
                          : factor_with([&](int token) { return work.first_key(i, s.start, head, token, channel); });
  if (group == 0) work.layer.side.factor(work.layer.sequences.record_of(i), head)[channel] = factor;
}

/// What stays exact of the sequences whose pages had to be made first: a CTA a sequence and head.
template <class Work>
__launch_bounds__(256, 4) __global__ void exact_rows_kernel(__grid_constant__ Work const work) {
  wait_for_previous_launch();
  auto const i = static_cast<std::int32_t>(blockIdx.y);
  prefill_span const s = work.span(i);
  if (s.overwrites(work.layer.window.rows)) work.copy_exact(i, static_cast<std::int32_t>(blockIdx.x), s);
}

}  // namespace detail

/// Appends the new rows of a batch and commits, for one layer: pages are quantized row by row straight from the input
/// where they lie in it, from the ring where they began before; what stays exact goes to window and sinks.
/// begin_step_async has counted the rows (row j of the m of sequence i has position length[i] - m + j), end_step_async
/// moves the histories after the last layer. Pages, window, sinks and factors hold the bytes that append_async and
/// commit_async leave, in whatever runs the tokens come. A run may be longer than the ring. Rows are rounded once to
/// the window's element type. One launch; a small one before it where keys are balanced; a small one after it where a
/// run may be longer than what the ring has room for. Reads each new row once, writes each page once. Stream-ordered;
/// allocates nothing, and the grid depends on capacities alone (sequences.count, max_rows, kv_heads, window.rows):
/// graphs may capture it, and lengths, histories, tables, slots, row offsets and rows may change.
///
/// cudaErrorInvalidValue: what commit_async refuses; null rows; rows that are not 16-byte aligned; dims other than Dim.
template <kv_format Key, kv_format Value, int Dim, element W, element T>
[[nodiscard]] cudaError_t prefill_async(layer_view<W> layer, new_rows_view<T> rows, prefill_options options,
                                        cudaStream_t stream) noexcept {
  static_assert(Dim == 128, "prefill_async: head_dim 128");
  static_assert(std::is_same_v<W, half> && sizeof(T) == 2, "prefill_async: window rows of half, new rows of 2 bytes");
  using quantizer = detail::page_quantizer<Key, Value, Dim, W, T>;
  using work = detail::prefill_work<Key, T, W, quantizer::page_tokens>;
  auto const aligned = [](auto... bytes) { return ((static_cast<std::uint64_t>(bytes) % 16 == 0) && ...); };
  auto const address = [](void const* p) { return reinterpret_cast<std::uint64_t>(p); };
  auto const& side = layer.side;
  if (!detail::can_quantize_into<quantizer, Key, Dim>(layer, rows.kv_heads) || options.window_tokens < 0 ||
      rows.keys.data == nullptr || rows.values.data == nullptr || rows.row_offsets == nullptr || rows.key_dim != Dim ||
      rows.value_dim != Dim || rows.max_rows < 0 || (side.sinks > 0 && side.sink_rows == nullptr) ||
      !aligned(address(rows.keys.data), 2 * rows.keys.token_stride, 2 * rows.keys.head_stride,
               address(rows.values.data), 2 * rows.values.token_stride, 2 * rows.values.head_stride))
    return cudaErrorInvalidValue;
  if (side.sinks > 0 && !aligned(address(side.sink_rows), side.record_stride, side.sink_side_stride,
                                 side.sink_head_stride, side.sink_row_stride))
    return cudaErrorInvalidValue;
  if (layer.window.rows < options.window_tokens + quantizer::page_tokens - 1) return cudaErrorInvalidValue;
  if (layer.sequences.count > 65535) return cudaErrorInvalidValue;
  if (layer.sequences.count == 0) return cudaSuccess;
  work const w{layer, rows, options.window_tokens, options.bad_page_id, 0x3c003c00u};
  dim3 const heads(static_cast<unsigned>(rows.kv_heads), static_cast<unsigned>(layer.sequences.count));
  if constexpr (Key::is_balanced) {
    auto const kernel = detail::factors_kernel<Key, Dim, quantizer::page_tokens, work>;
    if (cudaError_t const e = detail::launch_overlapped(kernel, heads, 4 * Dim, stream, w); e != cudaSuccess) return e;
  }
  std::int64_t const most_pages =
      layer.sequences.count * ((std::int64_t{rows.max_rows} + layer.window.rows) / quantizer::page_tokens);
  if (cudaError_t const e = detail::launch_overlapped(detail::quantize_kernel<quantizer, work>,
                                                      detail::quantize_grid(most_pages, rows.kv_heads, 1),
                                                      quantizer::threads, stream, w, layer.side.sinks);
      e != cudaSuccess)
    return e;
  bool const may_overwrite =
      std::int64_t{rows.max_rows} + options.window_tokens + quantizer::page_tokens - 1 > layer.window.rows;
  return may_overwrite ? detail::launch_overlapped(detail::exact_rows_kernel<work>, heads, 256, stream, w)
                       : cudaSuccess;
}

}  // namespace kvant::inline v0
