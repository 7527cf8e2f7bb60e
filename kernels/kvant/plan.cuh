#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include <kvant/cache/views.hpp>
#include <kvant/config.hpp>
#include <kvant/layout/page_layout.hpp>

namespace kvant::inline v0 {

/// What a CTA does of one segment and kind.
struct decode_part {
  std::int32_t sequence, head, segment;
  std::int32_t pages;       // 1: pages; 0: exact rows
  std::int32_t from;        // first piece within the kind
  std::int32_t begin, end;  // in the plan's numbers
  std::int32_t index, count, page_parts, first_cta;
};

/// How the CTAs of a decode launch share its work; made on the device once a step for each distinct layer shape.
///
/// The work of a sequence and kv head (a segment) is its pages and then its exact rows in tiles of 16: pieces of about
/// equal bytes, or tiles of pages where there is little work. Pieces are numbered through all segments, sequences first;
/// CTA c takes pieces [c * share, (c + 1) * share), or, where ctas_per_segment is not 0 (all sequences equal), part
/// c % ctas_per_segment of segment c / ctas_per_segment. What a CTA does of one segment and kind is a part; part i of
/// segment s is partial result 2 s + (first CTA of s) + i.
struct decode_plan {
  struct header {
    std::int32_t pieces, share, ctas_per_segment;
    std::int32_t pieces_per_page;  // 1, or the tiles of a page
  };
  struct sequence_pieces {
    std::int32_t begin, pages, exact;  // first piece; pieces of each of its segments
  };
  struct cta_work {
    std::int32_t begin, end;  // pieces
    header head;
    decode_part first;
  };
  header* head = nullptr;
  sequence_pieces* sequence = nullptr;  // [max_sequences + 1]
  cta_work* work = nullptr;             // [ctas]
  float* partial_out = nullptr;         // [partials, dim, columns]
  float2* partial_state = nullptr;      // [partials, columns]: maximum (log2), sum
  std::int32_t* arrived = nullptr;      // [segments], zeros; the last part of a segment sets it back
  std::int32_t max_sequences = 0, kv_heads = 0, ctas = 0, dim = 0;

  static constexpr int columns = 8;
  [[nodiscard]] KVANT_HD constexpr std::int64_t partials() const {
    return 2 * std::int64_t{max_sequences} * kv_heads + ctas;
  }

  /// Bytes of device memory for a plan of this capacity; 16-byte aligned.
  [[nodiscard]] static constexpr std::size_t workspace_bytes(int max_sequences, int kv_heads, int dim, int ctas) {
    decode_plan p;
    p.max_sequences = max_sequences, p.kv_heads = kv_heads, p.ctas = ctas, p.dim = dim;
    return p.offset_of_arrived() +
           aligned(sizeof(std::int32_t) * static_cast<std::size_t>(max_sequences) * static_cast<std::size_t>(kv_heads));
  }
  /// The plan in `workspace`, whose bytes must be zero before the first step.
  [[nodiscard]] static decode_plan in(void* workspace, int max_sequences, int kv_heads, int dim, int ctas) {
    decode_plan p;
    p.max_sequences = max_sequences, p.kv_heads = kv_heads, p.ctas = ctas, p.dim = dim;
    auto* const base = static_cast<std::byte*>(workspace);
    p.head = reinterpret_cast<header*>(base);
    p.sequence = reinterpret_cast<sequence_pieces*>(base + aligned(sizeof(header)));
    p.work = reinterpret_cast<cta_work*>(base + p.offset_of_work());
    p.partial_state = reinterpret_cast<float2*>(base + p.offset_of_state());
    p.partial_out = reinterpret_cast<float*>(base + p.offset_of_out());
    p.arrived = reinterpret_cast<std::int32_t*>(base + p.offset_of_arrived());
    return p;
  }

  // ---- on the device: which piece is whose ----

  [[nodiscard]] static KVANT_HD std::int32_t share_of(std::int32_t pieces_of_segment, std::int32_t parts) {
    return (pieces_of_segment + parts - 1) / parts;
  }
  /// The sequence, of `count`, that holds a piece.
  [[nodiscard]] KVANT_HD std::int32_t sequence_of(std::int32_t piece, std::int32_t count) const {
    std::int32_t low = 0, high = count;
    while (high - low > 1) {
      std::int32_t const middle = (low + high) / 2;
      if (sequence[middle].begin <= piece)
        low = middle;
      else
        high = middle;
    }
    return low;
  }
  [[nodiscard]] KVANT_HD std::int32_t cta_of(header const& h, std::int32_t piece) const {
    if (h.ctas_per_segment == 0) return piece / h.share;
    std::int32_t const per = sequence[0].pages + sequence[0].exact, segment = piece / per;
    return segment * h.ctas_per_segment + (piece - segment * per) / share_of(per, h.ctas_per_segment);
  }
  KVANT_HD void range_of(header const& h, std::int32_t cta, std::int32_t count, std::int32_t& begin,
                         std::int32_t& end) const {
    auto const least = [](std::int32_t x, std::int32_t y) { return x < y ? x : y; };
    if (h.ctas_per_segment == 0) {
      begin = least(h.pieces, cta * h.share), end = least(h.pieces, begin + h.share);
      return;
    }
    std::int32_t const k = h.ctas_per_segment, segment = cta / k;
    begin = end = h.pieces;
    if (segment >= count * kv_heads) return;
    std::int32_t const per = sequence[0].pages + sequence[0].exact, share = share_of(per, k);
    begin = segment * per + least(per, cta % k * share);
    end = segment * per + least(per, (cta % k + 1) * share);
  }
  /// The part that begins at `piece` in a CTA whose pieces end at `cta_end`.
  [[nodiscard]] KVANT_HD decode_part part_at(header const& h, std::int32_t cta, std::int32_t cta_end,
                                             std::int32_t piece, std::int32_t count) const {
    decode_part p;
    p.sequence = sequence_of(piece, count);
    sequence_pieces const seq = sequence[p.sequence];
    std::int32_t const per = seq.pages + seq.exact, within = piece - seq.begin;
    p.head = within / per;
    p.segment = p.sequence * kv_heads + p.head;
    std::int32_t const base = seq.begin + p.head * per, offset = within - p.head * per;
    p.pages = offset < seq.pages ? 1 : 0;
    std::int32_t const kind_begin = p.pages ? 0 : seq.pages, kind_end = p.pages ? seq.pages : per;
    p.from = offset - kind_begin;
    p.begin = piece, p.end = base + kind_end < cta_end ? base + kind_end : cta_end;
    p.first_cta = cta_of(h, base);
    p.page_parts = seq.pages > 0 ? cta_of(h, base + seq.pages - 1) - p.first_cta + 1 : 0;
    std::int32_t const exact_first = seq.exact > 0 ? cta_of(h, base + seq.pages) : 0;
    p.count = p.page_parts + (seq.exact > 0 ? cta_of(h, base + per - 1) - exact_first + 1 : 0);
    p.index = p.pages ? cta - p.first_cta : p.page_parts + cta - exact_first;
    return p;
  }

 private:
  static constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
  constexpr std::size_t offset_of_work() const {
    return aligned(sizeof(header)) + aligned(sizeof(sequence_pieces) * (static_cast<std::size_t>(max_sequences) + 1));
  }
  constexpr std::size_t offset_of_state() const {
    return offset_of_work() + aligned(sizeof(cta_work) * static_cast<std::size_t>(ctas));
  }
  constexpr std::size_t offset_of_out() const {
    return offset_of_state() + aligned(sizeof(float2) * columns * static_cast<std::size_t>(partials()));
  }
  constexpr std::size_t offset_of_arrived() const {
    return offset_of_out() +
           aligned(sizeof(float) * columns * static_cast<std::size_t>(dim) * static_cast<std::size_t>(partials()));
  }
};

namespace detail {

/// One CTA: a running sum over the sequences, then the split. A template, so that two units may include it.
template <class Plan>
__launch_bounds__(1024) __global__
    void plan_kernel(Plan plan, sequences_view sequences, int page_tokens, int tiles, int sinks) {
  __shared__ std::int32_t sums[1024];
  __shared__ std::int32_t least, most, all_pages;
  __shared__ typename Plan::header head;
  int const n = sequences.count, heads = plan.kv_heads;
  int const each = (n + 1023) / 1024, from = min(n, int(threadIdx.x) * each), to = min(n, from + each);
  if (threadIdx.x == 0) least = 0x7fffffff, most = 0, all_pages = 0;
  __syncthreads();
  std::int32_t pages_of_mine = 0;
  for (int i = from; i < to; ++i) {
    int const length = sequences.length[i], history = sequences.history[i], slot = sequences.slot_of(i);
    int pages = 0, exact = 0;
    if (slot >= 0 && length > 0) {
      int const kept = min(sinks, length), window = length - max(min(history, length), kept);
      pages = (history - sequences.first_of(i)) / page_tokens;
      exact = (kept + 15) / 16 + (max(window, 0) + 15) / 16;
    }
    plan.sequence[i] = {0, pages, exact};
    pages_of_mine += pages;
  }
  atomicAdd(&all_pages, pages_of_mine);
  __syncthreads();
  // Where a CTA would have fewer pages than warps, tiles are handed out instead.
  int const split = all_pages * heads < plan.ctas * 16 ? tiles : 1;
  std::int32_t mine = 0;
  for (int i = from; i < to; ++i) {
    plan.sequence[i].pages *= split;
    std::int32_t const per = plan.sequence[i].pages + plan.sequence[i].exact;
    atomicMin(&least, per);  // of pieces, not of pages: those of one page may be several
    atomicMax(&most, per);
    mine += per * heads;
  }
  sums[threadIdx.x] = mine;
  __syncthreads();
  for (int step = 1; step < 1024; step *= 2) {
    std::int32_t const before = int(threadIdx.x) >= step ? sums[threadIdx.x - step] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  std::int32_t begin = sums[threadIdx.x] - mine;
  for (int i = from; i < to; ++i) {
    plan.sequence[i].begin = begin;
    begin += (plan.sequence[i].pages + plan.sequence[i].exact) * heads;
  }
  if (threadIdx.x == 0) {
    std::int32_t const pieces = sums[1023], segments = n * heads;
    plan.sequence[n] = {pieces, 0, 0};
    int const whole = segments > 0 ? plan.ctas / segments : 0;
    bool const equal = least == most && whole >= 1 && (plan.ctas - whole * segments) * 16 <= plan.ctas;
    head = {pieces, max(1, (pieces + plan.ctas - 1) / plan.ctas), equal ? whole : 0, split};
    *plan.head = head;
  }
  __syncthreads();
  for (int cta = int(threadIdx.x); cta < plan.ctas; cta += 1024) {
    typename Plan::cta_work w;
    w.head = head;
    plan.range_of(head, cta, n, w.begin, w.end);
    if (w.begin < w.end) w.first = plan.part_at(head, cta, w.end, w.begin, n);
    plan.work[cta] = w;
  }
}

}  // namespace detail

/// Splits the work of `sequences` over the plan's CTAs, for layers of this pair of formats and head size. Reads lengths on
/// the device, so a captured graph may replay it with others. Stream-ordered, one CTA; allocates nothing.
/// cudaErrorInvalidValue: a null pointer, more sequences than the plan has room for, sinks that fill a page, a plan of
/// another head size.
template <kv_format Key, kv_format Value, int Dim>
[[nodiscard]] cudaError_t make_decode_plan_async(decode_plan plan, sequences_view sequences, int sinks,
                                                 cudaStream_t stream) noexcept {
  using layout_type = page_layout<Key, Value>;
  constexpr layout_type layout{page_shape{1, Dim, Dim, layout_type::least_page_tokens}};
  constexpr int page_tokens = layout.shape.page_tokens, tiles = layout.tiles();
  if (plan.head == nullptr || plan.dim != Dim || sequences.length == nullptr || sequences.history == nullptr ||
      sequences.count < 0 || sequences.count > plan.max_sequences || sinks < 0 || sinks >= page_tokens)
    return cudaErrorInvalidValue;
  cudaLaunchConfig_t launch{};
  launch.gridDim = 1, launch.blockDim = 1024, launch.stream = stream;
  return cudaLaunchKernelEx(&launch, detail::plan_kernel<decode_plan>, plan, sequences, page_tokens, tiles, sinks);
}

}  // namespace kvant::inline v0
