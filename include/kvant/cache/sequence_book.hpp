#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include <kvant/cache/append.hpp>
#include <kvant/cache/geometry.hpp>
#include <kvant/cache/id_pool.hpp>
#include <kvant/cache/sequence_group.hpp>
#include <kvant/result.hpp>
#include <kvant/status.hpp>

namespace kvant::inline v0 {

/// A sequence of a cache. `row` is its place in the arrays of every view; `generation` tells it from those that had the
/// row before it.
struct sequence_id {
  std::int32_t row = -1;
  std::uint32_t generation = 0;
  friend constexpr bool operator==(sequence_id, sequence_id) = default;
};

/// New tokens of one sequence.
struct token_run {
  sequence_id sequence;
  std::int32_t tokens = 0;
};

/// The bookkeeping of a cache: which sequences exist, and their groups. Looks things up by row, never touches bytes, and
/// allocates in its constructor alone.
class sequence_book {
 public:
  sequence_book(cache_geometry const& geometry, std::pmr::memory_resource* memory)
      : max_tokens_(geometry.max_tokens),
        rows_(geometry.max_sequences, memory),
        generations_(static_cast<std::size_t>(geometry.max_sequences), 0, memory),
        position_base_(static_cast<std::size_t>(geometry.max_sequences), 0, memory),
        spoiled_(static_cast<std::size_t>(geometry.max_sequences), 0, memory),
        marks_(static_cast<std::size_t>(geometry.max_sequences), 0, memory) {
    groups_.reserve(geometry.groups.size());
    for (group_geometry const& g : geometry.groups) groups_.emplace_back(g, geometry.max_sequences, memory);
  }
  [[nodiscard]] static std::int64_t bytes(cache_geometry const& geometry) {
    std::int64_t const n = geometry.max_sequences;
    std::int64_t sum = id_pool::bytes(n) + 4 * n * std::int64_t{sizeof(std::int32_t)};
    for (group_geometry const& g : geometry.groups) sum += sequence_group::bytes(g, n);
    return sum;
  }

  [[nodiscard]] std::vector<sequence_group>& groups() { return groups_; }
  [[nodiscard]] std::vector<sequence_group> const& groups() const { return groups_; }
  [[nodiscard]] id_pool const& rows() const { return rows_; }
  [[nodiscard]] group_tables tables(std::size_t group) const { return groups_[group].tables(position_base_.data()); }
  [[nodiscard]] std::int32_t length(std::int32_t row) const { return groups_.front().length(row); }
  [[nodiscard]] bool is_live(std::int32_t row) const { return groups_.front().record(row) >= 0; }

  /// The row of a sequence that exists and is whole.
  [[nodiscard]] result<std::int32_t> find(sequence_id id) const {
    auto const row = find_any(id);
    if (row.ok() && spoiled_[static_cast<std::size_t>(*row)] != 0)
      return status::error(detail::sequence_name(*row) +
                           "expected one that is whole, got one whose window a prefill had overwritten when it failed: "
                           "it can only be released");
    return row;
  }
  /// The row of a sequence that exists.
  [[nodiscard]] result<std::int32_t> find_any(sequence_id id) const {
    if (id.row < 0 || id.row >= rows_.count())
      return detail::expected_got("sequence", "a row from 0 to " + std::to_string(rows_.count() - 1), id.row);
    std::uint32_t const now = generations_[static_cast<std::size_t>(id.row)];
    if (now != id.generation || !is_live(id.row))
      return status::error("sequence in row " + std::to_string(id.row) + ": expected one that exists, got generation " +
                           std::to_string(id.generation) +
                           (is_live(id.row) ? " where now there is generation " + std::to_string(now)
                                            : " of a sequence that was released"));
    return id.row;
  }

  // ---- a sequence's life ----

  [[nodiscard]] status can_add() const {
    if (rows_.free() > 0) return {};
    return detail::expected_got("sequences", "at most " + std::to_string(rows_.count()) + " at one time",
                                std::int64_t{rows_.count()} + 1);
  }
  [[nodiscard]] std::int32_t take_row() { return rows_.acquire(); }
  void return_row(std::int32_t row) { rows_.release(row); }
  [[nodiscard]] sequence_id id_of(std::int32_t row) const { return {row, generations_[static_cast<std::size_t>(row)]}; }
  sequence_id add() {
    std::int32_t const row = take_row();
    for (sequence_group& g : groups_) g.add(row);
    position_base_[static_cast<std::size_t>(row)] = 0;
    spoiled_[static_cast<std::size_t>(row)] = 0;
    return id_of(row);
  }
  /// The window no longer holds what it should: from now on the sequence shows its pages alone, and find() refuses it.
  void spoil(std::int32_t row) {
    for (sequence_group& g : groups_) g.set_length(row, g.history(row));
    spoiled_[static_cast<std::size_t>(row)] = 1;
  }
  [[nodiscard]] status can_fork(std::int32_t row) const {
    if (status s = can_add(); !s.ok()) return s;
    return check_pages([&](sequence_group const& g) { return g.pages_for_fork(row); });
  }
  void fork(std::int32_t row, std::int32_t to) {
    for (sequence_group& g : groups_) g.fork(row, to);
    position_base_[static_cast<std::size_t>(to)] = position_base(row);
    spoiled_[static_cast<std::size_t>(to)] = 0;
  }
  void release(std::int32_t row) {
    for (sequence_group& g : groups_) g.release(row);
    ++generations_[static_cast<std::size_t>(row)];
    return_row(row);
  }
  [[nodiscard]] std::int32_t position_base(std::int32_t row) const {
    return position_base_[static_cast<std::size_t>(row)];
  }
  void set_position_base(std::int32_t row, std::int32_t base) { position_base_[static_cast<std::size_t>(row)] = base; }

  // ---- growth ----

  /// Whether sequence `row` may become so much longer, apart from pages and ring.
  [[nodiscard]] status check_length(std::int32_t row, std::int64_t tokens) const {
    std::string const name = detail::sequence_name(row);
    if (tokens < 0) return detail::expected_got(name + "tokens", "at least 0", tokens);
    std::int64_t const length = this->length(row) + tokens;
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max() / 2;
    if (length > most) return detail::expected_got(name + "length", "at most " + std::to_string(most), length);
    for (sequence_group const& g : groups_)
      if (g.geometry().sliding_window == 0 && length - g.first(row) > max_tokens_)
        return detail::expected_got(name + "length",
                                    "at most " + std::to_string(max_tokens_) + " tokens (max_tokens) from position " +
                                        std::to_string(g.first(row)) + " on",
                                    length - g.first(row));
    return {};
  }
  /// Whether the pages of these runs can be taken, and no sequence comes twice.
  [[nodiscard]] status can_reserve(std::span<token_run const> runs) {
    if (++mark_ == 0) {  // after 2^32 batches
      marks_.assign(marks_.size(), 0);
      mark_ = 1;
    }
    for (token_run const& run : runs) {
      auto const row = find(run.sequence);
      if (!row.ok()) return row.error();
      if (status s = check_length(*row, run.tokens); !s.ok()) return s;
      std::uint32_t& mark = marks_[static_cast<std::size_t>(*row)];
      if (mark == mark_) return status::error(detail::sequence_name(*row) + "expected once in a batch, got it twice");
      mark = mark_;
    }
    return check_pages([&](sequence_group const& g) {
      std::int64_t missing = 0;
      for (token_run const& run : runs)
        missing += g.missing_pages(run.sequence.row, length(run.sequence.row) + run.tokens);
      return missing;
    });
  }
  void reserve(std::int32_t row, std::int32_t tokens) {
    for (sequence_group& g : groups_) g.reserve(row, length(row) + tokens);
  }
  [[nodiscard]] status check_room(token_run const& run) const {
    for (sequence_group const& g : groups_)
      if (std::int32_t const row = run.sequence.row; run.tokens > g.room(row))
        return detail::expected_got(detail::sequence_name(row) + "new tokens",
                                    "at most " + std::to_string(g.room(row)) + " (a ring of " +
                                        std::to_string(g.geometry().ring_rows) + " rows that holds " +
                                        std::to_string(g.length(row) - g.history(row)) + ")",
                                    run.tokens);
    return {};
  }
  [[nodiscard]] status can_prefill(std::int32_t row, std::int32_t tokens) const {
    if (status s = check_length(row, tokens); !s.ok()) return s;
    return check_pages([&](sequence_group const& g) { return g.pages_for_prefill(row, length(row) + tokens); });
  }

 private:
  /// needed(group) pages are free in every group.
  template <class Needed>
  [[nodiscard]] status check_pages(Needed const& needed) const {
    for (sequence_group const& g : groups_)
      if (std::int64_t const pages = needed(g); pages > g.pages().free())
        return status::error("pages of " + std::to_string(g.geometry().page_tokens) + " tokens: expected " +
                             std::to_string(pages) + " free of " + std::to_string(g.pages().count()) + ", got " +
                             std::to_string(g.pages().free()));
    return {};
  }

  std::int32_t max_tokens_;
  id_pool rows_;
  std::pmr::vector<std::uint32_t> generations_;
  std::pmr::vector<std::int32_t> position_base_;
  std::pmr::vector<std::uint32_t> spoiled_;  // 1: only release() is left
  std::pmr::vector<std::uint32_t> marks_;    // mark_ of the last batch that a row was in
  std::uint32_t mark_ = 0;
  std::vector<sequence_group> groups_;
};

}  // namespace kvant::inline v0
