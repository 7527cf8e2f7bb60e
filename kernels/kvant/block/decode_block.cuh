#pragma once

#include <cstddef>
#include <cstdint>

#include <kvant/block/overlap.cuh>
#include <kvant/block/queries.cuh>
#include <kvant/cache/views.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/plan.cuh>
#include <kvant/tuning/decode.cuh>
#include <kvant/warp/exact_tile.cuh>
#include <kvant/warp/page_stream.cuh>
#include <kvant/warp/page_tile.cuh>
#include <kvant/warp/softmax.cuh>

namespace kvant::inline v0::detail {

template <class T, class O>
struct decode_arguments {
  layer_view<T> layer;
  queries_view<T> queries;
  decode_plan plan;
  O* out;              // [rows, q heads, dim]
  float* log_sum_exp;  // [rows, q heads] or null
  std::int32_t ratio;
  float scale;        // softmax scale * log2(e)
  std::uint32_t one;  // half2(1, 1)
};

/// One CTA of the decode kernel. Its warps work in teams (split.hpp); a team goes through its spans: each warp takes
/// its share of the span's exact rows, then of its pages, into one softmax state; the states of the team are merged,
/// and the parts of a segment in the team that arrives last.
template <class Key, class Value, int Dim, int Columns, class T, class O>
struct decode_block {
  using stream = page_stream<Key, Value, Dim, Columns, T>;
  using page_tiles = typename stream::tile_type;
  using exact_tiles = exact_tile<T, Dim, Columns, page_tiles::has_offset>;
  using state = softmax_state<Dim, Columns>;
  static constexpr int slot_floats = Dim * Columns, teams = Columns == 4 ? 4 : 2;

  struct team_storage {
    query_storage<Key, Dim, Columns> queries;
    decode_span span, next;
    float2 total[Columns];
    int last;
  };
  struct storage {
    typename stream::stages_storage stages[cta_warps];
    typename stream::queue_storage queues[cta_warps];
    alignas(16) float slot[cta_warps][slot_floats];
    float2 states[cta_warps][Columns];
    team_storage team[teams];
    int team_warps[cta_warps];
  };

  decode_arguments<T, O> const& a;
  storage& s;
  int const warp, lane;

  // Of the warp's team; in shared memory, because registers are for the loop over tiles.
  [[nodiscard]] __device__ __forceinline__ int team_warps() const { return s.team_warps[warp]; }
  [[nodiscard]] __device__ __forceinline__ int place() const { return warp & (team_warps() - 1); }
  [[nodiscard]] __device__ __forceinline__ int first_warp() const { return warp & -team_warps(); }
  [[nodiscard]] __device__ __forceinline__ int thread() const { return 32 * place() + lane; }
  [[nodiscard]] __device__ __forceinline__ team_storage& team() const {
    return s.team[first_warp() / (cta_warps / teams)];
  }
  __device__ __forceinline__ void sync_team() const { ptx::barrier(1 + first_warp() / 4, 32 * team_warps()); }

  __device__ void run() {
    stream pages(a.layer, a.plan, s.stages[warp], s.queues[warp], lane);
    wait_for_previous_launch();
    if (pages.work().empty_sequences != 0) zero_empty_sequences(a);
    if (pages.work().team < 0) return;
    if (lane == 0) s.team_warps[warp] = pages.work().split.team_warps;
    __syncwarp();
    query_lane<T> query = load_query_of(pages.work().first);
    if (thread() == 0) team().span = pages.work().first;
    prefetch_exact(pages.work().first);
    pages.begin(team_warps(), place());
    while (true) {
      if (place() < Columns) store_query(team().queries, place(), query, lane);
      sync_team();
      {
        state st;
        attend_exact(st);
        page_tiles tile(team().queries, a.scale, a.one, lane);
        pages.attend(tile, st, team().span, team_warps(), place());
        tile.finish(st);
        st.store(s.states[warp], s.slot[warp], lane);
      }
      // What comes next is looked up while the warps meet.
      decode_span next = team().span;
      bool const more = pages.next_span(next);
      query = more ? load_query_of(next) : query_lane<T>{};
      if (more) prefetch_exact(next);
      if (thread() == 0) team().next = next;
      sync_team();
      finish_span();
      if (!more) return;
      sync_team();
      if (thread() == 0) team().span = team().next;
    }
  }

  __device__ __forceinline__ query_lane<T> load_query_of(decode_span const& span) const {
    std::int32_t const from = a.queries.first_row(span.sequence);
    std::int32_t const rows = a.queries.first_row(span.sequence + 1) - from, row = place() / a.ratio;
    if (place() >= Columns || row >= rows) return {};
    half const* factors = nullptr;
    if constexpr (Key::is_balanced)
      factors = a.layer.side.factor(a.layer.sequences.record_of(span.sequence), span.head);
    return load_query(a.queries.row(from + row, span.head * a.ratio + place() % a.ratio), factors, lane);
  }

  /// The exact rows of a segment: sinks, then window.
  struct exact_rows {
    side_records_view<T> const& side_records;
    window_view<T> const& window;
    std::int32_t kept, from, total, ring_from;  // sinks; first position in the window; rows; window row of row 0
    std::byte const *sinks, *ring;

    __device__ __forceinline__ exact_rows(layer_view<T> const& layer, std::int32_t b, std::int32_t h)
        : side_records(layer.side), window(layer.window) {
      auto const& seq = layer.sequences;
      std::int32_t const length = seq.length[b];
      kept = min(side_records.sinks, length), from = max(min(seq.history[b], length), kept);
      total = kept + length - from, ring_from = from % window.rows - kept;
      sinks = reinterpret_cast<std::byte const*>(side_records.sink(seq.record_of(b), side::key, h, 0));
      ring = reinterpret_cast<std::byte const*>(window.ring_row(seq.slot_of(b), side::key, h, 0));
    }
    [[nodiscard]] __device__ __forceinline__ std::byte const* row(side which, std::int32_t i) const {
      bool const sink = i < kept;
      std::int32_t const in_ring = ring_from + i;
      std::int32_t const index = sink ? i : in_ring < window.rows ? in_ring : in_ring - window.rows;
      std::int64_t const to_side = which == side::key ? 0 : sink ? side_records.sink_side_stride : window.side_stride;
      return (sink ? sinks : ring) + index * (sink ? side_records.sink_row_stride : window.row_stride) + to_side;
    }
    [[nodiscard]] __device__ __forceinline__ std::int32_t position(std::int32_t i) const {
      return i < kept ? i : from + i - kept;
    }
  };
  /// The last warps begin, for the first ones have the odd pages.
  [[nodiscard]] __device__ __forceinline__ std::int32_t first_exact_tile(decode_span const& span) const {
    return span.exact_begin + team_warps() - 1 - place();
  }

  /// Brings this warp's first exact rows into the L2: its loads will stand at the head of its work.
  __device__ __forceinline__ void prefetch_exact(decode_span const& span) const {
    std::int32_t const tile = first_exact_tile(span);
    if (tile >= span.exact_end) return;
    exact_rows const rows(a.layer, span.sequence, span.head);
    std::int32_t const i = min(exact_tile_rows * tile + (lane & 15), rows.total - 1);
    std::byte const* const at = rows.row(lane < 16 ? side::key : side::value, i);
#pragma unroll
    for (int line = 0; line < Dim * static_cast<int>(sizeof(T)); line += 128) ptx::prefetch(at + line);
  }

  __device__ __forceinline__ void attend_exact(state& st) const {
    std::int32_t const end = team().span.exact_end;
    std::int32_t tile = first_exact_tile(team().span);
    if (tile >= end) return;
    int const stride = team_warps(), b = team().span.sequence;
    std::int32_t const rows_of_query = a.queries.first_row(b + 1) - a.queries.first_row(b);
    std::int32_t const newest = a.layer.sequences.length[b] - rows_of_query;  // what query row 0 sees last
    exact_rows const rows(a.layer, b, team().span.head);
    exact_tiles exact(team().queries, a.scale, lane);
    for (; tile < end; tile += stride) {
      std::int32_t const first = exact_tile_rows * tile;
      exact.attend(
          st, min(exact_tile_rows, rows.total - first), [&](side which, int i) { return rows.row(which, first + i); },
          [&](int i, int column) {
            return rows_of_query == 1 || rows.position(first + i) <= newest + column / a.ratio;
          });
    }
    exact.template join_pages<Value>(st, page_tiles::out_unit);
  }

  /// Sequences without tokens have no units: zeros and minus infinity.
  static __device__ __noinline__ void zero_empty_sequences(decode_arguments<T, O> const& a) {
    std::int32_t const q_heads = a.queries.q_heads;
    for (int b = static_cast<int>(blockIdx.x); b < a.layer.sequences.count; b += static_cast<int>(gridDim.x)) {
      if (a.plan.sequence[b].segment.units() != 0) continue;
      std::int64_t const from = std::int64_t{a.queries.first_row(b)} * q_heads;
      std::int64_t const to = std::int64_t{a.queries.first_row(b + 1)} * q_heads;
      for (std::int64_t i = from * Dim + threadIdx.x; i < to * Dim; i += blockDim.x) a.out[i] = static_cast<O>(0.f);
      if (a.log_sum_exp != nullptr)
        for (std::int64_t i = from + threadIdx.x; i < to; i += blockDim.x) a.log_sum_exp[i] = -INFINITY;
    }
  }

  // ---- merging ----

  /// Joins n partial values of one element by their states; load(i) is (-shift, sum, value). Leaves the joined state.
  template <class Load>
  static __device__ __forceinline__ float join(int n, Load load, float2& total) {
    constexpr int ahead = 8;
    float m = 2 * no_score, l = 0.f, v = 0.f;
#pragma unroll 1
    for (int i = 0; i < n; i += ahead) {
      float3 part[ahead];
#pragma unroll
      for (int k = 0; k < ahead; ++k) part[k] = load(min(i + k, n - 1));
      float larger = m;
#pragma unroll
      for (int k = 0; k < ahead; ++k) larger = fmaxf(larger, part[k].x);
      float const by = ptx::exp2(m - larger);
      l *= by, v *= by, m = larger;
#pragma unroll
      for (int k = 0; k < ahead; ++k) {
        float const weight = i + k < n ? ptx::exp2(part[k].x - m) : 0.f;
        l = fmaf(weight, part[k].y, l), v = fmaf(weight, part[k].z, v);
      }
    }
    total = make_float2(m, l);
    return v;
  }

  /// Joins the warps of the team; if the segment has other parts, publishes this one, and goes on in the team that
  /// comes last; writes the segment's rows.
  __device__ void finish_span() {
    decode_span const& span = team().span;
    bool const alone = span.parts == 1;
    auto const partial_of = [&](int part) { return std::int64_t{2} * (span.first_team + part) + (part == 0 ? 1 : 0); };
    float* const out = a.plan.partial_out;
    float2* const states = a.plan.partial_state;
    for (int x = thread(); x < slot_floats; x += 32 * team_warps()) {
      int column, row;
      state::element(x, column, row);
      float2 total;
      float const v = join(
          team_warps(),
          [&](int i) {
            float2 const of = s.states[first_warp() + i][column];
            return make_float3(of.x, of.y, s.slot[first_warp() + i][x]);
          },
          total);
      if (alone) {
        put(column, row, v, total);
      } else {
        std::int64_t const mine = partial_of(span.part);
        __stcg(out + mine * slot_floats + x, v);
        if (row == 0) __stcg(states + mine * Columns + column, total);
      }
    }
    if (!alone) {
      sync_team();
      if (thread() == 0) {
        std::int32_t* const arrived = a.plan.arrived + std::int64_t{span.sequence} * a.plan.shape.kv_heads + span.head;
        team().last = ptx::arrive(arrived) == span.parts - 1;
        if (team().last) *arrived = 0;
      }
      sync_team();
      if (!team().last) return;
      for (int x = thread(); x < slot_floats; x += 32 * team_warps()) {
        int column, row;
        state::element(x, column, row);
        float2 total;
        float const v = join(
            span.parts,
            [&](int i) {
              std::int64_t const p = partial_of(i);
              float2 const of = __ldcg(states + p * Columns + column);
              return make_float3(of.x, of.y, __ldcg(out + p * slot_floats + x));
            },
            total);
        put(column, row, v, total);
      }
    }
    sync_team();
    write_rows();
  }

  /// The finished value of an output row, where the queries were.
  __device__ __forceinline__ void put(int column, int row, float v, float2 total) const {
    float const inverse = total.y > 0.f ? page_tiles::out_unit / total.y : 0.f;
    team().queries.out[column][page_tiles::position(row)] = v * inverse;
    if (row == 0) team().total[column] = total;
  }

  /// Turns the output of each column back and writes it.
  __device__ __forceinline__ void write_rows() const {
    decode_span const& span = team().span;
    std::int32_t const from = a.queries.first_row(span.sequence);
    std::int32_t const rows = a.queries.first_row(span.sequence + 1) - from, row = place() / a.ratio;
    if (place() >= Columns || row >= rows) return;
    float4 const v = *reinterpret_cast<float4 const*>(&team().queries.out[place()][4 * lane]);
    float x[4] = {v.x, v.y, v.z, v.w};
    rotate_back_128<rotation_of<Value>>(x, lane);
    std::int64_t const at = std::int64_t{from + row} * a.queries.q_heads + span.head * a.ratio + place() % a.ratio;
    struct alignas(4 * sizeof(O)) four {
      O x[4];
    };
    reinterpret_cast<four*>(a.out + at * Dim)[lane] =
        four{static_cast<O>(x[0]), static_cast<O>(x[1]), static_cast<O>(x[2]), static_cast<O>(x[3])};
    if (a.log_sum_exp != nullptr && lane == 0) {
      float2 const total = team().total[place()];
      a.log_sum_exp[at] = total.y > 0.f ? 0.69314718f * (total.x + log2f(total.y)) : -INFINITY;
    }
  }
};

}  // namespace kvant::inline v0::detail
