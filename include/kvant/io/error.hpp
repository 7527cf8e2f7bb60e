#pragma once

#include <stdexcept>

namespace kvant::inline v0 {

/// A file or text that cannot be taken: says which one, what was expected and what came.
struct io_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace kvant::inline v0
