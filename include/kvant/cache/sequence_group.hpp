#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <string>
#include <vector>

#include <kvant/cache/append.hpp>
#include <kvant/cache/geometry.hpp>
#include <kvant/cache/id_pool.hpp>
#include <kvant/cache/step.hpp>
#include <kvant/cache/views.hpp>
#include <kvant/status.hpp>

namespace kvant::inline v0 {

/// What attention reads of a group: arrays by row of the sequence.
struct group_tables {
  block_table_view table;
  sequences_view sequences;
};

/// How a truncation changes one sequence of a group.
struct truncation_plan {
  std::int32_t length = 0, history = 0;  // afterwards
  std::int32_t page = -1;                // the page that is cut, -1: none
  std::int32_t restore_from = 0;         // [restore_from, length) come back into the window, unless empty
  bool drops_record = false;             // history is 0 and the record is shared: a record of its own is needed
  bool is_reset = false;                 // only sinks survive; `first` is 0
};

/// The bookkeeping of the layers that share page ids: lengths, block tables, references to pages and side records. Knows
/// numbers, never touches bytes; a caller moves the bytes between a question (can_..., plan_...) and the change. Nothing
/// but the constructor allocates. `row` is below max_sequences; what is not a live row is padding in every view.
class sequence_group {
 public:
  sequence_group(group_geometry const& geometry, std::int32_t max_sequences, std::pmr::memory_resource* memory)
      : geometry_(geometry),
        pages_(geometry.pages, memory),
        records_(max_sequences, memory),
        numbers_(static_cast<std::size_t>(arrays * max_sequences), 0, memory),
        ids_(static_cast<std::size_t>(std::int64_t{geometry.table_capacity} * max_sequences), -1, memory),
        rows_(max_sequences) {
    std::fill_n(array(slot_array), max_sequences, -1);
    std::fill_n(array(record_array), max_sequences, -1);
  }
  [[nodiscard]] static std::int64_t bytes(group_geometry const& g, std::int64_t max_sequences) {
    return id_pool::bytes(g.pages) + id_pool::bytes(max_sequences) +
           std::int64_t{sizeof(std::int32_t)} * max_sequences * (arrays + std::int64_t{g.table_capacity});
  }

  [[nodiscard]] group_geometry const& geometry() const { return geometry_; }
  [[nodiscard]] id_pool const& pages() const { return pages_; }
  [[nodiscard]] std::int32_t length(std::int32_t row) const { return array(length_array)[row]; }
  [[nodiscard]] std::int32_t history(std::int32_t row) const { return array(history_array)[row]; }
  [[nodiscard]] std::int32_t first(std::int32_t row) const { return array(first_array)[row]; }
  [[nodiscard]] std::int32_t record(std::int32_t row) const { return array(record_array)[row]; }
  /// The page of positions [index P, (index + 1) P).
  [[nodiscard]] std::int32_t page(std::int32_t row, std::int32_t index) const { return ids_[entry(row, index)]; }

  [[nodiscard]] group_tables tables(std::int32_t const* position_base) const {
    return {{ids_.data(), geometry_.table_capacity, geometry_.table_capacity},
            {array(length_array), array(history_array), array(first_array), position_base, array(slot_array),
             array(record_array), rows_}};
  }

  // ---- growth ----

  /// history once the tokens up to `length` have been committed.
  [[nodiscard]] std::int32_t history_at(std::int32_t row, std::int32_t length) const {
    return history_after_commit(history(row), length, geometry_.window_tokens, geometry_.page_tokens);
  }
  /// The first position whose page is kept once `history` tokens lie in pages: what a query at or past it sees.
  [[nodiscard]] std::int32_t first_at(std::int32_t row, std::int32_t history) const {
    if (!slides()) return first(row);
    std::int32_t const seen = std::max(0, history - geometry_.sliding_window + 1);
    return std::max(first(row), seen / geometry_.page_tokens * geometry_.page_tokens);
  }
  /// Pages that must be taken before `length` tokens can be committed.
  [[nodiscard]] std::int32_t missing_pages(std::int32_t row, std::int32_t length) const {
    return std::max(0, reserved_end_for(row, length) - reserved(row));
  }
  /// Takes them. Precondition: missing_pages(row, length) are free.
  void reserve(std::int32_t row, std::int32_t length) {
    for (std::int32_t const end = reserved_end_for(row, length); reserved(row) < end; ++array(reserved_array)[row])
      ids_[entry(row, reserved(row))] = pages_.acquire();
  }
  /// Rows that the ring has left for new tokens.
  [[nodiscard]] std::int32_t room(std::int32_t row) const { return geometry_.ring_rows - (length(row) - history(row)); }
  void set_length(std::int32_t row, std::int32_t length) { array(length_array)[row] = length; }
  /// The pages up to history_at(length) have been written.
  void commit(std::int32_t row) {
    array(history_array)[row] = history_at(row, length(row));
    drop(row, first_at(row, history(row)));
  }
  /// Returns the pages before `first`, a multiple of P up to history.
  void drop(std::int32_t row, std::int32_t first) {
    for (std::int32_t& at = array(first_array)[row]; at < first; at += geometry_.page_tokens)
      pages_.release(page(row, at / geometry_.page_tokens));
  }

  // ---- prefill: pages that are no part of the table before they are written ----

  /// Pages that a prefill up to `length` needs beyond those that are reserved.
  [[nodiscard]] std::int32_t pages_for_prefill(std::int32_t row, std::int32_t length) const {
    std::int32_t const p = geometry_.page_tokens, after = history_at(row, length);
    return std::max(0, (after - std::max(first_at(row, after), reserved(row) * p)) / p);
  }
  /// Ids of the pages [history, history_at(length)), -1 for those that will not be kept. Precondition: as many pages as
  /// pages_for_prefill are free, and `ids` has room for all.
  void take_prefill_pages(std::int32_t row, std::int32_t length, std::int32_t* ids) {
    std::int32_t const p = geometry_.page_tokens, after = history_at(row, length), kept = first_at(row, after) / p;
    for (std::int32_t index = history(row) / p; index < after / p; ++index)
      *ids++ = index < kept ? -1 : index < reserved(row) ? page(row, index) : pages_.acquire();
  }
  void return_prefill_pages(std::int32_t row, std::int32_t length, std::int32_t const* ids) {
    std::int32_t const p = geometry_.page_tokens, begin = history(row) / p, end = history_at(row, length) / p;
    for (std::int32_t index = std::max(begin, reserved(row)); index < end; ++index)
      if (ids[index - begin] >= 0) pages_.release(ids[index - begin]);
  }
  /// The pages have been written.
  void finish_prefill(std::int32_t row, std::int32_t length, std::int32_t const* ids) {
    std::int32_t const p = geometry_.page_tokens, begin = history(row), after = history_at(row, length),
                       kept = first_at(row, after);
    drop(row, std::min(kept, reserved(row) * p));
    array(first_array)[row] = kept;
    for (std::int32_t index = std::max(begin, kept) / p; index < after / p; ++index)
      ids_[entry(row, index)] = ids[index - begin / p];
    array(reserved_array)[row] = std::max(reserved(row), after / p);
    array(history_array)[row] = after;
    array(length_array)[row] = length;
  }

  // ---- a sequence's life ----

  void add(std::int32_t row) {
    for (int a : {length_array, history_array, first_array, reserved_array}) array(a)[row] = 0;
    array(slot_array)[row] = row;
    array(record_array)[row] = records_.acquire();
  }
  void release(std::int32_t row) {
    release_pages(row, first(row) / geometry_.page_tokens);
    records_.release(record(row));
    for (int a : {length_array, history_array, first_array, reserved_array}) array(a)[row] = 0;
    array(slot_array)[row] = -1;
    array(record_array)[row] = -1;
  }
  /// Pages that a fork of `row` must have for the tokens in its window.
  [[nodiscard]] std::int32_t pages_for_fork(std::int32_t row) const {
    return (history_at(row, length(row)) - history(row)) / geometry_.page_tokens;
  }
  /// `to` becomes a copy: pages shared; the record too where there are pages, else a record of its own.
  void fork(std::int32_t row, std::int32_t to) {
    std::int32_t const p = geometry_.page_tokens;
    for (int a : {length_array, history_array, first_array}) array(a)[to] = array(a)[row];
    array(slot_array)[to] = to;
    for (std::int32_t index = first(row) / p; index < history(row) / p; ++index) {
      std::int32_t const id = page(row, index);
      pages_.retain(id);
      ids_[entry(to, index)] = id;
    }
    array(reserved_array)[to] = history(row) / p;
    if (history(row) > 0) {
      records_.retain(record(row));
      array(record_array)[to] = record(row);
    } else {
      array(record_array)[to] = records_.acquire();
    }
    reserve(to, length(to));
  }

  // ---- truncation ----

  /// What truncation to `length` means, or why it cannot be. `name` begins the message.
  [[nodiscard]] status plan_truncation(std::int32_t row, std::int32_t length, std::string const& name,
                                       truncation_plan& plan) const {
    std::int32_t const p = geometry_.page_tokens;
    plan = {};
    plan.length = length, plan.history = history(row), plan.restore_from = length;
    if (length >= history(row)) return {};
    bool const only_sinks = length <= geometry_.sinks;
    if (first(row) > 0 && !only_sinks && length < least_length(row))
      return detail::expected_got(name + "truncation",
                                  "a length of at least " + std::to_string(least_length(row)) +
                                      (geometry_.sinks > 0 ? " or at most " + std::to_string(geometry_.sinks) : "") +
                                      ", because older context was dropped",
                                  length);
    plan.is_reset = only_sinks;
    plan.history = only_sinks ? 0 : length / p * p;
    plan.restore_from = plan.history;
    if (!only_sinks && length % p != 0) plan.page = page(row, length / p);
    plan.drops_record = plan.history == 0 && records_.is_shared(record(row));
    return {};
  }
  /// A record for a sequence that gives up a shared one; one is always free then.
  [[nodiscard]] std::int32_t take_record() { return records_.acquire(); }
  void return_record(std::int32_t record) { records_.release(record); }
  /// `new_record`: where plan.drops_record, what take_record gave.
  void truncate(std::int32_t row, truncation_plan const& plan, std::int32_t new_record) {
    std::int32_t const p = geometry_.page_tokens;
    if (plan.history < history(row)) {
      release_pages(row, std::max(first(row), plan.history) / p);
      array(reserved_array)[row] = plan.history / p;
      array(history_array)[row] = plan.history;
      if (plan.is_reset) array(first_array)[row] = 0;
    }
    array(length_array)[row] = plan.length;
    if (plan.drops_record) {
      records_.release(record(row));
      array(record_array)[row] = new_record;
    }
  }

 private:
  enum : int { length_array, history_array, first_array, slot_array, record_array, reserved_array, arrays };

  [[nodiscard]] bool slides() const { return geometry_.sliding_window > 0; }
  [[nodiscard]] std::int32_t* array(int a) { return numbers_.data() + std::int64_t{a} * rows_; }
  [[nodiscard]] std::int32_t const* array(int a) const { return numbers_.data() + std::int64_t{a} * rows_; }
  /// Pages [first, reserved) of a sequence, by index, are its own; those from history on hold nothing yet.
  [[nodiscard]] std::int32_t reserved(std::int32_t row) const { return array(reserved_array)[row]; }
  [[nodiscard]] std::size_t entry(std::int32_t row, std::int32_t index) const {
    return static_cast<std::size_t>(std::int64_t{row} * geometry_.table_capacity + index % geometry_.table_capacity);
  }
  /// No more than the table holds: a sliding window returns pages before it takes the rest.
  [[nodiscard]] std::int32_t reserved_end_for(std::int32_t row, std::int32_t length) const {
    return std::min(history_at(row, length) / geometry_.page_tokens,
                    first(row) / geometry_.page_tokens + geometry_.table_capacity);
  }
  [[nodiscard]] std::int32_t least_length(std::int32_t row) const {
    return first(row) + (slides() ? geometry_.sliding_window - 1 : 0);
  }
  void release_pages(std::int32_t row, std::int32_t from) {
    for (std::int32_t index = from; index < reserved(row); ++index) pages_.release(page(row, index));
  }

  group_geometry geometry_;
  id_pool pages_, records_;
  std::pmr::vector<std::int32_t> numbers_;  // [arrays, rows]
  std::pmr::vector<std::int32_t> ids_;      // [rows, table_capacity]
  std::int32_t rows_;
};

}  // namespace kvant::inline v0
