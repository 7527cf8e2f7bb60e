#pragma once

#include <cstddef>
#include <cstdint>

#include <kvant/block/queries.cuh>
#include <kvant/cache/views.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/plan.cuh>
#include <kvant/tuning/decode.cuh>
#include <kvant/warp/exact_tile.cuh>
#include <kvant/warp/page_tile.cuh>
#include <kvant/warp/ring.cuh>
#include <kvant/warp/softmax.cuh>

namespace kvant::inline v0::detail {

template <class T, class O>
struct decode_arguments {
  layer_view<T> layer;
  queries_view<T> queries;
  decode_plan plan;
  O* out;              // [rows, q heads, dim]
  float* log_sum_exp;  // [rows, q heads] or null
  std::int32_t kv_heads, ratio;
  float scale;        // softmax scale * log2(e)
  std::uint32_t one;  // half2(1, 1)
};

/// One CTA of the decode kernel: streams its pieces through the warps' rings, keeps one softmax state a warp, merges the
/// warps at the end of a part and the parts of a segment in the last CTA that arrives.
template <class Key, class Value, int Dim, int Columns, class T, class O>
struct decode_block {
  using tuning = tuning::decode<Key, Value, Dim>;
  using layout_type = page_layout<Key, Value>;
  // Numbers, because device code has no address of a constexpr object.
  static constexpr layout_type layout{page_shape{1, Dim, Dim, layout_type::least_page_tokens}};
  static constexpr int page_tokens = layout.shape.page_tokens, tiles = layout.tiles(), tile_bytes = layout.tile_bytes(),
                       header_bytes = layout.header_bytes();
  static constexpr int warps = tuning::warps;
  using page_tiles = page_tile<Key, Value, Dim, Columns>;
  using exact_tiles = exact_tile<Dim, Columns>;
  static constexpr int stage_bytes =
      page_tiles::stage_bytes > exact_tiles::stage_bytes ? page_tiles::stage_bytes : exact_tiles::stage_bytes;
  using ring = bulk_ring<tuning::stages, stage_bytes>;
  using state = softmax_state<Dim, Columns>;
  // Shared memory is nearly all rings, so the warps add their outputs to few slots, in rounds.
  static constexpr int slot_floats = Dim * Columns, slots = 2048 / slot_floats;

  struct storage {
    typename ring::storage rings[warps];
    alignas(16) float slot[slots][slot_floats];
    query_storage<Dim> queries;
    decode_part current;  // in shared memory: registers are for the loop
    float warp_max[warps][Columns], warp_sum[warps][Columns];
    float part_max[Columns], part_sum[Columns];
    int last;
  };

  decode_arguments<T, O> const& a;
  storage& s;
  int const warp, lane;
  std::int32_t cta_begin, cta_end, pieces_per_page;

  // ---- filling the rings ----

  /// Where piece `piece` lies. Pages: the address of the unit, plus 2 (1 + tile) where pieces are tiles. Exact rows: an odd
  /// number, with segment and tile.
  __device__ std::uint64_t locate(std::int32_t piece) const {
    if (piece >= cta_end) return 0;
    int const b = a.plan.sequence_of(piece, a.layer.sequences.count);
    auto const seq = a.plan.sequence[b];
    std::int32_t const per = seq.pages + seq.exact, within = piece - seq.begin, h = within / per,
                       offset = within - h * per;
    if (offset < seq.pages) {
      std::int32_t const first = a.layer.sequences.first_of(b) / page_tokens;
      std::int32_t const page = pieces_per_page == 1 ? offset : offset / tiles, tile = offset - page * tiles;
      std::byte const* const unit = a.layer.pages.unit(a.layer.table.page(b, first + page), h);
      return reinterpret_cast<std::uint64_t>(unit) + (pieces_per_page == 1 ? 0 : 2 * (1 + tile));
    }
    return 1 | static_cast<std::uint64_t>(offset - seq.pages) << 1 |
           static_cast<std::uint64_t>(b * a.kv_heads + h) << 32;
  }

  struct rows_of_tile {
    std::int32_t first, count;  // absolute positions
    bool sink;
  };
  __device__ rows_of_tile exact_rows(int b, std::int32_t tile) const {
    std::int32_t const length = a.layer.sequences.length[b], kept = min(a.layer.side.sinks, length);
    std::int32_t const sink_tiles = (kept + 15) / 16;
    if (tile < sink_tiles) return {16 * tile, min(16, kept - 16 * tile), true};
    std::int32_t const from = max(min(a.layer.sequences.history[b], length), kept) + 16 * (tile - sink_tiles);
    return {from, min(16, length - from), false};
  }

  struct requests {
    std::int32_t next, stages_left = 0;  // piece; stages of it still to ask for
    std::uint64_t where = 0, ahead = 0;  // ahead: lane i knows piece i of the coming 32
    int known = 32;
  };
  /// Asks for one more stage, if the warp has any left.
  __device__ __forceinline__ void request(ring& r, requests& q) const {
    if (q.stages_left == 0) {
      if (q.next >= cta_end) return;
      if (q.known == 32) q.ahead = locate(q.next + warps * lane), q.known = 0;
      q.where = __shfl_sync(~0u, q.ahead, q.known++);
      q.next += warps;
      q.stages_left = q.where & 1 ? 2 : pieces_per_page == 1 ? tiles : 1;
    }
    if (q.where & 1) {
      int const segment = static_cast<int>(q.where >> 32), b = segment / a.kv_heads, h = segment - b * a.kv_heads;
      auto const rows = exact_rows(b, static_cast<std::int32_t>((q.where >> 1) & 0x7fffffff));
      side const which = q.stages_left == 2 ? side::key : side::value;
      if (lane == 0) r.expect(16 * Dim * sizeof(T));
      __syncwarp();
      if (lane < 16) {
        std::int32_t const position = rows.first + min(lane, rows.count - 1);
        T const* const row = rows.sink ? a.layer.side.sink(a.layer.sequences.record_of(b), which, h, position)
                                       : a.layer.window.row(a.layer.sequences.slot_of(b), which, h, position);
        r.begin(lane * exact_tiles::row_bytes, row, Dim * sizeof(T));
      }
    } else if (lane == 0) {
      if (pieces_per_page == 1) {
        int const tile = tiles - q.stages_left;
        int const offset = tile == 0 ? 0 : header_bytes + tile * tile_bytes;
        int const bytes = tile == 0 ? header_bytes + tile_bytes : tile_bytes;
        r.expect(bytes);
        r.begin(0, reinterpret_cast<std::byte const*>(q.where) + offset, bytes);
      } else {
        int const tile = static_cast<int>(q.where & 15) / 2 - 1;
        auto const* const unit = reinterpret_cast<std::byte const*>(q.where & ~std::uint64_t{15});
        r.expect(header_bytes + tile_bytes);
        if (header_bytes > 0) r.begin(0, unit, header_bytes);
        r.begin(header_bytes, unit + header_bytes + tile * tile_bytes, tile_bytes);
      }
    }
    --q.stages_left;
    r.sent();
  }

  // ---- the CTA ----

  __device__ void run() {
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    decode_plan::cta_work const& work = a.plan.work[blockIdx.x];
    cta_begin = work.begin, cta_end = work.end, pieces_per_page = work.head.pieces_per_page;
    if (threadIdx.x == 0 && cta_begin < cta_end) s.current = work.first;
    zero_empty_sequences();
    if (cta_begin >= cta_end) return;
    ring r(s.rings[warp]);
    requests q{cta_begin + warp};
    std::int32_t piece = cta_begin + warp, part_begin = cta_begin;
    while (true) {
      if (threadIdx.x == 0 && part_begin != cta_begin)
        s.current = a.plan.part_at(*a.plan.head, static_cast<std::int32_t>(blockIdx.x), cta_end, part_begin,
                                   a.layer.sequences.count);
      __syncthreads();
      load_queries();
      if (part_begin == cta_begin)
        for (int i = 0; i < tuning::stages; ++i) request(r, q);
      __syncthreads();
      part_begin = s.current.end;
      if (s.current.pages)
        attend_pages(r, q, piece);
      else
        attend_rows(r, q, piece);
      if (part_begin >= cta_end) return;
      __syncthreads();
    }
  }

  __device__ void attend_pages(ring& r, requests& q, std::int32_t& piece) {
    page_tiles page(s.queries, a.scale, a.one, lane);
    state st(page.a, 0.f);
    std::int32_t const end = s.current.end;
    std::int32_t const kind_begin = s.current.begin - s.current.from;
    bool const has_sinks = a.layer.sequences.first_of(s.current.sequence) == 0;
    int const stages_each = pieces_per_page == 1 ? tiles : 1;
    for (; piece < end; piece += warps) {
      std::int32_t const first_tile = (piece - kind_begin) * stages_each;
#pragma unroll 1
      for (int i = 0; i < stages_each; ++i) {
        int const masked =
            has_sinks && first_tile < tiles ? a.layer.side.sinks - (first_tile + i) * page_tiles::tokens : 0;
        page.attend(st, r.wait(), i == 0, masked);
        r.release();
        request(r, q);
      }
    }
    page.finish(st);
    finish_part(st);
  }
  __device__ void attend_rows(ring& r, requests& q, std::int32_t& piece) {
    decode_part const& p = s.current;
    exact_tiles rows_16(s.queries, a.scale, lane);
    state st(rows_16.a, 1.f);
    std::int32_t const rows = a.queries.row_offsets[p.sequence + 1] - a.queries.row_offsets[p.sequence];
    std::int32_t const newest = a.layer.sequences.length[p.sequence] - rows;
    for (; piece < p.end; piece += warps) {
      auto const t = exact_rows(p.sequence, p.from + piece - p.begin);
      rows_16.score(r.wait(), t.first, t.count, newest, a.ratio);
      r.release();
      request(r, q);
      rows_16.accumulate(st, r.wait());
      r.release();
      request(r, q);
    }
    rows_16.finish(st);
    finish_part(st);
  }

  __device__ void load_queries() {
    decode_part const& p = s.current;
    std::int32_t const from = a.queries.row_offsets[p.sequence];
    std::int32_t const rows = a.queries.row_offsets[p.sequence + 1] - from;
    half const* factors = nullptr;
    if constexpr (Key::is_balanced) factors = a.layer.side.factor(a.layer.sequences.record_of(p.sequence), p.head);
    for (int c = warp; c < Columns; c += warps)
      prepare_query<Key, Dim>(s.queries, c,
                              c < rows * a.ratio ? a.queries.row(from + c / a.ratio, p.head * a.ratio + c % a.ratio)
                                                 : static_cast<T const*>(nullptr),
                              factors, lane);
  }

  /// Sequences without tokens have no pieces: zeros and minus infinity.
  __device__ void zero_empty_sequences() const {
    std::int32_t const q_heads = a.queries.q_heads;
    for (int b = static_cast<int>(blockIdx.x); b < a.layer.sequences.count; b += static_cast<int>(gridDim.x)) {
      if (a.plan.sequence[b].pages + a.plan.sequence[b].exact != 0) continue;
      std::int64_t const from = std::int64_t{a.queries.row_offsets[b]} * q_heads;
      std::int64_t const to = std::int64_t{a.queries.row_offsets[b + 1]} * q_heads;
      for (std::int64_t i = from * Dim + threadIdx.x; i < to * Dim; i += blockDim.x) a.out[i] = static_cast<O>(0.f);
      if (a.log_sum_exp != nullptr)
        for (std::int64_t i = from + threadIdx.x; i < to; i += blockDim.x) a.log_sum_exp[i] = -INFINITY;
    }
  }

  // ---- merging ----

  static constexpr int threads = warps * 32, each = (slot_floats + threads - 1) / threads;

  /// Column and row of output element x of a slot.
  static __device__ __forceinline__ void element(int x, int& column, int& row) {
    if constexpr (Columns == 4) {
      int const at = (x >> 1) & 31;
      column = at & 3, row = (x >> 6) * 16 + (at >> 2) + 8 * (x & 1);
    } else {
      int const at = (x >> 2) & 31;
      column = 2 * (at & 3) + (x & 1), row = (x >> 7) * 16 + (at >> 2) + 8 * ((x >> 1) & 1);
    }
  }

  /// part_max and part_sum of a column from `count` states, by one warp; state(i) is (maximum, sum).
  template <class State>
  __device__ __forceinline__ void combine_states(int column, int count, State state) {
    float m = 2 * no_score, l = 0.f;
    for (int i = lane; i < count; i += 32) {
      float2 const v = state(i);
      float const larger = fmaxf(m, v.x);
      l = l * ptx::exp2(m - larger) + v.y * ptx::exp2(v.x - larger), m = larger;
    }
    float all = m;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) all = fmaxf(all, __shfl_xor_sync(~0u, all, step));
    l *= ptx::exp2(m - all);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) l += __shfl_xor_sync(~0u, l, step);
    if (lane == 0) s.part_max[column] = all, s.part_sum[column] = l;
  }

  static_assert(tuning::stages * stage_bytes >= slot_floats * 4 && slots >= 1);
  __device__ float* ring_slot(int w) const { return reinterpret_cast<float*>(s.rings[w].stage); }

  __device__ void finish_part(state& st) {
    decode_part const& p = s.current;
    st.reduce_lanes();
    st.publish(s.warp_max[warp], s.warp_sum[warp], lane);
    __syncthreads();
    static_assert(warps >= Columns && warps <= 32);
    if (warp < Columns)
      combine_states(warp, warps, [&](int i) { return make_float2(s.warp_max[i][warp], s.warp_sum[i][warp]); });
    __syncthreads();
    // In the CTA's last part the rings are empty and lend their memory; before, the warps take turns.
    bool const last = p.end >= cta_end;
    if (last) {
      st.store(ring_slot(warp), s.part_max, false, lane);
      __syncthreads();
    } else {
      for (int round = 0; round < (warps + slots - 1) / slots; ++round) {
        if (warp / slots == round) st.store(s.slot[warp % slots], s.part_max, round > 0, lane);
        __syncthreads();
      }
    }
    float from_pages[each] = {}, from_rows[each] = {};
    for (int e = 0; e < each; ++e) {
      int const x = static_cast<int>(threadIdx.x) + e * threads;
      if (x >= slot_floats) continue;
      float sum = 0.f;
      if (last)
        for (int i = 0; i < warps; ++i) sum += ring_slot(i)[x];
      else
        for (int i = 0; i < slots; ++i) sum += s.slot[i][x];
      if (p.pages)
        from_pages[e] = sum;
      else
        from_rows[e] = sum;
    }
    if (p.count > 1 && !merge_parts(p, from_pages, from_rows)) return;
    write(p, from_pages, from_rows);
  }

  /// Publishes this part. In the CTA that arrives last: the sums of all parts, and true.
  __device__ bool merge_parts(decode_part const& p, float (&from_pages)[each], float (&from_rows)[each]) {
    std::int64_t const base = 2 * std::int64_t{p.segment} + p.first_cta, mine = base + p.index;
    for (int e = 0; e < each; ++e) {
      int const x = static_cast<int>(threadIdx.x) + e * threads;
      if (x < slot_floats)
        __stcg(a.plan.partial_out + mine * Dim * decode_plan::columns + x, p.pages ? from_pages[e] : from_rows[e]);
    }
    if (threadIdx.x < Columns)
      __stcg(a.plan.partial_state + mine * decode_plan::columns + threadIdx.x,
             make_float2(s.part_max[threadIdx.x], s.part_sum[threadIdx.x]));
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      s.last = atomicAdd(a.plan.arrived + p.segment, 1) == p.count - 1;
      if (s.last) a.plan.arrived[p.segment] = 0;
      __threadfence();
    }
    __syncthreads();
    if (!s.last) return false;
    float2 const* const states = a.plan.partial_state + base * decode_plan::columns;
    if (warp < Columns)
      combine_states(warp, p.count, [&](int i) { return __ldcg(states + i * decode_plan::columns + warp); });
    __syncthreads();
    for (int e = 0; e < each; ++e) {
      int const x = static_cast<int>(threadIdx.x) + e * threads;
      if (x >= slot_floats) continue;
      int column, row;
      element(x, column, row);
      float const m = s.part_max[column];
      from_pages[e] = from_rows[e] = 0.f;
      constexpr int ahead = 8;
      for (int i = 0; i < p.count; i += ahead) {
        float v[ahead], w[ahead];
        for (int k = 0; k < ahead; ++k) {
          int const j = min(i + k, p.count - 1);
          v[k] = __ldcg(a.plan.partial_out + (base + j) * Dim * decode_plan::columns + x);
          w[k] = ptx::exp2(__ldcg(states + j * decode_plan::columns + column).x - m);
        }
        for (int k = 0; k < ahead; ++k) {
          if (i + k >= p.count) break;
          if (i + k < p.page_parts)
            from_pages[e] += v[k] * w[k];
          else
            from_rows[e] += v[k] * w[k];
        }
      }
    }
    return true;
  }

  /// Turns what came from pages back, adds what came from exact rows, and writes the rows of the segment.
  __device__ void write(decode_part const& p, float (&from_pages)[each], float (&from_rows)[each]) {
    for (int e = 0; e < each; ++e) {
      int const x = static_cast<int>(threadIdx.x) + e * threads;
      if (x >= slot_floats) continue;
      int column, row;
      element(x, column, row);
      float const inverse = s.part_sum[column] > 0.f ? 1.f / s.part_sum[column] : 0.f;
      s.queries.rotated[column][position_of(row, Dim)] = from_pages[e] * inverse;
      s.queries.plain[column][row] = from_rows[e] * inverse;
    }
    __syncthreads();
    std::int32_t const from = a.queries.row_offsets[p.sequence];
    std::int32_t const rows = a.queries.row_offsets[p.sequence + 1] - from;
    for (int c = warp; c < min(Columns, rows * a.ratio); c += warps) {
      float x[4];
      for (int i = 0; i < 4; ++i) x[i] = s.queries.rotated[c][4 * lane + i];
      rotate_back_128<Value>(x, lane);
      std::int64_t const at = std::int64_t{from + c / a.ratio} * a.queries.q_heads + p.head * a.ratio + c % a.ratio;
      for (int i = 0; i < 4; ++i)
        a.out[at * Dim + 4 * lane + i] = static_cast<O>(x[i] + s.queries.plain[c][4 * lane + i]);
      if (a.log_sum_exp != nullptr && lane == 0)
        a.log_sum_exp[at] =
            s.part_sum[c] > 0.f ? 0.69314718f * (s.part_max[c] + log2f(s.part_sum[c]) - state::headroom) : -INFINITY;
    }
  }
};

}  // namespace kvant::inline v0::detail
