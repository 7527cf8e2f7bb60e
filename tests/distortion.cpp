#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <kvant/format/lloyd_max_solver.hpp>

#include "support/catch.hpp"
#include "support/statistics.hpp"
#include "support/unit_fixture.hpp"

namespace {

using support::require_mean;
using support::sample_mean;
using support::side;

template <int Bits>
using plain = kvant::turboquant<Bits, kvant::plain_norm>;

/// By bits, for the dimensions of support::all_head_dims: the optimal codebook's relative squared error, plain scale.
constexpr double optimal[4][11] = {
    {0.35839, 0.35939, 0.36006, 0.36053, 0.36089, 0.36139, 0.36172, 0.36214, 0.36238, 0.36276, 0.36283},
    {0.11453, 0.11511, 0.11551, 0.11579, 0.11600, 0.11630, 0.11649, 0.11674, 0.11689, 0.11711, 0.11715},
    {0.03339, 0.03362, 0.03377, 0.03388, 0.03397, 0.03408, 0.03416, 0.03426, 0.03431, 0.03440, 0.03442},
    {0.00913, 0.00920, 0.00925, 0.00929, 0.00931, 0.00935, 0.00938, 0.00941, 0.00943, 0.00945, 0.00946}};

template <int Bits>
double exact_distortion(int dim) {
  using table = kvant::codebook_table<Bits>;
  std::vector<int> magnitudes;
  for (int i = 0; i < table::magnitudes; ++i) magnitudes.push_back(table::magnitude(i));
  return kvant::distortion_of(magnitudes, static_cast<double>(table::step), dim);
}

struct measured {
  sample_mean squared_error, cosine, error_norm, norm;  // of one vector: relative, -, absolute, absolute
};

/// `units` units of normal vectors through the page; keys and values are vectors alike.
template <kvant::element T>
measured measure(support::any_codec& codec, int dim, int units, std::uint64_t seed) {
  support::unit_of<T> unit{codec, {1, dim, dim, 0}};
  measured m;
  for (int i = 0; i < units; ++i) {
    unit.fill_normal(seed * 1000003u + static_cast<std::uint64_t>(i));
    unit.encode_and_decode();
    for (side const s : {side::key, side::value})
      for (int t = 0; t < unit.tokens(); ++t) {
        double const error = unit.relative_error(s, t), norm = unit.norm_of(s, t);
        m.squared_error.add(error * error), m.error_norm.add(error * norm), m.norm.add(norm);
        m.cosine.add(unit.cosine(s, t));
      }
  }
  return m;
}
template <class Key, class Value, kvant::element T>
measured measure(int dim, int units, std::uint64_t seed) {
  support::codec_of_pair<Key, Value, !std::is_same_v<T, float>> codec{"measured"};
  return measure<T>(codec, dim, units, seed);
}

template <int Bits>
struct width {
  static constexpr int bits = Bits;
};

template <int Bits, int Group>
struct kivi {
  using key = kvant::kivi_key<Bits, Group>;
  using value = kvant::kivi_value<Bits, Group>;
  static constexpr int bits = Bits, group = Group;
};

}  // namespace

TEMPLATE_TEST_CASE("turboquant has the expected error at every head size", "[distortion]", width<1>, width<2>, width<3>,
                   width<4>) {
  constexpr int bits = TestType::bits;
  for (std::size_t i = 0; i < support::all_head_dims.size(); ++i) {
    int const dim = support::all_head_dims[i];
    double const known = optimal[bits - 1][i], exact = exact_distortion<bits>(dim);
    CAPTURE(bits, dim, known, exact);
    auto const m = measure<plain<bits>, plain<bits>, float>(dim, dim < 256 ? 48 : 24, 1);
    require_mean(m.squared_error, known, 0.03 * known, 0.02 * known);
    require_mean(m.squared_error, exact, 0, 0.02 * known);
    require_mean(m.cosine, std::sqrt(1 - exact), 0.02 * exact, 0.01 * exact);  // small heads lie up to 1.5 % above
  }
}

TEMPLATE_TEST_CASE("the type of the elements does not change the error", "[distortion]", kvant::half, kvant::bfloat16,
                   float) {
  auto const dim = GENERATE(64, 128, 192);
  CAPTURE(dim);
  auto const one = measure<plain<1>, plain<3>, TestType>(dim, 48, 2),
             two = measure<plain<4>, plain<2>, TestType>(dim, 48, 3);
  // Keys and values of a pair have different widths here: their mean is what the page loses.
  require_mean(one.squared_error, (exact_distortion<1>(dim) + exact_distortion<3>(dim)) / 2, 0.003, 0.015);
  require_mean(two.squared_error, (exact_distortion<4>(dim) + exact_distortion<2>(dim)) / 2, 0.001, 0.005);
}

TEST_CASE("the mean norm of the error is what theory says", "[distortion]") {
  constexpr double known[] = {0.345, 0.188, 0.098};  // at 2, 3, 4 bits: large, and no fault
  std::array const all{measure<plain<2>, plain<2>, float>(128, 32, 4), measure<plain<3>, plain<3>, float>(128, 32, 4),
                       measure<plain<4>, plain<4>, float>(128, 32, 4)};
  for (std::size_t i = 0; i < all.size(); ++i) {
    double const norm = all[i].norm.mean();
    CAPTURE(i + 2, all[i].error_norm.mean() / norm);
    REQUIRE(4 * all[i].norm.standard_error() <= 0.01 * norm);
    require_mean(all[i].error_norm, known[i] * norm, 0.03 * known[i] * norm, 0.01 * known[i] * norm);
  }
}

TEST_CASE("every further bit lowers the error, at every head size", "[distortion]") {
  auto const dim = GENERATE(64, 80, 96, 112, 128, 160, 192, 256, 320, 512, 576, 768, 1024);
  CAPTURE(dim);
  int const units = dim < 512 ? 8 : 4;
  std::array const error{measure<plain<1>, plain<1>, float>(dim, units, 5).squared_error,
                         measure<plain<2>, plain<2>, float>(dim, units, 5).squared_error,
                         measure<plain<3>, plain<3>, float>(dim, units, 5).squared_error,
                         measure<plain<4>, plain<4>, float>(dim, units, 5).squared_error};
  for (std::size_t i = 0; i < error.size(); ++i) {
    REQUIRE(error[i].standard_error() <= 0.015 * error[i].mean());
    double const least = i == 1 ? 2.9 : 3.3;
    CAPTURE(i + 1, error[i].mean());
    if (i > 0) REQUIRE(error[i - 1].mean() >= least * error[i].mean());
  }
}

TEMPLATE_TEST_CASE("affine groups have the error of normal data", "[distortion]", (kivi<2, 32>), (kivi<2, 64>),
                   (kivi<2, 128>), (kivi<4, 32>), (kivi<4, 64>), (kivi<4, 128>)) {
  constexpr int bits = TestType::bits, group = TestType::group;
  constexpr double known = bits == 2 ? (group == 32   ? 0.154
                                        : group == 64 ? 0.203
                                                      : 0.250)
                                     : (group == 32   ? 0.0061
                                        : group == 64 ? 0.0080
                                                      : 0.0100);
  support::codec_of_pair<typename TestType::key, typename TestType::value> codec{"kivi"};
  support::unit_of<float> unit{codec, {1, 128, 128, 0}};
  sample_mean keys, values;  // of one unit: error energy over energy
  for (std::uint64_t i = 0; i < 24; ++i) {
    unit.fill_normal(600 + i);
    unit.encode_and_decode();
    for (side const s : {side::key, side::value}) {
      double error = 0, energy = 0;
      for (int t = 0; t < unit.tokens(); ++t) {
        double const norm = unit.norm_of(s, t);
        error += std::pow(unit.relative_error(s, t) * norm, 2), energy += norm * norm;
      }
      (s == side::key ? keys : values).add(error / energy);
    }
  }
  CAPTURE(bits, group);
  require_mean(keys, known, 0.015 * known, 0.02 * known);
  require_mean(values, known, 0.015 * known, 0.02 * known);
}

TEST_CASE("sign codes in groups of 128 have the error of one bit", "[distortion]") {
  auto const m = measure<kvant::q1_0<128>, kvant::q1_0<128>, float>(128, 48, 7);
  require_mean(m.squared_error, 0.3606, 0.002, 0.004);
  auto const rotated = measure<kvant::q1_0_rotated<128>, kvant::q1_0_rotated<128>, float>(128, 48, 8);
  require_mean(rotated.squared_error, 0.3606, 0.002, 0.004);
  auto const wide = measure<kvant::q1_0<128>, kvant::q1_0_rotated<128>, float>(512, 12, 9);
  require_mean(wide.squared_error, 0.3606, 0.002, 0.004);
}

TEMPLATE_TEST_CASE("one channel alone becomes flat: the worst input of a single Hadamard", "[distortion]", width<1>,
                   width<2>, width<3>, width<4>) {
  using table = kvant::codebook_table<TestType::bits>;
  constexpr double known[] = {0.0402, 0.2552, 0.0609, 0.0040};  // of the optimal codebooks at d = 128
  double nearest = 9;
  for (int i = 0; i < table::magnitudes; ++i)
    nearest = std::min(nearest, std::abs(1 - table::magnitude(i) * static_cast<double>(table::step)));
  REQUIRE_THAT(nearest * nearest,
               Catch::Matchers::WithinAbs(known[TestType::bits - 1], 0.08 * known[TestType::bits - 1]));

  support::codec_of_pair<plain<TestType::bits>, kvant::turboquant<TestType::bits, kvant::norm_corrected>> codec{"flat"};
  support::codec_of_pair<kvant::turboquant<TestType::bits>, kvant::turboquant<TestType::bits>> by_side{"flat"};
  auto const dim = GENERATE(from_range(support::all_head_dims));
  CAPTURE(TestType::bits, dim);
  support::unit_of<float> unit{codec, {1, dim, dim, 0}}, unit_by_side{by_side, {1, dim, dim, 0}};
  auto const one_channel = [dim](side, int t, int c) { return c == t * 7 % dim ? (t % 2 == 0 ? 3 : -0.01) : 0; };
  unit.fill(one_channel);
  unit_by_side.fill(one_channel);
  unit.encode_and_decode();
  unit_by_side.encode_and_decode();
  constexpr double half_rounding = 0x1.01p-11;
  double wrong_plain = 0, corrected = 0, least_squares = 0, unbiased = 0;
  for (int t = 0; t < unit.tokens(); ++t) {
    wrong_plain = std::max(wrong_plain, std::abs(unit.relative_error(side::key, t) - nearest));
    corrected = std::max(corrected, unit.relative_error(side::value, t));
    least_squares = std::max(least_squares, unit_by_side.relative_error(side::key, t));
    unbiased = std::max(unbiased, unit_by_side.relative_error(side::value, t));
  }
  REQUIRE(wrong_plain <= 2 * half_rounding);  // the scalar's rounding, times a level of up to 1.5
  REQUIRE(corrected <= half_rounding);
  REQUIRE(least_squares <= half_rounding);
  REQUIRE(unbiased <= half_rounding);
}
