#include <cstdint>
#include <string>
#include <vector>

#include <kvant/plan/plan.hpp>

#include "support/cache_script.hpp"
#include "support/catch.hpp"

namespace {

using kvant::layer;
using kvant::layer_options;
using kvant::sinks;
using kvant::window;

// Windows that are not multiples of pages, and all kinds of groups: exact, rotated, by channel and by token, one bit.
using mixed = kvant::plan<layer<kvant::exact<kvant::half>, kvant::exact<kvant::half>, window<0>, sinks<0>>,
                          layer<kvant::turboquant_key<3>, kvant::turboquant<3>, window<40>, sinks<4>>,
                          layer<kvant::kivi_key<2, 32>, kvant::kivi_value<2, 32>, window<40>, sinks<4>>,
                          layer<kvant::q1_0<128>, kvant::q1_0<128>, window<130>, sinks<7>>,
                          layer<kvant::turboquant_key<4>, kvant::turboquant<4>, window<128>, sinks<4>>>;
constexpr layer_options layers[] = {{{1, 16, 16, 64}, 0},
                                    {{2, 32, 32, 64}, 0},
                                    {{1, 32, 32, 64}, 100},
                                    {{1, 128, 128, 64}, 0},
                                    {{1, 48, 32, 128}, 300}};

kvant::cache_options options() {
  kvant::cache_options o;
  o.layers = layers, o.max_sequences = 5, o.max_tokens = 900, o.pool_tokens = 2000, o.max_uncommitted = 30;
  return o;
}

/// Runs a script, and fails with the seed and with what is left of it once nothing more can go.
void run(std::uint64_t seed, int steps) {
  auto const found = [](std::vector<support::cache_operation> const& script) {
    return support::cache_script<mixed>(options()).run(script);
  };
  auto const script = support::make_script(seed, steps);
  support::cache_script<mixed> whole(options());
  std::string const first = whole.run(script);
  if (first.empty()) {
    CAPTURE(seed, steps, whole.done(), whole.refused());
    REQUIRE(whole.done() > steps / 4);
    REQUIRE(whole.refused() > steps / 100);  // full pools, rings without room, context that was dropped
    return;
  }
  auto const least = support::shrink(script, [&](auto const& shorter) { return !found(shorter).empty(); });
  std::string text = "seed " + std::to_string(seed) + ": " + first + "\nshrunk: " + found(least) + "\n";
  for (auto const& operation : least) text += "  " + to_string(operation) + ",\n";
  FAIL(text);
}

}  // namespace

TEST_CASE("a cache does what a plain model does, operation by operation", "[cache]") {
  for (std::uint64_t seed = 20; seed < 23; ++seed) run(seed, 1000);
}

TEST_CASE("a cache does what a plain model does, in 100,000 operations", "[cache][.][long]") {
  for (std::uint64_t seed = 100; seed < 200; ++seed) run(seed, 1000);
}
