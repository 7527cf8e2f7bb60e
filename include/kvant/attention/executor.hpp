#pragma once

#include <concepts>
#include <cstdint>

namespace kvant::inline v0 {

/// Runs task(0), ..., task(tasks - 1), each once, in any order and on any threads, and returns when all are done. Tasks
/// do not throw and do not wait for each other.
template <class E>
concept executor = requires(E& e, std::int64_t tasks, void (*task)(std::int64_t)) {
  e(tasks, task);
};

/// One after the other, on the calling thread.
struct calling_thread {
  template <class Task>
  void operator()(std::int64_t tasks, Task&& task) const {
    for (std::int64_t i = 0; i < tasks; ++i) task(i);
  }
};

}  // namespace kvant::inline v0
