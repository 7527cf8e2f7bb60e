#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include <kvant/block/architecture.cuh>
#include <kvant/block/find_page.cuh>
#include <kvant/block/overlap.cuh>
#include <kvant/block/quantize_page.cuh>
#include <kvant/cache/step.hpp>
#include <kvant/cache/views.hpp>
#include <kvant/tuning/quantize.cuh>

namespace kvant::inline v0 {

/// Layers of one pair of formats that one launch serves. `layers` is device memory, one view a layer; `first` is what
/// entry 0 holds, on the host. All have the sequences, the table, the sinks and the number of ring rows of `first`;
/// memory and strides are each layer's own.
template <element T>
struct layer_list {
  layer_view<T> first;
  layer_view<T> const* layers = nullptr;  // [count]; may be null for one layer
  std::int32_t count = 1;
};

struct commit_options {
  std::int32_t window_tokens = 128;  // W: the newest tokens that stay exact
  std::int32_t kv_heads = 0;
  /// What the grid is sized for: pages that a sequence commits in one step; more are served too.
  std::int32_t max_pages = 1;
  /// Device memory. Set to 1 + sequence where a page id that is to be written is out of range, in builds that define
  /// KVANT_DEBUG_PAGE_IDS. Such pages are not written in any build.
  std::int32_t* bad_page_id = nullptr;
};

namespace detail {

/// Rows `position` and position + 8 of a sequence in its ring.
template <class W>
__device__ __forceinline__ lane_rows ring_rows(window_view<W> const& w, std::int64_t slot, side s, std::int32_t head,
                                               std::int32_t position) {
  auto const rows = static_cast<std::uint32_t>(w.rows);
  std::uint32_t const first = static_cast<std::uint32_t>(position) % rows;
  std::uint32_t const second = first + 8 < rows ? first + 8 : first + 8 - rows;
  std::byte const* const base =
      w.base + slot * w.slot_stride + (s == side::key ? 0 : w.side_stride) + head * w.head_stride;
  return {{base + first * w.row_stride, base + second * w.row_stride}};
}
/// An element of a key of the first page, while the page lies in the ring: position and ring row are the same.
template <class W>
__device__ __forceinline__ W first_page_key(window_view<W> const& w, std::int64_t slot, std::int32_t head, int token,
                                            int channel) {
  return reinterpret_cast<W const*>(w.base + slot * w.slot_stride + head * w.head_stride +
                                    token * w.row_stride)[channel];
}

/// Where the table has the id of a page of a sequence.
__device__ __forceinline__ std::int32_t table_entry(block_table_view const& table, std::int32_t page) {
  return page < table.capacity ? page : page % table.capacity;
}
/// Where a page is written; null where it must not be.
template <class T>
__device__ __forceinline__ std::byte* unit_of(layer_view<T> const& layer, std::int32_t id,
                                              [[maybe_unused]] std::int32_t sequence, std::int32_t head,
                                              [[maybe_unused]] std::int32_t* bad_page_id) {
  if (id >= 0 && id < layer.pages.count) return layer.pages.unit(id, head);
#ifdef KVANT_DEBUG_PAGE_IDS
  if (bad_page_id != nullptr && threadIdx.x == 0) *bad_page_id = 1 + sequence;
#endif
  return nullptr;
}

template <class W>
struct commit_work {
  layer_list<W> list;
  std::int32_t window_tokens;
  std::int32_t* bad_page_id;
  std::uint32_t one;

  [[nodiscard]] __device__ __forceinline__ layer_view<W> const& this_layer() const {
    return blockIdx.z == 0 ? list.first : list.layers[blockIdx.z];
  }
  /// CTA (head, i, layer) takes jobs i, i + gridDim.y, ...: the keys (even numbers) and values of the pages that the
  /// batch commits.
  template <class Quantizer>
  __device__ __forceinline__ void run(Quantizer const& quantizer) const {
    constexpr std::int32_t page_tokens = Quantizer::page_tokens;
    sequences_view const& sequences = list.first.sequences;
    auto const head = static_cast<std::int32_t>(blockIdx.x);
    __shared__ std::int32_t totals[Quantizer::warps];  // pages of the batch, as each warp counted them
    quantizer.run(
        [&](unit_job& job, job_source& source, std::int32_t number, int lane, int token) {
          auto const index = static_cast<std::int32_t>(blockIdx.y + static_cast<unsigned>(number) * gridDim.y);
          if (number > 0 && index / 2 >= totals[quantizer.warp]) return false;
          page_place const place = find_page(index / 2, sequences.count, lane, [&](std::int32_t i) {
            std::int32_t const history = sequences.history[i], length = sequences.length[i],
                               slot = sequences.slot_of(i);
            std::int32_t const after = history_after_commit(history, length, window_tokens, page_tokens);
            return slot < 0 ? 0 : (after - history) / page_tokens;
          });
          if (place.sequence < 0) return false;
          if (number == 0 && lane == 0) totals[quantizer.warp] = place.total;
          std::int32_t const history = sequences.history[place.sequence];
          layer_view<W> const& layer = this_layer();
          job.which = index % 2 == 0 ? side::key : side::value;
          job.sequence = place.sequence, job.page = history / page_tokens + place.within, job.fresh = page_tokens;
          source.id = layer.table.ids + place.sequence * layer.table.row_stride + table_entry(layer.table, job.page);
          source.rows = ring_rows(layer.window, sequences.slot_of(place.sequence), job.which, head,
                                  job.page * page_tokens + token);
          if constexpr (Quantizer::balanced) {
            job.factors = layer.side.factor(sequences.record_of(place.sequence), head);
            job.without_factors = history == 0;
          }
          return true;
        },
        [&](std::int32_t id, std::int32_t sequence) {
          return unit_of(this_layer(), id, sequence, ptx::fresh_block_x(), bad_page_id);
        },
        [&](std::int32_t sequence, int token, int channel) {
          return first_page_key(this_layer().window, sequences.slot_of(sequence), head, token, channel);
        });
  }
};

/// CTAs that shall fit an SM. Code for sm_120 needs a few registers more than four of them leave each other.
inline constexpr int quantize_ctas_per_sm = architecture == 120 ? 3 : tuning::quantize::ctas_per_sm;

template <class Quantizer, class Work>
__launch_bounds__(Quantizer::threads, quantize_ctas_per_sm) __global__
    void quantize_kernel(__grid_constant__ Work const work, std::int32_t sinks) {
  __shared__ typename Quantizer::storage storage;
  wait_for_previous_launch();
  work.run(Quantizer{storage, sinks, work.one, static_cast<int>(threadIdx.x / 32), static_cast<int>(threadIdx.x % 32)});
}

/// CTAs (heads, jobs, layers) for this many pages a head at most, no more than run at once; an odd number of jobs, so
/// that a CTA takes keys and values in turn.
inline dim3 quantize_grid(std::int64_t pages, std::int32_t heads, std::int32_t layers) {
  std::int64_t const fit = std::max<std::int64_t>(1, tuning::quantize::most_ctas / (std::int64_t{heads} * layers));
  std::int64_t const jobs = std::max<std::int64_t>(1, 2 * pages);
  return dim3(static_cast<unsigned>(heads), static_cast<unsigned>(jobs <= fit ? jobs : (fit - 1) / 2 * 2 + 1),
              static_cast<unsigned>(layers));
}

/// What commit and prefill ask of a layer before they launch.
template <class Quantizer, class Key, int Dim, class W>
[[nodiscard]] bool can_quantize_into(layer_view<W> const& layer, std::int32_t kv_heads) noexcept {
  auto const aligned = [](auto... bytes) { return ((static_cast<std::uint64_t>(bytes) % 16 == 0) && ...); };
  auto const address = [](void const* p) { return reinterpret_cast<std::uint64_t>(p); };
  auto const& [pages, window, side, table, sequences] = layer;
  constexpr std::int64_t row_bytes = std::int64_t{sizeof(W)} * Dim;
  if (kv_heads < 1 || sequences.count < 0 || sequences.length == nullptr || sequences.history == nullptr ||
      pages.base == nullptr || pages.count < 1 || table.ids == nullptr || table.capacity < 1 ||
      window.base == nullptr || window.rows < Quantizer::page_tokens || window.row_stride < row_bytes ||
      0 > side.sinks || side.sinks >= Quantizer::page_tokens || (Key::is_balanced && side.factors == nullptr))
    return false;
  if (kv_heads > 1 && pages.head_stride < Quantizer::layout.unit_bytes()) return false;
  if (Key::is_balanced && !aligned(address(side.factors), side.record_stride, side.factor_head_stride)) return false;
  return aligned(address(pages.base), pages.page_stride, pages.head_stride, address(window.base), window.slot_stride,
                 window.side_stride, window.head_stride, window.row_stride);
}

}  // namespace detail

/// Quantizes what leaves the windows into pages, for all layers of the list: of each sequence the whole pages between
/// its history and history_after_commit(history, length, W, page tokens), in the bytes that page_codec defines (device
/// codes may differ by one at a cell's edge: 0.8 % of them at 4 bits, 0.2 % at 3, which costs 0.15 % of D at most).
/// History itself is moved by end_step_async, once all layers have been committed. Balance factors are made at a
/// sequence's first commit and written to its side record. Sequences with a negative slot are padding. Reads each row
/// once (a sequence's first page more often while its factors are made), writes each page once. Stream-ordered;
/// allocates nothing, waits for nothing, and the grid depends on capacities alone: graphs may capture it, and lengths,
/// histories, tables, slots and records may change between replays. The same bytes from run to run, however the tokens
/// came.
///
/// cudaErrorInvalidValue: a null pointer; a base or stride that is not 16-byte aligned; kv_heads, max_pages or count
/// below 1; W below 0; sinks that fill a page; a ring shorter than a page.
template <kv_format Key, kv_format Value, int Dim, element W>
[[nodiscard]] cudaError_t commit_async(layer_list<W> layers, commit_options options, cudaStream_t stream) noexcept {
  static_assert(Dim == 128, "commit_async: head_dim 128");
  static_assert(std::is_same_v<W, half>, "commit_async: window rows of half");
  using quantizer = detail::page_quantizer<Key, Value, Dim, W, W>;
  using work = detail::commit_work<W>;
  if (!detail::can_quantize_into<quantizer, Key, Dim>(layers.first, options.kv_heads) || options.window_tokens < 0 ||
      options.max_pages < 1 || layers.count < 1 || layers.count > 65535 ||
      (layers.count > 1 && layers.layers == nullptr))
    return cudaErrorInvalidValue;
  if (layers.first.sequences.count == 0) return cudaSuccess;
  std::int64_t const pages = std::int64_t{layers.first.sequences.count} * options.max_pages;
  return detail::launch_overlapped(detail::quantize_kernel<quantizer, work>,
                                   detail::quantize_grid(pages, options.kv_heads, layers.count), quantizer::threads,
                                   stream, work{layers, options.window_tokens, options.bad_page_id, 0x3c003c00u},
                                   layers.first.side.sinks);
}

}  // namespace kvant::inline v0
