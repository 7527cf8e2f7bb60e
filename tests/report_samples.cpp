#include <map>
#include <string>
#include <vector>

#include "options.hpp"
#include "run.hpp"
#include "support/catch.hpp"

namespace {

/// Cosine of the attention output: at least so much.
struct bound {
  double mean, worst_layer, worst_head;
};

/// The samples with window 128 and 4 sinks, measured once for all cases of this file.
std::vector<report::sample_report> const& samples() {
  static auto const reports = [] {
    auto const o = report::parse_options(
        std::vector<char const*>{"--window", "128", "--sinks", "4", "--policies",
                                 "turboquant_4bit,turboquant_3bit,turboquant_2bit,plain_turboquant_4bit"},
        KVANT_SAMPLES_DIR);
    return report::run(o.wanted, {});
  }();
  return reports;
}

report::sample_measures const& measures_of(report::sample_report const& r, std::string const& policy) {
  for (auto const& line : r.results)
    if (line.what.name == policy) return line.measures;
  FAIL("no policy " << policy);
  return r.results.front().measures;
}

}  // namespace

TEST_CASE("the default pairs keep the attention of real models", "[report][samples]") {
  std::map<std::string, bound> const bounds{{"turboquant_4bit", {0.9985, 0.995, 0.985}},
                                            {"turboquant_3bit", {0.995, 0.98, 0.96}},
                                            {"turboquant_2bit", {0.98, 0.94, 0.8}}};
  REQUIRE(samples().size() == 2);
  for (auto const& r : samples()) {
    REQUIRE(r.data.tokens >= 1024);
    REQUIRE(r.data.rows == 64);
    REQUIRE(r.data.layers.size() >= 3);
    for (auto const& [policy, least] : bounds) {
      CAPTURE(r.data.name, policy);
      auto const& m = measures_of(r, policy);
      CHECK(m.all(&report::layer_measures::output_cosine).value() >= least.mean);
      CHECK(m.output_cosine_worst_layer() >= least.worst_layer);
      CHECK(m.output_cosine_worst_head() >= least.worst_head);
    }
  }
}

TEST_CASE("rotation alone fails where the mean carries the keys, and the report says so", "[report][samples]") {
  auto const& qwen = samples().at(0);
  auto const& smol = samples().at(1);
  REQUIRE(qwen.data.name == "qwen2.5-coder-1.5b");
  auto const m = measures_of(qwen, "plain_turboquant_4bit");
  REQUIRE(m.layers[0].layer == 0);
  CHECK(m.layers[0].output_cosine.value() < 0.8);
  CHECK(m.output_cosine_worst_layer() == m.layers[0].output_cosine.value());
  CHECK(qwen.energies[0].in_mean > 0.999);
  REQUIRE(qwen.warnings.size() == 1);
  CHECK(qwen.warnings[0].starts_with("layer 0: the mean over tokens carries 0.9997 of the key energy"));
  CHECK(qwen.warnings[0].find(": plain_turboquant_4bit. ") != std::string::npos);
  for (auto const& e : smol.energies) CHECK(e.in_mean < report::most_energy_in_mean);
  CHECK(smol.warnings.empty());
}
