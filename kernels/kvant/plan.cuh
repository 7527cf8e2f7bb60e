#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include <kvant/block/overlap.cuh>
#include <kvant/cache/views.hpp>
#include <kvant/config.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/split.hpp>

namespace kvant::inline v0 {

/// What a decode plan is made for: capacities, and what all layers of it share.
struct decode_shape {
  std::int32_t max_sequences = 0;
  std::int32_t q_heads = 0, kv_heads = 0;
  std::int32_t max_rows = 1;  // query rows of a sequence
  std::int32_t head_dim = 128;
  std::int32_t multiprocessors = 0;  // of the device; a launch has as many CTAs
  KVANT_HD friend constexpr bool operator==(decode_shape, decode_shape) = default;

  /// Columns of an mma that the queries of a segment take: 4 with the low parts of q beside them, or 8.
  [[nodiscard]] KVANT_HD constexpr std::int32_t columns() const { return max_rows * (q_heads / kv_heads) <= 4 ? 4 : 8; }
  /// Within what the kernels are built for: rows x group ratio at most 8, head_dim 128.
  [[nodiscard]] KVANT_HD constexpr bool valid() const {
    return max_sequences >= 1 && kv_heads >= 1 && q_heads >= kv_heads && q_heads % kv_heads == 0 && max_rows >= 1 &&
           max_rows <= 8 && q_heads / kv_heads <= 8 && max_rows * (q_heads / kv_heads) <= 8 && head_dim == 128 &&
           multiprocessors >= 1 && multiprocessors <= 1024;
  }
};

/// How the CTAs of a decode launch share its work (split.hpp); made on the device once a step for each distinct layer
/// shape. Part i > 0 of a segment whose first team is t leaves its result in slot t + i, for part 0 to wait for. A word
/// that is zero is not there yet; who has read it sets it back.
struct decode_plan {
  /// A sequence's place in the list of all units, and the work of each of its segments.
  struct alignas(16) sequence_work {
    segment_work segment;
    std::int32_t begin = 0;  // in the list of all segments, in units and overheads
  };
  /// What four warps of a CTA need to begin: their team's first span; teams of more warps have it several times.
  struct alignas(16) team_work {
    work_split split;
    std::int32_t team = -1;     // -1: nothing to do
    std::int32_t list_end = 0;  // where the team's part of the list ends; 0: it has one span alone
    std::int32_t empty_sequences = 0;
    decode_span first;
  };
  static_assert(sizeof(sequence_work) == 32 && sizeof(team_work) == 80);

  static constexpr int plan_threads = 256;

  decode_shape shape;
  sequence_work* sequence = nullptr;  // [max_sequences + 1]
  team_work* work = nullptr;          // [multiprocessors, 4]
  float4* partial_out = nullptr;      // [teams, columns * head_dim / 4]
  float2* partial_state = nullptr;    // [teams, columns]: maximum (log2), sum

  /// Bytes of device memory for a plan of this shape; 0 if it is not valid.
  [[nodiscard]] static constexpr std::size_t workspace_bytes(decode_shape shape) {
    return shape.valid() ? offsets(shape).end : 0;
  }
  /// The plan in `workspace`, 16-byte aligned, whose bytes must be zero before the first step.
  [[nodiscard]] static decode_plan in(void* workspace, decode_shape shape) {
    decode_plan p;
    p.shape = shape;
    offsets const at(shape);
    auto* const base = static_cast<std::byte*>(workspace);
    p.sequence = reinterpret_cast<sequence_work*>(base);
    p.work = reinterpret_cast<team_work*>(base + at.work);
    p.partial_state = reinterpret_cast<float2*>(base + at.state);
    p.partial_out = reinterpret_cast<float4*>(base + at.out);
    return p;
  }

 private:
  struct offsets {
    std::size_t work, state, out, end;
    constexpr explicit offsets(decode_shape s) {
      auto const n = [](std::int32_t x) { return static_cast<std::size_t>(x); };
      auto const aligned = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
      std::size_t const teams = n(s.multiprocessors) * (s.columns() == 4 ? 4 : 2);
      work = aligned(sizeof(sequence_work) * (n(s.max_sequences) + 1));
      state = work + aligned(sizeof(team_work) * 4 * n(s.multiprocessors));
      out = state + aligned(sizeof(float2) * n(s.columns()) * teams);
      end = out + aligned(sizeof(float) * n(s.columns()) * n(s.head_dim) * teams);
    }
  };
};

namespace detail {

struct plan_sizes {
  std::int32_t log2_page_tokens, page_tiles, sinks;
};

/// work_split::choose by the lanes of a warp, one candidate each.
__device__ __forceinline__ work_split choose_split(work_split::amount const& all, int lane) {
  std::int32_t cost;
  work_split const mine = work_split::candidate(min(lane, work_split::candidates - 1), all, cost);
  std::int32_t const least = __reduce_min_sync(~0u, cost);
  int const best = __ffs(static_cast<int>(__ballot_sync(~0u, cost == least))) - 1;
  work_split s;
  s.team_warps = __shfl_sync(~0u, mine.team_warps, best), s.granule = __shfl_sync(~0u, mine.granule, best);
  s.share = __shfl_sync(~0u, mine.share, best), s.whole = __shfl_sync(~0u, mine.whole, best);
  return s;
}

/// One CTA: a running sum over the sequences, then the cut. A template, so that two units may include it.
template <class Plan>
__launch_bounds__(Plan::plan_threads) __global__
    void plan_kernel(__grid_constant__ Plan const plan, __grid_constant__ sequences_view const sequences,
                     __grid_constant__ plan_sizes const sizes) {
  using sequence_work = typename Plan::sequence_work;
  constexpr int threads = Plan::plan_threads, warps = threads / 32;
  __shared__ std::int32_t begins[threads];  // first unit of each thread's sequences
  __shared__ segment_work works[threads];   // of each thread's last sequence, often its only one
  __shared__ std::int32_t warp_units[warps], warp_most[warps], warp_empty[warps];
  wait_for_previous_launch(plan, sequences, sizes);
  int const thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  int const n = sequences.count, heads = plan.shape.kv_heads;
  int const each = (n + threads - 1) / threads, from = min(n, thread * each), to = min(n, from + each);
  auto const work_of = [&](int i) {
    int const length = sequences.length[i], history = sequences.history[i], first = sequences.first_of(i);
    segment_work w;
    if (sequences.slot_of(i) >= 0 && length > 0) {
      int const kept = min(sizes.sinks, length), window = max(0, length - max(min(history, length), kept));
      w.exact = (kept + window + exact_tile_rows - 1) / exact_tile_rows;
      w.length = length, w.history = history;
      w.tiles = (max(0, history - first) >> sizes.log2_page_tokens) * sizes.page_tiles;
    }
    return w;
  };
  std::int32_t units = 0, largest = 0, empty = 0;
  segment_work mine;  // the thread's last sequence, often its only one
  for (int i = from; i < to; ++i) {
    mine = work_of(i);
    units += mine.listed() * heads, largest = max(largest, mine.units()), empty |= mine.units() == 0 ? 1 : 0;
  }
  std::int32_t before = units;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    std::int32_t const other = __shfl_up_sync(~0u, before, step);
    if (lane >= step) before += other;
  }
  largest = __reduce_max_sync(~0u, largest);
  empty = __any_sync(~0u, empty);
  if (lane == 31) warp_units[warp] = before, warp_most[warp] = largest, warp_empty[warp] = empty;
  __syncthreads();
  std::int32_t of_warps = lane < warps ? warp_units[lane] : 0;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    std::int32_t const other = __shfl_up_sync(~0u, of_warps, step);
    if (lane >= step) of_warps += other;
  }
  std::int32_t const total = __shfl_sync(~0u, of_warps, 31);
  std::int32_t const earlier = __shfl_sync(~0u, of_warps, max(0, warp - 1));
  largest = __reduce_max_sync(~0u, lane < warps ? warp_most[lane] : 0);
  empty = __any_sync(~0u, lane < warps && warp_empty[lane] != 0);
  std::int32_t begin = before - units + (warp > 0 ? earlier : 0);
  begins[thread] = begin, works[thread] = mine;
  for (int i = from; i < to; ++i) {
    if (each > 1) mine = work_of(i);
    plan.sequence[i] = sequence_work{mine, begin};
    begin += mine.listed() * heads;
  }
  if (thread == 0) plan.sequence[n] = sequence_work{{}, total};
  __syncthreads();

  int const ctas = plan.shape.multiprocessors;
  work_split const split =
      choose_split({n * heads, total, largest, ctas, sizes.page_tiles, plan.shape.columns() == 4 ? 4 : 8}, lane);
  auto const sequence_at = [&](int i) {
    return each == 1 && i < n ? sequence_work{works[i], begins[i]} : plan.sequence[i];
  };
  int const quarters = split.team_warps / 4;
  for (int team = thread; team < split.teams(ctas); team += threads) {
    typename Plan::team_work w;
    w.split = split, w.team = team, w.empty_sequences = empty;
    int sequence, head = 0;
    bool busy;
    if (split.whole > 0) {
      int const segment = work_split::quotient(w.team, split.whole);
      busy = segment < n * heads;
      sequence = work_split::quotient(segment, heads), head = segment - sequence * heads;
    } else {
      std::int32_t const unit = w.team * split.share;
      busy = unit < total;
      int low = 0, high = threads;  // the thread whose sequences hold the unit
      while (high - low > 1) {
        int const middle = (low + high) / 2;
        if (begins[middle] <= unit)
          low = middle;
        else
          high = middle;
      }
      sequence = low * each;
      w.list_end = unit + split.share;
    }
    if (busy) {
      sequence_work s = sequence_at(sequence);
      std::int32_t begin_of_segment = 0;
      if (split.whole == 0) {
        std::int32_t const from = w.team * split.share;
        while (s.begin + s.segment.listed() * heads <= from) s = sequence_at(++sequence);
        head = work_split::quotient(from - s.begin, s.segment.listed());
        begin_of_segment = s.begin + head * s.segment.listed();
        if (from >= begin_of_segment + s.segment.units()) {  // in its overhead: the next one is the first
          if (++head == heads) {
            head = 0;
            do s = sequence_at(++sequence);
            while (sequence < n && s.segment.units() == 0);
          }
          begin_of_segment = s.begin + head * s.segment.listed();
          busy = sequence < n && begin_of_segment < w.list_end;
        }
      }
      busy = busy && s.segment.units() > 0;
      if (busy) w.first = split.span(w.team, sequence, head, begin_of_segment, s.segment);
      busy = busy && w.first.part < w.first.parts;
    }
    if (!busy) w.team = -1;
    for (int i = 0; i < quarters; ++i) plan.work[team * quarters + i] = w;
  }
}

}  // namespace detail

/// Splits the work of `sequences` over the plan's CTAs, for layers of this pair of formats and head size. Reads lengths
/// on the device, so a captured graph may replay it with others. Stream-ordered, one CTA; allocates nothing.
/// cudaErrorInvalidValue: a null pointer, more sequences than the plan has room for, sinks that fill a page, a plan of
/// a shape that is not valid.
template <kv_format Key, kv_format Value, int Dim>
[[nodiscard]] cudaError_t make_decode_plan_async(decode_plan plan, sequences_view sequences, int sinks,
                                                 cudaStream_t stream) noexcept {
  using layout_type = page_layout<Key, Value>;
  constexpr layout_type layout{page_shape{1, Dim, Dim, layout_type::least_page_tokens}};
  constexpr int page_tokens = layout.shape.page_tokens;
  static_assert(std::has_single_bit(static_cast<unsigned>(page_tokens)));
  constexpr int page_tiles = is_exact<Key> && is_exact<Value> ? page_tokens / exact_tile_rows : layout.tiles();
  if (plan.sequence == nullptr || plan.work == nullptr || !plan.shape.valid() || plan.shape.head_dim != Dim ||
      sequences.length == nullptr || sequences.history == nullptr || sequences.count < 0 ||
      sequences.count > plan.shape.max_sequences || sinks < 0 || sinks >= page_tokens)
    return cudaErrorInvalidValue;
  return detail::launch_overlapped(
      detail::plan_kernel<decode_plan>, dim3(1), decode_plan::plan_threads, stream, plan, sequences,
      detail::plan_sizes{std::countr_zero(static_cast<unsigned>(page_tokens)), page_tiles, sinks});
}

}  // namespace kvant::inline v0
