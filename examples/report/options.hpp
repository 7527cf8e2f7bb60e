#pragma once

#include <span>
#include <stdexcept>
#include <string>

#include "run.hpp"

namespace report {

/// A command line that cannot be taken.
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct options {
  request wanted;
  std::string out = ".";
  bool help = false;
};

/// Without --kv: all files *.safetensors of `samples`. Throws usage_error with the option, what was expected and what
/// came.
[[nodiscard]] options parse_options(std::span<char const* const> arguments, std::string const& samples);

[[nodiscard]] std::string help_text();

}  // namespace report
