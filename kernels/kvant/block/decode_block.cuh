#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

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
  O* out;                       // [rows, q heads, dim]
  float* log_sum_exp;           // [rows, q heads] or null
  std::int32_t* bad_page_id;    // decode_output
  std::int32_t ratio;           // q heads of a kv head
  std::uint32_t inverse_ratio;  // 2^16 / ratio + 1
  float scale;                  // softmax scale * log2(e)
  std::uint32_t one;            // half2(1, 1)
};

/// One CTA of the decode kernel. Its warps work in teams (split.hpp); a team goes through its spans: each warp takes
/// its share of the span's exact rows, then of its pages, into one softmax state; the states of the team are merged,
/// and the parts of a segment in the team that arrives last.
template <class Key, class Value, int Dim, int Columns, class T, class O, class Copies>
struct decode_block {
  using stream = page_stream<Key, Value, Dim, Columns, T, Copies>;
  using page_tiles = typename stream::tile_type;
  // Registers that the rest leaves, as ptxas has them; tests/cuda/kernels.cu says where they are too few.
  static constexpr bool int8_keys = query_storage<Key, Dim, Columns>::bytes;
  static constexpr int tight = std::is_same_v<T, half> ? page_tiles::has_offset && !(Key::is_centered && int8_keys)
                               : Copies::across_spans  ? page_tiles::has_offset
                               : page_tiles::has_offset && !Key::is_centered ? 2
                                                                             : 1;
  using exact_tiles = exact_tile<T, Dim, Columns, tight>;
  using state = softmax_state<Dim, Columns>;
  static constexpr int slot_floats = Dim * Columns, teams = Columns == 4 ? 4 : 2;

  struct team_storage {
    query_storage<Key, Dim, Columns> queries;
    decode_span span, next;
    float2 total[Columns];  // of what is joined: maximum and sum
    float kept[Columns];
  };
  // What a warp's tiles arrive in, and its state for the others.
  struct apart {
    typename stream::stages_storage stages;
    alignas(16) float slot[slot_floats];
  };
  union in_turn {
    typename stream::stages_storage stages;
    alignas(16) float slot[slot_floats];
  };
  struct storage {
    std::conditional_t<Copies::across_spans, apart, in_turn> memory[cta_warps];
    typename stream::queue_storage queues[cta_warps];
    alignas(16) float2 states[cta_warps][Columns];
    decode_plan::team_work work[teams];
    team_storage team[teams];

    [[nodiscard]] __device__ __forceinline__ float (&slot(int of_warp))[slot_floats] { return memory[of_warp].slot; }
  };

  decode_arguments<T, O> const& a;
  storage& s;
  int warp;
  int const lane;

  // Of the warp's team; in shared memory, because registers are for the loop over tiles.
  [[nodiscard]] __device__ __forceinline__ decode_plan::team_work const& work() const {
    return s.work[warp / (cta_warps / teams)];
  }
  [[nodiscard]] __device__ __forceinline__ int team_warps() const { return work().split.team_warps; }
  [[nodiscard]] __device__ __forceinline__ int place() const { return warp & (team_warps() - 1); }
  [[nodiscard]] __device__ __forceinline__ int first_warp() const { return warp & -team_warps(); }
  [[nodiscard]] __device__ __forceinline__ int thread() const { return 32 * place() + lane; }
  [[nodiscard]] __device__ __forceinline__ team_storage& team() const {
    return s.team[first_warp() / (cta_warps / teams)];
  }
  __device__ __forceinline__ void sync_team() const { ptx::barrier(1 + first_warp() / 4, 32 * team_warps()); }

  __device__ void run() {
    stream pages(a.layer, a.plan, work(), a.bad_page_id, s.memory[warp].stages, s.queues[warp], lane);
    wait_for_previous_launch(a);
    // The last CTA has the first teams: a segment's first part waits for the others.
    unsigned const block = gridDim.x - 1 - blockIdx.x;
    constexpr int vectors = sizeof(decode_plan::team_work) / sizeof(uint4);
    if (threadIdx.x < teams * vectors)
      reinterpret_cast<uint4*>(s.work)[threadIdx.x] = reinterpret_cast<uint4 const*>(
          a.plan.work + 4 * block + 4 / teams * (threadIdx.x / vectors))[threadIdx.x % vectors];
    __syncthreads();
    if (work().empty_sequences != 0) zero_empty_sequences(a);
    if (work().team < 0) return;
    // Behind a ring's worth of copies stands a queue of microseconds at the memory, for data and instructions alike: what
    // comes before the first page is asked for before its copies, and exact rows are gone through with one on its way.
    query_lane<T> query = load_query_of(work().first);
    if (thread() == 0) team().span = work().first;
    pages.look_up_first(team_warps(), place());
    prefetch_exact(work().first);
    pages.request_first(work().first.exact_begin < work().first.exact_end ? stream::early : stream::ahead);
    pages.refill(work().first, team_warps(), place());
    while (true) {
      if (place() < Columns) store_query(team().queries, place(), query, lane);
      sync_team();
      {
        state st;
        attend_exact(st);
        warp = ptx::fresh_thread_x() / 32;  // where no register was to spare for it
        if constexpr (stream::early < stream::ahead) pages.request_first(stream::ahead);
        page_tiles tile(team().queries, a.scale, a.one, lane);
        pages.attend(tile, st, team().span, team_warps(), place());
        tile.finish(st);
        st.store(s.states[warp], s.slot(warp), lane);
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
      pages.refill(team().next, team_warps(), place());
    }
  }

  /// Column c is head c % ratio of the segment's in row c / ratio.
  [[nodiscard]] __device__ __forceinline__ std::int32_t row_of(int column) const {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(column) * a.inverse_ratio >> 16);
  }
  __device__ __forceinline__ query_lane<T> load_query_of(decode_span const& span) const {
    std::int32_t const from = a.queries.first_row(span.sequence);
    std::int32_t const rows = a.queries.first_row(span.sequence + 1) - from, row = row_of(place());
    if (place() >= Columns || row >= rows) return {};
    half const* factors = nullptr;
    if constexpr (Key::is_balanced)
      factors = a.layer.side.factor(a.layer.sequences.record_of(span.sequence), span.head);
    return load_query(a.queries.row(from + row, (span.head - row) * a.ratio + place()), factors, lane);
  }

  /// The exact rows of a segment: sinks, then window.
  struct exact_rows {
    side_records_view<T> const& side_records;
    window_view<T> const& window;
    decode_span const& span;
    std::int32_t kept, from, ring_from;  // sinks; first position in the window; window row of row 0
    std::byte const *sinks, *ring;

    __device__ __forceinline__ exact_rows(layer_view<T> const& layer, decode_span const& of)
        : side_records(layer.side), window(layer.window), span(of) {
      auto const& seq = layer.sequences;
      std::int32_t const length = span.length, b = span.sequence, h = span.head;
      kept = min(side_records.sinks, length), from = max(min(span.history, length), kept);
      ring_from = from % window.rows - kept;
      sinks = reinterpret_cast<std::byte const*>(side_records.sink(seq.record_of(b), side::key, h, 0));
      ring = reinterpret_cast<std::byte const*>(window.ring_row(seq.slot_of(b), side::key, h, 0));
    }
    [[nodiscard]] __device__ __forceinline__ std::int32_t total() const { return kept + span.length - from; }
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
    exact_rows const rows(a.layer, span);
    std::int32_t const i = min(exact_tile_rows * tile + (lane & 15), rows.total() - 1);
    std::byte const* const at = rows.row(lane < 16 ? side::key : side::value, i);
#pragma unroll
    for (int line = 0; line < Dim * static_cast<int>(sizeof(T)); line += 128) ptx::prefetch(at + line);
  }

  __device__ __forceinline__ void attend_exact(state& st) const {
    std::int32_t tile = first_exact_tile(team().span);
    if (tile >= team().span.exact_end) return;
    int const b = team().span.sequence;
    // What query row 0 sees last.
    std::int32_t const newest = team().span.length - (a.queries.first_row(b + 1) - a.queries.first_row(b));
    exact_rows const rows(a.layer, team().span);
    exact_tiles exact(team().queries, a.scale, lane);
    for (; tile < team().span.exact_end; tile += team_warps()) {
      std::int32_t const first = exact_tile_rows * tile;
      exact.attend(
          st, min(exact_tile_rows, rows.total() - first), [&](side which, int i) { return rows.row(which, first + i); },
          [&](int i, int column) { return rows.position(first + i) <= newest + row_of(column); });
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

  // A thread has four neighbours of a slot, which are of two columns. Larger teams than the smallest have several such
  // groups of threads: they take every groups()-th part.
  static constexpr int quads = slot_floats / 4, quads_warps = quads / 32;
  static_assert(quads_warps == cta_warps / teams, "decode_block: the threads of the smallest team");
  [[nodiscard]] __device__ __forceinline__ int quad() const { return thread() % quads; }
  [[nodiscard]] __device__ __forceinline__ int group() const { return place() / quads_warps; }
  [[nodiscard]] __device__ __forceinline__ int groups() const { return team_warps() / quads_warps; }

  /// The weight of the lane's partial state (-shift, sum of probabilities) among those of the warp and `total`, which
  /// becomes their sum; kept: the weight of what it was before.
  static __device__ __forceinline__ float weigh(float2 of, float2& total, float& kept) {
    float const m = fmaxf(ptx::warp_largest(of.x), total.x), weight = ptx::exp2(of.x - m);
    kept = ptx::exp2(total.x - m);
    float sum = weight * of.y;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    total = make_float2(m, fmaf(kept, total.y, sum));
    return weight;
  }
  static __device__ __forceinline__ float2 no_state() { return make_float2(2 * no_score, 0.f); }

  /// sum += weights of the thread's two columns * its four values of a part
  static __device__ __forceinline__ void add(float2 weight, float4 v, float (&sum)[4]) {
    float const of[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[j] = fmaf(state::quad_next(j) == 0 ? weight.x : weight.y, of[j], sum[j]);
  }

  /// Joins the warps of the team; a part of a segment that is not the first leaves the result for the first one, which
  /// joins them and writes the segment's rows.
  __device__ void finish_span() {
    decode_span const& span = team().span;
    int const column = state::quad_column(quad());
    if (place() < Columns) {
      bool const is_warp = lane < team_warps();
      float2& of = s.states[first_warp() + (is_warp ? lane : 0)][place()];
      float2 total = no_state();
      float kept;
      float const weight = weigh(is_warp ? of : total, total, kept);
      __syncwarp();
      if (is_warp) of.x = weight;
      if (lane == 0) team().total[place()] = total;
    }
    sync_team();
    float sum[4] = {};
    if (group() == 0)
#pragma unroll 4
      for (int i = 0; i < team_warps(); ++i) {
        auto const* const states = s.states[first_warp() + i];
        add(make_float2(states[column].x, states[column + 1].x),
            reinterpret_cast<float4 const*>(s.slot(first_warp() + i))[quad()], sum);
      }
    if (span.part > 0) {
      std::int32_t const slot = span.first_team + span.part;
      if (group() == 0) leave(a.plan.partial_out + slot * quads + quad(), make_float4(sum[0], sum[1], sum[2], sum[3]));
      if (thread() < Columns) leave(a.plan.partial_state + slot * Columns + thread(), team().total[thread()]);
      return;
    }
    if (span.parts > 1) collect(span, sum);
    if (group() == 0) {
      float const inverse[2] = {inverse_of(team().total[column].y), inverse_of(team().total[column + 1].y)};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        int of_column, row;
        state::element(4 * quad() + j, of_column, row);
        // Where the queries were.
        team().queries.out[of_column][page_tiles::position(row)] = sum[j] * inverse[state::quad_next(j)];
      }
    }
    sync_team();
    write_rows();
  }

  static __device__ __forceinline__ float inverse_of(float probabilities) {
    return probabilities > 0.f ? page_tiles::out_unit * ptx::rcp(probabilities) : 0.f;
  }

  // What is left in memory for another team is told from zeros, so a zero is left as its negative.
  static __device__ __forceinline__ float not_zero(float x) { return x == 0.f ? -0.f : x; }
  static __device__ __forceinline__ bool is_there(float x) { return __float_as_uint(x) != 0; }
  static __device__ __forceinline__ void leave(float4* to, float4 v) {
    ptx::store_relaxed(to, make_float4(not_zero(v.x), not_zero(v.y), not_zero(v.z), not_zero(v.w)));
  }
  static __device__ __forceinline__ void leave(float2* to, float2 v) {
    ptx::store_relaxed(to, make_float2(not_zero(v.x), not_zero(v.y)));
  }
  static __device__ __forceinline__ bool is_there(float4 v) {
    return is_there(v.x) && is_there(v.y) && is_there(v.z) && is_there(v.w);
  }

  /// Adds the parts 1, 2, ... of the span's segment to the team's own sum. Their teams belong to CTAs that were
  /// launched before this one (run()) or to this one, and wait for nobody before they leave them.
  __device__ __forceinline__ void collect(decode_span const& span, float (&sum)[4]) const {
    constexpr int ahead = Columns == 4 ? 4 : 2;
    auto* const weights = reinterpret_cast<float2*>(s.slot(first_warp()));  // [parts, two columns]
    int const at_once = min(32, ahead * groups()), columns = state::quad_column(quad()) / 2;
#pragma unroll 1
    for (int from = 1; from < span.parts; from += at_once) {
      sync_team();  // the slots, or the weights, have been read
      int const n = min(at_once, span.parts - from);
      std::int32_t const first = span.first_team + from;
      float4* const parts = a.plan.partial_out + (first + group()) * quads + quad();
      float4 v[ahead] = {};
#pragma unroll
      for (int k = 0; k < ahead; ++k)
        if (group() + k * groups() < n) ptx::load_relaxed(v[k], parts + k * groups() * quads);
      if (place() < Columns) {
        float2 of{}, total = team().total[place()];
        float kept;
        float2* const left = a.plan.partial_state + (first + lane) * Columns + place();
        while (lane < n && !(is_there(of.x) && is_there(of.y))) ptx::load_relaxed(of, left);
        __syncwarp();
        if (lane < n)
          *left = float2{};
        else
          of = no_state();
        float const weight = weigh(of, total, kept);
        reinterpret_cast<float*>(weights)[lane * Columns + place()] = weight;
        if (lane == 0) team().kept[place()] = kept, team().total[place()] = total;
      }
      sync_team();
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] *= team().kept[2 * columns + state::quad_next(j)];
#pragma unroll
      for (int k = 0; k < ahead; ++k) {
        int const i = group() + k * groups();
        if (i >= n) continue;
        float4* const left = parts + k * groups() * quads;
        while (!is_there(v[k])) ptx::load_relaxed(v[k], left);
        *left = float4{};  // for the next launch
        add(weights[i * (Columns / 2) + columns], v[k], sum);
      }
    }
    if (groups() == 1) return;
    sync_team();  // the weights have been read
    auto const shared = [&](int of) { return reinterpret_cast<float4*>(s.slot(first_warp() + of)) + quad(); };
    if (group() > 0) *shared(group()) = make_float4(sum[0], sum[1], sum[2], sum[3]);
    sync_team();
    for (int i = 1; group() == 0 && i < groups(); ++i) add(make_float2(1.f, 1.f), *shared(i), sum);
  }

  /// Turns the output of each column back and writes it.
  __device__ __forceinline__ void write_rows() const {
    decode_span const& span = team().span;
    std::int32_t const from = a.queries.first_row(span.sequence);
    std::int32_t const rows = a.queries.first_row(span.sequence + 1) - from, row = row_of(place());
    if (place() >= Columns || row >= rows) return;
    float4 const v = *reinterpret_cast<float4 const*>(&team().queries.out[place()][4 * lane]);
    float x[4] = {v.x, v.y, v.z, v.w};
    rotate_back_128<rotation_of<Value>>(x, lane);
    std::int64_t const at = std::int64_t{from + row} * a.queries.q_heads + (span.head - row) * a.ratio + place();
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
