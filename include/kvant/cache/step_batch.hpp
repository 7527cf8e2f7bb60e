#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include <kvant/cache/sequence_book.hpp>
#include <kvant/cache/sequence_group.hpp>
#include <kvant/cache/views.hpp>
#include <kvant/status.hpp>

namespace kvant::inline v0 {

/// The batch of a step, in the caller's order: which rows of the new keys and values belong to which sequence.
class step_batch {
 public:
  step_batch(std::int32_t max_sequences, std::pmr::memory_resource* memory)
      : most_(max_sequences), numbers_(static_cast<std::size_t>(bytes(max_sequences) / 4), 0, memory) {}
  [[nodiscard]] static std::int64_t bytes(std::int64_t max_sequences) {
    return (6 * max_sequences + 1) * std::int64_t{sizeof(std::int32_t)};
  }

  /// Precondition: no sequence comes twice.
  void open(std::span<token_run const> batch) {
    count_ = static_cast<std::int32_t>(batch.size()), max_rows_ = 0, is_open_ = true;
    std::int32_t* const offsets = array(5);
    offsets[0] = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      array(0)[i] = batch[i].sequence.row;
      offsets[i + 1] = offsets[i] + batch[i].tokens;
      max_rows_ = std::max(max_rows_, batch[i].tokens);
    }
  }
  /// Once a sequence has changed otherwise, rows no longer have a place.
  void close() { is_open_ = false; }
  [[nodiscard]] bool is_open() const { return is_open_; }

  [[nodiscard]] std::int32_t const* row_offsets() const { return array(5); }
  [[nodiscard]] std::int32_t max_rows() const { return max_rows_; }
  /// The sequences of the batch as a group sees them; arrays that hold until the next call.
  [[nodiscard]] sequences_view sequences(sequence_group const& g) {
    for (std::int32_t i = 0; i < count_; ++i) {
      std::int32_t const row = array(0)[i];
      array(1)[i] = g.length(row), array(2)[i] = g.history(row), array(3)[i] = g.first(row),
      array(4)[i] = g.record(row);
    }
    return {array(1), array(2), array(3), nullptr, array(0), array(4), count_};
  }

 private:
  [[nodiscard]] std::int32_t* array(int a) { return numbers_.data() + std::int64_t{a} * most_; }
  [[nodiscard]] std::int32_t const* array(int a) const { return numbers_.data() + std::int64_t{a} * most_; }

  std::int32_t most_, count_ = 0, max_rows_ = 0;
  bool is_open_ = false;
  std::pmr::vector<std::int32_t> numbers_;  // rows (they are the slots), length, history, first, record, row offsets
};

/// A prefill of one sequence: holds its new pages until they are written, and returns them if that does not come. What
/// is then lost is a window that the new rows have overwritten.
class prefill_batch {
 public:
  /// Precondition: book.can_prefill(row, tokens).
  prefill_batch(sequence_book& book, std::int32_t row, std::int32_t tokens, std::pmr::memory_resource* memory)
      : book_(book), row_(row), length_(book.length(row) + tokens), offsets_{0, tokens} {
    groups_.reserve(book.groups().size());
    for (sequence_group const& g : book.groups()) {
      overwrites_ = overwrites_ || (g.length(row) > g.history(row) && tokens > g.room(row));
      auto const pages =
          static_cast<std::size_t>((g.history_at(row, length_) - g.history(row)) / g.geometry().page_tokens);
      groups_.push_back({{length_, g.history(row), g.first(row), row, g.record(row)},
                         std::pmr::vector<std::int32_t>(pages, -1, memory),
                         std::pmr::vector<std::int32_t>(pages, -1, memory)});
    }
    // From here on nothing allocates.
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      auto& [numbers, ids, ring] = groups_[i];
      sequence_group& g = book.groups()[i];
      g.take_prefill_pages(row, length_, ids.data());
      auto const begin = static_cast<std::size_t>(g.history(row) / g.geometry().page_tokens);
      for (std::size_t k = 0; k < ids.size(); ++k) ring[(begin + k) % ids.size()] = ids[k];
    }
  }
  prefill_batch(prefill_batch const&) = delete;
  ~prefill_batch() {
    if (finished_) return;
    for (std::size_t i = 0; i < groups_.size(); ++i)
      book_.groups()[i].return_prefill_pages(row_, length_, groups_[i].ids.data());
    if (written_ && overwrites_) book_.spoil(row_);
  }

  [[nodiscard]] block_table_view table(std::int32_t group) const {
    auto const& ring = groups_[static_cast<std::size_t>(group)].ring;
    auto const entries = static_cast<std::int32_t>(ring.size());
    return {ring.data(), entries, std::max(1, entries)};
  }
  [[nodiscard]] sequences_view sequences(std::int32_t group) const {
    std::int32_t const* const n = groups_[static_cast<std::size_t>(group)].numbers;
    return {n, n + 1, n + 2, nullptr, n + 3, n + 4, 1};
  }
  [[nodiscard]] std::int32_t const* row_offsets() const { return offsets_; }

  /// A layer has its new rows.
  void layer_written() { written_ = true; }
  void finish() {
    for (std::size_t i = 0; i < groups_.size(); ++i)
      book_.groups()[i].finish_prefill(row_, length_, groups_[i].ids.data());
    finished_ = true;
  }

 private:
  struct group_pages {
    std::int32_t numbers[5];              // length (with the new tokens), history, first, slot, record
    std::pmr::vector<std::int32_t> ids;   // of the pages from history on
    std::pmr::vector<std::int32_t> ring;  // the same as a block table: page `index` in entry index mod size
  };

  sequence_book& book_;
  std::int32_t row_, length_;
  std::int32_t offsets_[2];
  std::vector<group_pages> groups_;
  bool overwrites_ = false, written_ = false, finished_ = false;
};

/// A truncation of one sequence: what it means for each group, and the side records that it needs.
class truncation_batch {
 public:
  truncation_batch(sequence_book& book, std::int32_t row) : book_(book), row_(row) {}
  truncation_batch(truncation_batch const&) = delete;
  ~truncation_batch() {
    for (std::size_t i = 0; i < plans_.size() && !finished_; ++i)
      if (plans_[i].new_record >= 0) book_.groups()[i].return_record(plans_[i].new_record);
  }

  [[nodiscard]] status plan(std::int32_t length) {
    plans_.resize(book_.groups().size());
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      sequence_group& g = book_.groups()[i];
      truncation_plan& plan = plans_[i].plan;
      if (status s = g.plan_truncation(row_, length, detail::sequence_name(row_), plan); !s.ok()) return s;
      if (plan.drops_record) plans_[i].new_record = g.take_record();
    }
    return {};
  }
  [[nodiscard]] truncation_plan const& of(std::int32_t group) const {
    return plans_[static_cast<std::size_t>(group)].plan;
  }
  [[nodiscard]] std::int32_t record(std::int32_t group) const {
    return plans_[static_cast<std::size_t>(group)].new_record;
  }

  void finish() {
    for (std::size_t i = 0; i < plans_.size(); ++i)
      book_.groups()[i].truncate(row_, plans_[i].plan, plans_[i].new_record);
    finished_ = true;
  }

 private:
  struct planned {
    truncation_plan plan;
    std::int32_t new_record = -1;
  };
  sequence_book& book_;
  std::int32_t row_;
  std::vector<planned> plans_;
  bool finished_ = false;
};

}  // namespace kvant::inline v0
