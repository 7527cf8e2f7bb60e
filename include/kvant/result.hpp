#pragma once

#include <optional>
#include <string>
#include <utility>

#include <kvant/status.hpp>

namespace kvant::inline v0 {

/// A value, or the status that says why there is none.
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : value_(std::move(value)) {}
  /// Precondition: an error.
  result(status error) : status_(std::move(error)) {}

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  [[nodiscard]] status const& error() const { return status_; }
  /// Empty on success.
  [[nodiscard]] std::string const& message() const { return status_.message(); }

  // Precondition: ok().
  [[nodiscard]] T& operator*() & { return *value_; }
  [[nodiscard]] T const& operator*() const& { return *value_; }
  [[nodiscard]] T&& operator*() && { return *std::move(value_); }
  [[nodiscard]] T* operator->() { return &*value_; }
  [[nodiscard]] T const* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  status status_;
};

}  // namespace kvant::inline v0
