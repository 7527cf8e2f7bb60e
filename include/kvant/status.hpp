#pragma once

#include <string>
#include <utility>

namespace kvant::inline v0 {

/// Success, or a sentence that says what was expected and what came. Nothing was changed when it is an error.
class [[nodiscard]] status {
 public:
  status() = default;
  [[nodiscard]] static status error(std::string message) {
    status s;
    s.message_ = message.empty() ? std::string{"unspecified error"} : std::move(message);
    return s;
  }
  [[nodiscard]] bool ok() const { return message_.empty(); }
  /// Empty on success.
  [[nodiscard]] std::string const& message() const { return message_; }

 private:
  std::string message_;
};

}  // namespace kvant::inline v0
