#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace kvant::inline v0::simd {

/// Memory from a multiple of 64 bytes on: stores of a vector that touch two cache lines cost several of one.
template <class T>
struct line_allocator {
  using value_type = T;
  static constexpr std::align_val_t alignment{64};
  line_allocator() = default;
  template <class U>
  line_allocator(line_allocator<U> const&) {}
  [[nodiscard]] T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), alignment)); }
  void deallocate(T* p, std::size_t) noexcept { ::operator delete(p, alignment); }
  friend bool operator==(line_allocator, line_allocator) { return true; }
};

template <class T>
using aligned_vector = std::vector<T, line_allocator<T>>;

}  // namespace kvant::inline v0::simd
