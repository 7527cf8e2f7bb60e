#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <kvant/cache/backend.hpp>
#include <kvant/cache/geometry.hpp>
#include <kvant/cache/host_backend.hpp>
#include <kvant/cache/memory.hpp>
#include <kvant/cache/sequence_book.hpp>
#include <kvant/cache/stats.hpp>
#include <kvant/cache/step_batch.hpp>
#include <kvant/cache/views.hpp>
#include <kvant/plan/plan.hpp>
#include <kvant/result.hpp>
#include <kvant/status.hpp>

namespace kvant::inline v0 {

/// The KV cache of a model: sequences that grow, share, shrink and end, in pages quantized once, an exact window and
/// exact sinks. Allocates in create() and, for one table, in prefill(); nothing takes longer the more tokens there are,
/// but that a fork copies a row of the block table and a release returns its pages.
///
/// Every call that can go wrong says so, with what was expected and what came, and has then changed nothing ("out of
/// memory" where an allocation failed). A step is begin, append to every layer (each layer may be attended to at once),
/// perhaps truncate, commit. One thread at a time.
template <class Plan, element W = half, class Backend = host_backend<Plan, W>>
class kv_cache {
  static_assert(cache_backend<Backend, W>);

 public:
  using window_type = W;

  /// `tables` is host memory for the bookkeeping, `arenas` what the back end allocates from; both outlive the cache.
  [[nodiscard]] static result<kv_cache> create(cache_options const& options,
                                               std::pmr::memory_resource* tables = std::pmr::get_default_resource(),
                                               std::pmr::memory_resource* arenas = nullptr) {
    return guarded([&]() -> result<kv_cache> {
      auto geometry = make_geometry<Plan, W>(options);
      if (!geometry.ok()) return geometry.error();
      auto backend = Backend::create(*geometry, arenas == nullptr ? tables : arenas);
      if (!backend.ok()) return backend.error();
      return kv_cache(*std::move(geometry), *std::move(backend), tables);
    });
  }

  kv_cache(kv_cache&&) = default;
  // Views point into the tables, which an assignment between memory resources would copy.
  kv_cache& operator=(kv_cache&&) = delete;

  // ---- a sequence's life ----

  /// An empty sequence.
  [[nodiscard]] result<sequence_id> add() {
    return guarded([&]() -> result<sequence_id> {
      if (status s = book_.can_add(); !s.ok()) return s;
      sequence_id const id = book_.add();
      publish(id.row);
      return id;
    });
  }

  /// A sequence with the same tokens: full pages are shared, the window is copied, and a row of the block table.
  [[nodiscard]] result<sequence_id> fork(sequence_id id) {
    return guarded([&]() -> result<sequence_id> {
      auto const row = book_.find(id);
      if (!row.ok()) return row.error();
      if (status s = book_.can_fork(*row); !s.ok()) return s;
      batch_.close();
      std::int32_t const to = book_.take_row();
      book_.fork(*row, to);
      if (status s = copy_exact_rows(*row, to); !s.ok()) {
        book_.release(to);
        return s;
      }
      publish(to);
      return book_.id_of(to);
    });
  }

  /// Ends a sequence: n pages take O(n). What still shares its pages keeps them.
  [[nodiscard]] status release(sequence_id id) {
    return guarded([&]() -> status {
      auto const row = book_.find_any(id);
      if (!row.ok()) return row.error();
      batch_.close();
      book_.release(*row);
      publish(*row);
      return {};
    });
  }

  // ---- growth ----

  /// Takes the pages that `tokens` more tokens will be committed to: a step of so many cannot meet a full pool. (Of a
  /// sliding-window layer, as many as its table holds at one time.)
  [[nodiscard]] status reserve(sequence_id id, std::int32_t tokens) {
    return guarded([&]() -> status {
      token_run const run{id, tokens};
      if (status s = book_.can_reserve({&run, 1}); !s.ok()) return s;
      book_.reserve(id.row, tokens);
      publish(id.row);
      return {};
    });
  }

  /// Begins a step: each sequence of the batch grows by its tokens, whose rows append() then brings for every layer.
  /// Takes the pages that commit() will need.
  [[nodiscard]] status begin(std::span<token_run const> batch) {
    return guarded([&]() -> status {
      if (status s = book_.can_reserve(batch); !s.ok()) return s;
      for (token_run const& run : batch)
        if (status s = book_.check_room(run); !s.ok()) return s;
      batch_.open(batch);
      for (token_run const& run : batch) {
        book_.reserve(run.sequence.row, run.tokens);
        set_length(run.sequence.row, book_.length(run.sequence.row) + run.tokens);
      }
      return {};
    });
  }
  [[nodiscard]] status begin(token_run run) { return begin(std::span<token_run const>(&run, 1)); }

  /// The rows of one layer for the batch that was begun, sequence after sequence in its order.
  template <element T>
  [[nodiscard]] status append(int layer, layer_rows<T> rows) {
    return guarded([&]() -> status {
      if (status s = check_layer(layer); !s.ok()) return s;
      if (!batch_.is_open())
        return status::error("append: expected a batch that was begun and not changed since, got none");
      sequence_group const& group = group_of(layer);
      layer_view<W> view = backend_.view(layer);
      view.sequences = batch_.sequences(group);
      return backend_.append(layer, view, new_rows(layer, rows, batch_.row_offsets(), batch_.max_rows()));
    });
  }

  /// begin, and append to every layer; rows_of(layer) gives a layer_rows<T>.
  template <class RowsOf>
  [[nodiscard]] status append(std::span<token_run const> batch, RowsOf&& rows_of) {
    if (status s = begin(batch); !s.ok()) return s;
    struct taken_back {  // should a layer fail, or rows_of throw
      kv_cache& cache;
      std::span<token_run const> runs;
      bool is_done = false;
      ~taken_back() {
        if (is_done) return;
        for (token_run const& run : runs)
          cache.set_length(run.sequence.row, cache.book_.length(run.sequence.row) - run.tokens);
        cache.batch_.close();
      }
    } step{*this, batch};
    for (int layer = 0; layer < Plan::size; ++layer)
      if (status s = append(layer, rows_of(layer)); !s.ok()) return s;
    step.is_done = true;
    return {};
  }
  template <class RowsOf>
  [[nodiscard]] status append(token_run run, RowsOf&& rows_of) {
    return append(std::span<token_run const>(&run, 1), rows_of);
  }

  /// Quantizes what is older than the window into pages, and returns pages that a sliding window has left.
  [[nodiscard]] status commit(sequence_id id) {
    return guarded([&]() -> status {
      auto const row = book_.find(id);
      if (!row.ok()) return row.error();
      return commit_rows(*row, *row + 1);
    });
  }
  /// Of all sequences.
  [[nodiscard]] status commit() {
    return guarded([&]() -> status { return commit_rows(0, geometry_.max_sequences); });
  }

  /// Appends a run of any length and commits it, straight into pages. rows_of(layer) is asked for each layer in turn and
  /// gives a layer_rows<T>; until all are written the sequence shows its old tokens, so that rows_of may attend to what
  /// layer `layer` holds before it returns the rows. It must not change the cache. The state is that of append and commit
  /// in any chunks. Where a layer behind the first fails (its rows are null, or rows_of throws) and the rows of those
  /// before it have already taken the place of tokens in the window, the sequence is lost: it shows its pages alone, and
  /// every call but release() refuses it. With as much room in the ring as there are new tokens, nothing is lost.
  template <class RowsOf>
  [[nodiscard]] status prefill(sequence_id id, std::int32_t tokens, RowsOf&& rows_of) {
    return guarded([&]() -> status {
      auto const found = book_.find(id);
      if (!found.ok()) return found.error();
      std::int32_t const row = *found;
      if (status s = book_.can_prefill(row, tokens); !s.ok()) return s;
      if (tokens == 0) return commit_rows(row, row + 1);
      batch_.close();
      struct published_after {
        kv_cache& cache;
        std::int32_t row;
        ~published_after() { cache.publish(row); }
      } const published{*this, row};
      prefill_batch batch(book_, row, tokens, tables_);
      for (int layer = 0; layer < Plan::size; ++layer) {
        std::int32_t const group = geometry_.layers[static_cast<std::size_t>(layer)].group;
        layer_view<W> view = backend_.view(layer);
        view.table = batch.table(group), view.sequences = batch.sequences(group);
        auto const rows = new_rows(layer, rows_of(layer), batch.row_offsets(), tokens);
        if (status s = backend_.prefill(layer, view, rows, group_of(layer).geometry().window_tokens); !s.ok()) return s;
        batch.layer_written();
      }
      batch.finish();
      return {};
    });
  }

  // ---- shrinking ----

  /// Keeps the first `length` tokens. Exact where they are at or past the history of every group, or end with a page;
  /// else the rest of the cut page comes back into the window, decoded.
  [[nodiscard]] result<truncation> truncate(sequence_id id, std::int32_t length) {
    return guarded([&]() -> result<truncation> {
      auto const row = book_.find(id);
      if (!row.ok()) return row.error();
      if (length < 0 || length > book_.length(*row))
        return detail::expected_got(detail::sequence_name(*row) + "truncation",
                                    "0 to its length " + std::to_string(book_.length(*row)), length);
      truncation_batch batch(book_, *row);
      if (status s = batch.plan(length); !s.ok()) return s;
      truncation kind = truncation::exact;
      for (int layer = 0; layer < Plan::size; ++layer) {
        std::int32_t const group = geometry_.layers[static_cast<std::size_t>(layer)].group;
        truncation_plan const& plan = batch.of(group);
        if (plan.page >= 0 && !geometry_.layers[static_cast<std::size_t>(layer)].is_lossless)
          kind = truncation::approximate;
        if (status s = move_for(layer, *row, plan, batch.record(group)); !s.ok()) return s;
      }
      batch_.close();
      batch.finish();
      publish(*row);
      return kind;
    });
  }

  /// Drops old context: the whole pages before `position`, sinks kept. No effect on what lies in the window.
  [[nodiscard]] status drop(sequence_id id, std::int32_t position) {
    return guarded([&]() -> status {
      auto const row = book_.find(id);
      if (!row.ok()) return row.error();
      if (position < 0 || position > book_.length(*row))
        return detail::expected_got(detail::sequence_name(*row) + "position to drop to",
                                    "0 to its length " + std::to_string(book_.length(*row)), position);
      for (sequence_group& g : book_.groups()) {
        std::int32_t const p = g.geometry().page_tokens;
        g.drop(*row, std::min(position, g.history(*row)) / p * p);
      }
      publish(*row);
      return {};
    });
  }

  /// What is added to positions of this sequence: context that lies elsewhere.
  [[nodiscard]] status set_position_base(sequence_id id, std::int32_t base) {
    return guarded([&]() -> status {
      auto const row = book_.find(id);
      if (!row.ok()) return row.error();
      book_.set_position_base(*row, base);
      publish(*row);
      return {};
    });
  }

  // ---- what is there ----

  /// Everything that attention over a layer (0 to Plan::size - 1) reads; entry i of the arrays is row i. Good as long as
  /// the cache lives, and always shows the present state.
  [[nodiscard]] layer_view<W> view(int layer) const {
    layer_view<W> view = backend_.view(layer);
    auto const& [table, sequences] =
        published_[static_cast<std::size_t>(geometry_.layers[static_cast<std::size_t>(layer)].group)];
    view.table = table, view.sequences = sequences;
    return view;
  }
  /// Of one sequence: arrays of one entry.
  [[nodiscard]] result<layer_view<W>> view(int layer, sequence_id id) const {
    return guarded([&]() -> result<layer_view<W>> {
      if (status s = check_layer(layer); !s.ok()) return s;
      auto const row = book_.find(id);
      if (!row.ok()) return row.error();
      return rows_of_view(view(layer), *row, 1);
    });
  }

  [[nodiscard]] bool contains(sequence_id id) const {
    return id.row >= 0 && id.row < book_.rows().count() && book_.is_live(id.row) && book_.id_of(id.row) == id;
  }
  // Precondition of these: contains(id).
  [[nodiscard]] std::int32_t length(sequence_id id) const { return book_.length(id.row); }
  [[nodiscard]] std::int32_t history(sequence_id id, int layer) const { return group_of(layer).history(id.row); }
  [[nodiscard]] std::int32_t first(sequence_id id, int layer) const { return group_of(layer).first(id.row); }
  [[nodiscard]] std::int32_t position_base(sequence_id id) const { return book_.position_base(id.row); }

  [[nodiscard]] cache_geometry const& geometry() const { return geometry_; }
  [[nodiscard]] sequence_group const& group_of(int layer) const {
    return book_.groups()[static_cast<std::size_t>(geometry_.layers[static_cast<std::size_t>(layer)].group)];
  }
  /// Bytes allocated, of both memory resources.
  [[nodiscard]] cache_memory memory() const {
    cache_memory m = backend_.memory();
    m.tables += table_bytes(geometry_);
    return m;
  }
  [[nodiscard]] static constexpr std::string_view path() { return Backend::path(); }
  [[nodiscard]] cache_stats stats() const {
    cache_stats s = count(book_);
    s.not_finite = backend_.not_finite(), s.path = path();
    return s;
  }

 private:
  kv_cache(cache_geometry geometry, Backend backend, std::pmr::memory_resource* tables)
      : geometry_(std::move(geometry)),
        tables_(tables),
        book_(geometry_, tables),
        backend_(std::move(backend)),
        batch_(geometry_.max_sequences, tables) {
    for (std::size_t g = 0; g < geometry_.groups.size(); ++g)
      published_.push_back(backend_.publish(static_cast<std::int32_t>(g), book_.tables(g), -1));
  }

  /// What f returns, or "out of memory" (short, so that saying so allocates nothing).
  template <class F>
  static auto guarded(F&& f) -> decltype(f()) {
#if defined(__cpp_exceptions)
    try {
      return f();
    } catch (std::bad_alloc const&) {
      return status::error("out of memory");
    }
#else
    return f();
#endif
  }

  [[nodiscard]] status check_layer(int layer) const {
    if (layer >= 0 && layer < Plan::size) return {};
    return detail::expected_got("layer", "0 to " + std::to_string(Plan::size - 1), layer);
  }
  void publish(std::int32_t row) {
    for (std::size_t g = 0; g < published_.size(); ++g)
      published_[g] = backend_.publish(static_cast<std::int32_t>(g), book_.tables(g), row);
  }
  void set_length(std::int32_t row, std::int32_t length) {
    for (sequence_group& g : book_.groups()) g.set_length(row, length);
    publish(row);
  }
  [[nodiscard]] static layer_view<W> rows_of_view(layer_view<W> view, std::int32_t row, std::int32_t count) {
    view.table.ids += row * view.table.row_stride;
    sequences_view& s = view.sequences;
    s.length += row, s.history += row, s.first += row, s.position_base += row, s.slot += row, s.record += row;
    s.count = count;
    return view;
  }
  /// The back end's view of rows, with the bookkeeping's own arrays.
  [[nodiscard]] layer_view<W> host_view(int layer, std::int32_t row, std::int32_t count) const {
    layer_view<W> view = backend_.view(layer);
    auto const [table, sequences] =
        book_.tables(static_cast<std::size_t>(geometry_.layers[static_cast<std::size_t>(layer)].group));
    view.table = table, view.sequences = sequences;
    return rows_of_view(view, row, count);
  }
  template <element T>
  [[nodiscard]] new_rows_view<T> new_rows(int layer, layer_rows<T> const& rows, std::int32_t const* offsets,
                                          std::int32_t most) const {
    page_shape const& s = geometry_.layers[static_cast<std::size_t>(layer)].shape;
    return {rows.keys, rows.values, offsets, s.kv_heads, s.key_dim, s.value_dim, most};
  }

  /// Pages first, for all layers; then the numbers.
  [[nodiscard]] status commit_rows(std::int32_t begin, std::int32_t end) {
    batch_.close();
    for (int layer = 0; layer < Plan::size; ++layer) {
      sequence_group const& g = group_of(layer);
      bool any = false;
      for (std::int32_t row = begin; row < end && !any; ++row) any = g.history_at(row, g.length(row)) > g.history(row);
      if (!any) continue;
      status s = backend_.commit(layer, host_view(layer, begin, end - begin), g.geometry().window_tokens);
      if (!s.ok()) return s;
    }
    for (std::int32_t row = begin; row < end; ++row)
      if (book_.is_live(row)) {
        for (sequence_group& g : book_.groups()) g.commit(row);
        publish(row);
      }
    return {};
  }

  /// What a fork does not share.
  [[nodiscard]] status copy_exact_rows(std::int32_t from, std::int32_t to) {
    for (int layer = 0; layer < Plan::size; ++layer) {
      sequence_group const& g = group_of(layer);
      if (status s = backend_.copy_window(layer, from, to, g.history(from), g.length(from)); !s.ok()) return s;
      if (g.history(from) > 0) continue;
      std::int32_t const sinks = std::min(g.length(from), g.geometry().sinks);
      if (status s = backend_.copy_sinks(layer, g.record(from), g.record(to), sinks); !s.ok()) return s;
    }
    return {};
  }

  [[nodiscard]] status move_for(int layer, std::int32_t row, truncation_plan const& plan, std::int32_t new_record) {
    layer_view<W> const view = host_view(layer, row, 1);
    if (plan.restore_from < plan.length)
      if (status s = backend_.restore(layer, view, plan.page, plan.restore_from, plan.length); !s.ok()) return s;
    if (!plan.drops_record) return {};
    return backend_.copy_sinks(layer, view.sequences.record[0], new_record, std::min(plan.length, view.side.sinks));
  }

  cache_geometry geometry_;
  std::pmr::memory_resource* tables_;
  sequence_book book_;
  Backend backend_;
  step_batch batch_;
  std::vector<group_tables> published_;
};

}  // namespace kvant::inline v0
