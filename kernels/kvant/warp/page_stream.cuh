#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <kvant/cache/views.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/plan.cuh>
#include <kvant/tuning/decode.cuh>
#include <kvant/warp/copies.cuh>
#include <kvant/warp/exact_page_tile.cuh>
#include <kvant/warp/page_tile.cuh>

namespace kvant::inline v0::detail {

/// The way of a team through the list of all units: from span to span, and from a piece's number to where it lies. A
/// piece is split.granule tiles of one page; pieces are numbered through a team's spans, and piece i belongs to warp
/// i mod team_warps.
template <class T>
struct piece_list {
  layer_view<T> const& layer;
  decode_plan const& plan;
  decode_plan::team_work const& work;  // in shared memory
  int const page_tiles;                // a granule is one tile, or these
  std::int32_t* bad_page_id;           // decode_output

  [[nodiscard]] __device__ __forceinline__ std::int32_t pieces_of(decode_span const& span, int granule) const {
    std::int32_t const tiles = span.tiles_end - span.tiles_begin;
    return granule == 1 ? tiles : (tiles + page_tiles - 1) / page_tiles;
  }
  /// Moves on to the team's next span; false if there is none.
  [[nodiscard]] __device__ bool next_span(decode_span& span) const {
    std::int32_t const list_end = work.list_end;
    if (list_end == 0) return false;
    std::int32_t b = span.sequence, h = span.head + 1;
    if (h == plan.shape.kv_heads) h = 0, ++b;
    decode_plan::sequence_work s = plan.sequence[b];
    while (b < layer.sequences.count && s.segment.units() == 0) s = plan.sequence[++b];
    std::int32_t const begin = s.begin + h * s.segment.listed();
    if (b >= layer.sequences.count || begin >= list_end) return false;
    span = work.split.span(work.team, b, h, begin, s.segment);
    return true;
  }
  /// The span and tile (of the segment) of the team's piece i; false beyond the last.
  [[nodiscard]] __device__ __forceinline__ bool find(std::int32_t i, decode_span& span, std::int32_t& tile) const {
    int const granule = work.split.granule;
    span = work.first;
    for (std::int32_t pieces; i >= (pieces = pieces_of(span, granule)); i -= pieces)
      if (!next_span(span)) return false;
    tile = span.tiles_begin + i * granule;
    return true;
  }
  /// The unit of a page of a span.
  [[nodiscard]] __device__ __forceinline__ std::byte const* unit(decode_span const& span, std::int32_t page,
                                                                 int page_tokens) const {
    std::int32_t index = layer.sequences.first_of(span.sequence) / page_tokens + page;
    if (index >= layer.table.capacity) index %= layer.table.capacity;
    std::int32_t id = layer.table.ids[span.sequence * layer.table.row_stride + index];
#ifdef KVANT_DEBUG_PAGE_IDS
    if (id < 0 || id >= layer.pages.count) {
      if (bad_page_id != nullptr) *bad_page_id = 1 + span.sequence;
      id = 0;
    }
#endif
    return layer.pages.unit(id, span.head);
  }
};

/// A warp's pages, brought into its ring ahead of its work, across spans where Copies allow. A stage is a tile, with the
/// header of its page where a piece begins. Units are multiples of 16 bytes; where copies begin at multiples of 128
/// (bulk_ring), a stage begins with up to 112 bytes of something else.
template <class Key, class Value, int Dim, int Columns, class T, class Copies>
class page_stream : public piece_list<T> {
  using layout_type = page_layout<Key, Value>;
  static constexpr layout_type layout{page_shape{1, Dim, Dim, layout_type::least_page_tokens}};
  static constexpr int page_tokens = layout.shape.page_tokens, page_tiles = layout.tiles(),
                       tile_bytes = layout.tile_bytes(), header_bytes = layout.header_bytes();
  using tuned = tuning::decode<Key, Value, Dim, Columns>;
  static constexpr int stages = Copies::across_spans ? tuned::stages : tuned::stages_in_99k, queue = 32;
  static_assert(page_tiles < 16 && (page_tiles & (page_tiles - 1)) == 0);
  static constexpr int alignment = Copies::alignment, slack = header_bytes % alignment == 0 ? 0 : alignment - 16;
  static constexpr int tail_header = slack + tile_bytes;  // where a header lies that is not in front of its tile
  // The place of a tile in its stage: where it begins, in place_units; whether the page's header came with it; and
  // whether that is apart, behind the tile, instead of in front of it. In the low bits of an address.
  static constexpr int place_unit = slack > 0 || header_bytes == 0 ? 16 : header_bytes;
  static constexpr std::uint32_t place_mask = slack > 0 ? 31 : 1, header_apart = place_mask + 1,
                                 with_header = 2 * header_apart;
  static_assert((slack + header_bytes) / 16 <= 31 && 2 * with_header <= alignment);
  static constexpr int stage_bytes = (slack + tile_bytes + header_bytes + alignment - 1) / alignment * alignment;
  using ring = typename Copies::template ring<stages, stage_bytes>;

 public:
  static constexpr int ahead = stages, early = Copies::across_spans ? tuned::early : ahead;
  using tile_type = page_tile<Key, Value, Dim, Columns>;
  using stages_storage = typename ring::storage;
  struct queue_storage {
    typename ring::barriers barriers;
    std::uint64_t where[queue];  // of the coming tiles: what to copy, plus its `place`; 0: none
    std::int32_t before;         // pieces of the team's earlier spans
    std::int32_t asked;          // what pause() puts away
    std::uint32_t places;
  };

  __device__ __forceinline__ page_stream(layer_view<T> const& layer, decode_plan const& plan,
                                         decode_plan::team_work const& work, std::int32_t* bad_page_id,
                                         stages_storage& memory, queue_storage& s, int lane)
      : piece_list<T>{layer, plan, work, page_tiles, bad_page_id}, s_(s), ring_(memory, s.barriers), lane_(lane) {}

  /// Where the warp's first tiles lie; then asks for the first `count` of them, at most `ahead`.
  __device__ __forceinline__ void look_up_first(int team_warps, int place) {
    if (lane_ == 0) s_.before = 0;
    look_up(team_warps, place);
    pause();
  }
  __device__ __forceinline__ void request_first(int count) {
    if constexpr (Copies::across_spans) {
#pragma unroll 1
      while (asked_ < count) {
        std::uint64_t const where = s_.where[asked_];
        if (where == 0) return;
        request(asked_, where, asked_);
      }
    }
  }
  /// Before each span, where no tile of another one may be on its way: asks for its first. Nobody needs what else the
  /// ring's memory holds.
  __device__ __forceinline__ void refill(decode_span const& span, int team_warps, int place) {
    if constexpr (!Copies::across_spans) {
      resume();
      std::int32_t const tiles = tiles_of(span, first_piece(team_warps, place), team_warps);
#pragma unroll 1
      for (int i = 0; i < stages; ++i) {
        if (asked_ % queue == 0) look_up(team_warps, place);
        if (i < tiles)
          request(ring_.stage(i));
        else
          skip();
      }
      pause();
    }
  }

  /// Attends to this warp's pieces of the team's next span.
  __device__ __forceinline__ void attend(tile_type& tile, typename tile_type::state& st, decode_span const& span,
                                         int team_warps, int place) {
    resume();
    int const granule = this->work.split.granule;
    std::int32_t const first = first_piece(team_warps, place), tiles = tiles_of(span, first, team_warps);
    // How many of a tile's tokens do not count: sinks, which only the first page has. Less than 1 in all other tiles.
    int masked = 0;
    if (this->layer.side.sinks > 0 && this->layer.sequences.first_of(span.sequence) == 0)
      masked = this->layer.side.sinks - (span.tiles_begin + first * granule) * tile_type::tokens;
    int const fewer_masked = granule == 1 ? team_warps * tile_type::tokens : tile_type::tokens;
    static_assert(page_tiles <= 2, "page_stream: masked tokens are counted for pages of two tiles");
    for (std::int32_t i = 0; i < tiles;) {
      std::int32_t const queued = queue - (asked_ & (queue - 1));  // asked for without looking up more places
      if (queued == queue) look_up(team_warps, place);
      std::int32_t const end = min(tiles, i + queued);
#pragma unroll 1
      for (; i < end; ++i) {
        std::byte const* const stage = ring_.wait();
        int const offset = header_bytes > 0 ? static_cast<int>(places_ & place_mask) * place_unit : 0;
        if constexpr (header_bytes > 0)
          if (places_ & with_header)
            tile.read_mean(stage + (places_ & header_apart ? tail_header : offset - header_bytes));
        tile.attend(st, stage + offset, masked);
        masked -= fewer_masked;
        int const released = ring_.release();
        if (Copies::across_spans || i + stages < tiles)
          request(released);
        else
          skip();
      }
    }
    __syncwarp();
    pause();
    if (lane_ == 0) s_.before += this->pieces_of(span, this->work.split.granule);
    __syncwarp();
  }

 private:
  /// Where the warp's tile i lies, as `where` has it.
  [[nodiscard]] __device__ __forceinline__ std::uint64_t locate(std::int32_t i, int team_warps, int place) const {
    int const granule = this->work.split.granule;
    decode_span span;
    std::int32_t tile;
    std::int32_t const piece = granule == 1 ? i : i / page_tiles, within = i & (granule - 1);
    if (!this->find(piece * team_warps + place, span, tile)) return 0;
    tile += within;
    std::int32_t const page = tile / page_tiles, in_page = tile % page_tiles;
    std::uint64_t const unit = reinterpret_cast<std::uint64_t>(this->unit(span, page, page_tokens));
    bool const in_front = header_bytes > 0 && within == 0 && in_page == 0;
    std::uint64_t const from = unit + (in_front ? 0 : header_bytes + in_page * tile_bytes);
    std::uint64_t const ahead = slack > 0 ? from % alignment : 0;
    std::uint32_t const header = header_bytes == 0 || within > 0 ? 0
                                 : in_front                      ? with_header
                                                                 : with_header + header_apart;
    return from - ahead + (ahead + (in_front ? header_bytes : 0)) / place_unit + header;
  }
  /// Where a ring has no more than it must, other code gets the registers meanwhile.
  __device__ __forceinline__ void pause() {
    if constexpr (!Copies::across_spans) {
      __syncwarp();
      if (lane_ == 0) s_.asked = asked_, s_.places = places_;
      __syncwarp();
    }
  }
  __device__ __forceinline__ void resume() {
    if constexpr (!Copies::across_spans) asked_ = s_.asked, places_ = s_.places;
  }

  /// The places of the next tiles that the warp will ask for, when it has asked for a multiple of `queue`.
  __device__ __forceinline__ void look_up(int team_warps, int place) {
    __syncwarp();
    std::uint64_t const where = locate(asked_ + lane_, team_warps, place);
    s_.where[lane_] = where;
    __syncwarp();
  }

  /// This warp's first piece of the team's next span, within the span.
  [[nodiscard]] __device__ __forceinline__ std::int32_t first_piece(int team_warps, int place) const {
    return (place - s_.before) & (team_warps - 1);
  }
  /// This warp's tiles of the span.
  [[nodiscard]] __device__ __forceinline__ std::int32_t tiles_of(decode_span const& span, std::int32_t first,
                                                                 int team_warps) const {
    int const granule = this->work.split.granule;
    std::int32_t const pieces = this->pieces_of(span, granule);
    return first < pieces ? ((pieces - 1 - first) / team_warps + 1) * granule : 0;
  }

  /// Asks for one more tile, if the warp has any left.
  __device__ __forceinline__ void request(int stage) {
    std::uint64_t const where = s_.where[asked_ & (queue - 1)];
    if (where == 0) return skip();
    places_ >>= 8;
    request(stage, where, stages - 1);
  }
  /// place_byte: where its place goes among those of the stages.
  __device__ __forceinline__ void request(int stage, std::uint64_t where, int place_byte) {
    ++asked_;
    std::uint32_t const place = header_bytes > 0 ? static_cast<std::uint32_t>(where) & (alignment - 1) : 0;
    if constexpr (header_bytes > 0) places_ |= place << (8 * place_byte);
    std::uint32_t const bytes = (header_bytes > 0 ? (place & place_mask) * place_unit : 0) + tile_bytes;
    bool const apart = header_bytes > 0 && (place & header_apart) != 0;
    static_assert(page_tiles <= 2, "page_stream: a header that is apart is one tile away");
    ring_.fill(stage, {0, where - place, bytes},
               {tail_header, where - place + bytes - 2 * tile_bytes - header_bytes, apart ? header_bytes : 0u});
  }
  __device__ __forceinline__ void skip() {
    places_ >>= 8;
    ring_.skip();
  }

  queue_storage& s_;
  ring ring_;
  int const lane_;
  std::int32_t asked_ = 0;    // tiles
  std::uint32_t places_ = 0;  // a byte a stage, the oldest first
};

/// Exact pages: rows are read straight from memory, in tiles of 16.
template <class Key, class Value, int Dim, int Columns, class T, class Copies>
requires(is_exact<Key>&& is_exact<Value>) class page_stream<Key, Value, Dim, Columns, T, Copies>
    : public piece_list<T> {
  using layout_type = page_layout<Key, Value>;
  static constexpr layout_type layout{page_shape{1, Dim, Dim, layout_type::least_page_tokens}};
  static constexpr int page_tokens = layout.shape.page_tokens, page_tiles = page_tokens / exact_tile_rows,
                       key_offset = layout.template codes_offset<side::key>(0),
                       value_offset = layout.template codes_offset<side::value>(0);

 public:
  static_assert(std::is_same_v<typename codec_of<Key>::element_type, T> &&
                    std::is_same_v<typename codec_of<Value>::element_type, T>,
                "exact pages: elements of the window's type");
  static constexpr int ahead = 0, early = 0;
  using tile_type = exact_page_tile<T, Dim, Columns>;
  struct stages_storage {};
  struct queue_storage {
    std::int32_t before;  // pieces of the team's earlier spans
  };

  __device__ __forceinline__ page_stream(layer_view<T> const& layer, decode_plan const& plan,
                                         decode_plan::team_work const& work, std::int32_t* bad_page_id, stages_storage&,
                                         queue_storage& s, int lane)
      : piece_list<T>{layer, plan, work, page_tiles, bad_page_id}, s_(s), lane_(lane) {}
  __device__ __forceinline__ void look_up_first(int, int) {
    if (lane_ == 0) s_.before = 0;
    __syncwarp();
  }
  __device__ __forceinline__ void request_first(int) {}
  __device__ __forceinline__ void refill(decode_span const&, int, int) {}

  __device__ __forceinline__ void attend(tile_type& tile, typename tile_type::state& st, decode_span const& span,
                                         int team_warps, int place) {
    int const granule = this->work.split.granule;
    std::int32_t const pieces = this->pieces_of(span, granule);
    bool const has_sinks = this->layer.sequences.first_of(span.sequence) == 0;
#pragma unroll 1
    for (std::int32_t piece = (place - s_.before) & (team_warps - 1); piece < pieces; piece += team_warps)
#pragma unroll 1
      for (int i = 0; i < granule; ++i) {
        std::int32_t const n = span.tiles_begin + piece * granule + i;
        std::byte const* const unit = this->unit(span, n / page_tiles, page_tokens);
        std::int32_t const first = n % page_tiles * exact_tile_rows;
        int const masked = has_sinks && n < page_tiles ? this->layer.side.sinks - first : 0;
        tile.attend(st, unit + key_offset + first * Dim * 2, unit + value_offset + first * Dim * 2, masked);
      }
    __syncwarp();
    if (lane_ == 0) s_.before += pieces;
    __syncwarp();
  }

 private:
  queue_storage& s_;
  int const lane_;
};

}  // namespace kvant::inline v0::detail
