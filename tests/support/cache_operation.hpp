#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "support/statistics.hpp"

namespace support {

/// One operation; `which` picks a sequence among those that live, `amount` how much: any numbers mean something, so that
/// a script may lose lines and still run.
struct cache_operation {
  enum kind_type {
    add,
    fork,
    release,
    append,
    append_all,
    prefill,
    commit,
    commit_all,
    truncate,
    draft,
    drop,
    reserve,
    move_base,
    kinds
  };
  kind_type kind = add;
  std::uint32_t which = 0, amount = 0;
  std::uint64_t content = 0;
};
inline std::string to_string(cache_operation const& o) {
  static char const* const names[] = {"add",        "fork",     "release", "append", "append_all", "prefill",  "commit",
                                      "commit_all", "truncate", "draft",   "drop",   "reserve",    "move_base"};
  return std::string("{") + names[o.kind] + ", " + std::to_string(o.which) + ", " + std::to_string(o.amount) + ", " +
         std::to_string(o.content) + "}";
}

inline std::vector<cache_operation> make_script(std::uint64_t seed, int steps) {
  using o = cache_operation;
  static constexpr o::kind_type often[] = {o::add,    o::fork,   o::fork,       o::release,    o::append,   o::append,
                                           o::append, o::append, o::append,     o::append_all, o::prefill,  o::prefill,
                                           o::commit, o::commit, o::commit_all, o::commit,     o::truncate, o::truncate,
                                           o::draft,  o::draft,  o::drop,       o::reserve,    o::move_base};
  generator random(seed);
  std::vector<o> script;
  for (int i = 0; i < steps; ++i) {
    auto const bits = random.bits();
    script.push_back({often[bits % std::size(often)], static_cast<std::uint32_t>(bits >> 8 & 0xffff),
                      static_cast<std::uint32_t>(bits >> 24 & 0xffff), random.bits()});
  }
  return script;
}

/// The script without what is not needed for it to fail.
template <class Fails>
std::vector<cache_operation> shrink(std::vector<cache_operation> script, Fails const& fails) {
  for (std::size_t chunk = script.size() / 2; chunk > 0; chunk /= 2)
    for (std::size_t at = 0; at + chunk <= script.size();) {
      auto shorter = script;
      shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(at),
                    shorter.begin() + static_cast<std::ptrdiff_t>(at + chunk));
      if (fails(shorter))
        script = shorter;
      else
        at += chunk;
    }
  return script;
}

}  // namespace support
