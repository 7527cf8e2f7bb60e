#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

namespace kvant::inline v0 {

/// The ids 0 .. count - 1 with reference counts: pages, side records, rows of sequences. Every call takes constant time,
/// and none but the constructor allocates.
class id_pool {
 public:
  id_pool(std::int32_t count, std::pmr::memory_resource* memory)
      : references_(static_cast<std::size_t>(count), 0, memory), free_ids_(static_cast<std::size_t>(count), 0, memory) {
    for (std::int32_t i = 0; i < count; ++i) free_ids_[static_cast<std::size_t>(i)] = count - 1 - i;
    free_ = count;
  }
  [[nodiscard]] static std::int64_t bytes(std::int64_t count) { return count * 2 * std::int64_t{sizeof(std::int32_t)}; }

  /// An id with one reference; -1 where none is free. The id released last comes first.
  [[nodiscard]] std::int32_t acquire() {
    if (free_ == 0) return -1;
    std::int32_t const id = free_ids_[static_cast<std::size_t>(--free_)];
    ++references(id);
    return id;
  }
  /// Precondition of both: the id has a reference.
  void retain(std::int32_t id) {
    if (references(id)++ == 1) ++shared_;
  }
  void release(std::int32_t id) {
    std::int32_t const left = --references(id);
    if (left == 1) --shared_;
    if (left == 0) free_ids_[static_cast<std::size_t>(free_++)] = id;
  }
  [[nodiscard]] bool is_shared(std::int32_t id) const { return references_[static_cast<std::size_t>(id)] > 1; }

  [[nodiscard]] std::int32_t count() const { return static_cast<std::int32_t>(references_.size()); }
  [[nodiscard]] std::int32_t free() const { return free_; }
  [[nodiscard]] std::int32_t used() const { return count() - free_; }
  [[nodiscard]] std::int32_t shared() const { return shared_; }  // ids with more than one reference

 private:
  std::int32_t& references(std::int32_t id) { return references_[static_cast<std::size_t>(id)]; }

  std::pmr::vector<std::int32_t> references_, free_ids_;
  std::int32_t free_ = 0, shared_ = 0;
};

}  // namespace kvant::inline v0
