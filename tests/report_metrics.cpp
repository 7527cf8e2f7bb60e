#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "metrics.hpp"
#include "policy.hpp"
#include "support/catch.hpp"

namespace {

using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;
using vector = std::vector<double>;

report::running_mean mean_of(vector const& values) {
  report::running_mean mean;
  for (double const x : values) mean.add(x);
  return mean;
}

}  // namespace

TEST_CASE("cosine, relative error, KL and top-1 of vectors with known answers", "[report]") {
  REQUIRE_THAT(report::cosine(vector{3, 4}, vector{6, 8}), WithinRel(1, 1e-15));
  REQUIRE_THAT(report::cosine(vector{3, 4}, vector{-6, -8}), WithinRel(-1, 1e-15));
  REQUIRE(report::cosine(vector{1, 0}, vector{0, 5}) == 0);
  REQUIRE_THAT(report::cosine(vector{1, 0, 0}, vector{1, 1, 0}), WithinRel(std::sqrt(0.5), 1e-15));
  REQUIRE(report::cosine(vector{0, 0}, vector{0, 0}) == 1);
  REQUIRE(report::cosine(vector{0, 0}, vector{0, 1}) == 0);
  REQUIRE_THAT(report::cosine(vector{1e-160, 0}, vector{1e160, 0}), WithinAbs(0, 1));  // finite at least

  REQUIRE(report::relative_error(vector{3, 4}, vector{3, 4}) == 0);
  REQUIRE_THAT(report::relative_error(vector{3, 4}, vector{0, 0}), WithinRel(1, 1e-15));
  REQUIRE_THAT(report::relative_error(vector{3, 4}, vector{3, 9}), WithinRel(1, 1e-15));
  REQUIRE(report::relative_error(vector{0, 0}, vector{0, 0}) == 0);
  REQUIRE(report::relative_error(vector{0, 0}, vector{0, 1}) == 1);

  REQUIRE(report::kl_divergence(vector{0.25, 0.75}, vector{0.25, 0.75}) == 0);
  REQUIRE_THAT(report::kl_divergence(vector{0.5, 0.5}, vector{0.25, 0.75}),
               WithinRel(0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3), 1e-14));
  REQUIRE_THAT(report::kl_divergence(vector{0, 1}, vector{0.5, 0.5}), WithinRel(std::log(2.0), 1e-15));
  REQUIRE_THAT(report::kl_divergence(vector{1, 0}, vector{0, 1}), WithinRel(-std::log(2.2250738585072014e-308), 1e-12));

  REQUIRE(report::same_top1(vector{0.2, 0.5, 0.3}, vector{0.3, 0.4, 0.3}));
  REQUIRE_FALSE(report::same_top1(vector{0.2, 0.5, 0.3}, vector{0.2, 0.3, 0.5}));
  REQUIRE(report::same_top1(vector{0.4, 0.4, 0.2}, vector{0.5, 0.1, 0.4}));  // the first of equals
}

TEST_CASE("means over nothing are not a number, and none is hidden in a mean", "[report]") {
  REQUIRE(std::isnan(report::running_mean{}.value()));
  report::sample_measures all;
  for (auto const& heads : {std::vector<vector>{{1, 0.9}, {0.8, 1}}, std::vector<vector>{{1, 1}, {0.5, 0.7}}}) {
    auto& layer = all.layers.emplace_back();
    for (auto const& head : heads) {
      layer.head_cosine.push_back(mean_of(head));
      layer.output_cosine.add(mean_of(head));
    }
    layer.seconds = 1.5;
  }
  REQUIRE_THAT(all.all(&report::layer_measures::output_cosine).value(), WithinRel((3.7 + 3.2) / 8, 1e-14));
  REQUIRE_THAT(all.output_cosine_worst_layer(), WithinRel(3.2 / 4, 1e-14));
  REQUIRE_THAT(all.output_cosine_worst_head(), WithinRel(0.6, 1e-14));
  REQUIRE_THAT(all.layers[0].worst_head(), WithinRel(0.9, 1e-14));
  REQUIRE(all.seconds() == 3);
}

TEST_CASE("errors by position are means over the rows of equal ranges", "[report]") {
  report::sample_measures all;
  auto& layer = all.layers.emplace_back();
  layer.row_cosine = {mean_of({1}), mean_of({0.5}), mean_of({0.7, 0.9}), mean_of({0.25})};
  layer.row_kl = {mean_of({0}), mean_of({1}), mean_of({2, 4}), mean_of({3})};
  auto const bins = all.by_position(std::vector<std::int32_t>{0, 24, 49, 99}, 100, 4);
  REQUIRE(bins.size() == 3);  // none in [50, 75)
  REQUIRE((bins[0].from == 0 && bins[0].to == 25 && bins[0].rows == 2));
  REQUIRE((bins[1].from == 25 && bins[1].to == 50 && bins[1].rows == 1));
  REQUIRE((bins[2].from == 75 && bins[2].to == 100 && bins[2].rows == 1));
  REQUIRE_THAT(bins[0].cosine.value(), WithinRel(0.75, 1e-15));
  REQUIRE_THAT(bins[1].cosine.value(), WithinRel(0.8, 1e-15));
  REQUIRE_THAT(bins[1].kl.value(), WithinRel(3, 1e-15));
  REQUIRE_THAT(bins[2].cosine.value(), WithinRel(0.25, 1e-15));
}

TEST_CASE("a row sees in pages what the commit before it has quantized", "[report]") {
  REQUIRE(report::committed(0, 0, 64) == 0);
  REQUIRE(report::committed(63, 0, 64) == 0);
  REQUIRE(report::committed(64, 0, 64) == 64);
  REQUIRE(report::committed(191, 128, 64) == 0);
  REQUIRE(report::committed(192, 128, 64) == 64);
  REQUIRE(report::committed(1023, 128, 64) == 832);
  REQUIRE(report::committed(1023, 0, 128) == 896);
  static_assert(report::committed(100, 1000, 64) == 0);
}

TEST_CASE("Llama-3.1-8B at 32,768 tokens takes the bytes that the pages have", "[report]") {
  std::map<std::string, double> const expected{{"exact", 4096},
                                               {"turboquant_4bit", 1074},
                                               {"turboquant_3bit", 818},
                                               {"turboquant_2bit", 562},
                                               {"turboquant_1bit", 306},
                                               {"k4v2", 818},
                                               {"k3v2", 690},
                                               {"plain_turboquant_4bit", 1056},
                                               {"plain_turboquant_3bit", 800},
                                               {"plain_turboquant_2bit", 544},
                                               {"plain_turboquant_1bit", 288},
                                               {"kivi_2bit", 768},
                                               {"kivi_2bit_g64", 640},
                                               {"kivi_4bit", 1088},
                                               {"bonsai_1bit", 288},
                                               {"bonsai_1bit_rotated", 288}};
  for (auto const pairs : {report::rope_pairs::half_split, report::rope_pairs::adjacent}) {
    auto const all = report::all_policies(pairs);
    REQUIRE(all.size() == expected.size());
    for (auto const& p : all) {
      CAPTURE(p.name);
      REQUIRE(p.mib_llama31_8b_32k == expected.at(p.name));
      REQUIRE(p.page_tokens == (p.name == "kivi_4bit" ? 128 : 64));
      // The same from bits a value: 2^31 values of keys and values.
      REQUIRE(p.bits_per_value({8, 128, 128, p.page_tokens}) / 8 * 2048 == p.mib_llama31_8b_32k);
      bool const plain = p.name.starts_with("plain_") || p.name == "bonsai_1bit_rotated";
      REQUIRE(p.rotates_without_centering == plain);
      REQUIRE(p.has_factors == (p.kind == report::family::balanced));
    }
  }
}

TEST_CASE("what lies beside the pages is billed as a cache allocates it", "[report]") {
  auto const all = report::all_policies(report::rope_pairs::half_split);
  auto const& balanced = all.at(1);
  auto const& kivi_4bit = all.at(13);
  REQUIRE(balanced.name == "turboquant_4bit");
  REQUIRE(kivi_4bit.name == "kivi_4bit");
  // 128 KiB a token; W + P - 1 + 1 rows.
  REQUIRE(report::window_rows(balanced, {128, 4}) == 192);
  REQUIRE(report::window_mib(balanced, {128, 4}) == 24);
  REQUIRE(report::window_mib(balanced, {0, 0}) == 8);
  REQUIRE(report::window_rows(balanced, {1, 0}) == 80);
  REQUIRE(report::window_mib(kivi_4bit, {128, 4}) == 32);
  REQUIRE(report::sinks_mib({128, 4}) == 0.5);
  REQUIRE(report::sinks_mib({128, 0}) == 0);
  REQUIRE(report::factors_mib(balanced) == 32 * 8 * 128 * 2 / 1048576.0);
  REQUIRE(report::factors_mib(kivi_4bit) == 0);
}
