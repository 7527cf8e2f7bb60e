#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <kvant/format/rotation.hpp>

#include "support/all_formats.hpp"
#include "support/catch.hpp"
#include "support/unit_fixture.hpp"

using namespace support;

TEST_CASE("a large channel leaves the others what they are", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(other_head_dims));
  auto const ratio = GENERATE(20., 1000.);
  auto const constant = GENERATE(false, true);
  CAPTURE(codec->name, dim, ratio, constant);
  constexpr int large = 5;
  unit_of<float> ordinary{*codec, {1, dim, dim, 0}}, unit{*codec, {1, dim, dim, 0}};
  ordinary.fill_normal(9);
  ordinary.encode_and_decode();
  unit.keys = ordinary.keys, unit.values = ordinary.values;
  for (side const s : sides)
    for (int t = 0; t < unit.tokens(); ++t)
      unit.at(s, t, large) = constant ? static_cast<float>(ratio) : static_cast<float>(ratio) * unit.at(s, t, large);
  unit.encode_and_decode();
  REQUIRE(unit.scalars_finite());
  REQUIRE(unit.decoded_finite());
  for (side const s : sides) {
    side_facts const& f = unit.facts(s);
    double error = 0, energy = 0, error_beside = 0, energy_beside = 0;  // of a page; beside: of the other channels
    for (int t = 0; t < unit.tokens(); ++t)
      for (int c = 0; c < dim; ++c) {
        auto const x = static_cast<double>(unit.input(s, t, c));
        double const off = std::pow(static_cast<double>(unit.output(s, t, c)) - x, 2);
        error += off, energy += x * x;
        if (c != large) error_beside += off, energy_beside += x * x;
      }
    double const worst = unit.worst_error(s), before = ordinary.worst_error(s);
    double const of_page = std::sqrt(error / energy), beside = std::sqrt(error_beside / energy_beside);
    CAPTURE(f.bits, worst, of_page, beside, before);
    // A nearly flat vector: 0.49 off at 2 bits and the plain scale, else less. Unrotated groups of a token keep their
    // mean (signs) or the large channel, and lose the others in half a step (affine).
    double const flat = f.rotates || f.along_tokens || f.exact ? std::max(0.52, 1.5 * before) : f.bits == 1 ? 1 : 1.3;
    REQUIRE(of_page <= flat);
    if (token_alone(f)) REQUIRE(worst <= flat);  // others share a range or a mean with tokens that are larger
    if (f.exact || (f.along_tokens && !f.centered)) REQUIRE(beside <= 1.2 * before);  // their groups are their own
    if (f.centered && constant) REQUIRE(beside <= 1.5 * before);                      // the mean takes it off
  }
}

TEST_CASE("a small channel survives beside a large one", "[special]") {
  // Every other pair of tokens has nothing but 1e-4 in one channel, the rest +-1 in another, so that its mean is 0.
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(support::all_head_dims));
  CAPTURE(codec->name, dim);
  constexpr int small = 3, large = 50;
  unit_of<float> unit{*codec, {1, dim, dim, 0}};
  unit.fill([](side, int t, int c) {
    double const sign = t % 2 == 0 ? 1 : -1;
    return c == small ? sign * 1e-4 : c == large && t % 4 < 2 ? sign : 0;
  });
  unit.encode_and_decode();
  for (side const s : sides) {
    side_facts const& f = unit.facts(s);
    int lost = 0;
    double worst = 0;
    for (int t = 0; t < unit.tokens(); ++t)
      if (t % 4 >= 2) {
        double const decoded = static_cast<double>(unit.output(s, t, small)),
                     given = static_cast<double>(unit.input(s, t, small));
        lost += decoded * given <= 0;
        worst = std::max(worst, std::abs(decoded / given - 1));
      }
    CAPTURE(f.bits, worst);
    REQUIRE(lost == 0);
    if (f.bits > 1 || f.rotates || f.exact) REQUIRE(worst <= 0.5);  // unrotated signs spread it over the group
  }
}

TEST_CASE("one channel alone comes back", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(support::all_head_dims));
  CAPTURE(codec->name, dim);
  unit_of<float> unit{*codec, {1, dim, dim, 0}};
  unit.fill([dim](side, int t, int c) { return c == t * 11 % dim ? (c % 3 == 0 ? -2 : 2) : 0; });
  unit.encode_and_decode();
  for (side const s : sides) {
    side_facts const& f = unit.facts(s);
    double const worst = unit.worst_error(s);
    CAPTURE(f.bits, worst);
    if (f.exact)
      REQUIRE(worst == 0);
    else if (f.centered)
      REQUIRE(worst <= 0.75);
    else if (f.along_tokens || (!f.rotates && f.bits > 1))
      REQUIRE(worst <= 0.005);  // both ends of a range are levels
    else if (!f.rotates)
      REQUIRE(worst <= 1);  // signs: a mean of 2 / G everywhere
    else if (f.has_levels && codec->name == "exact<float>, plain norm")
      REQUIRE(worst <= 0.495);
    else
      REQUIRE(worst <= 0x1.01p-11);  // flat: one level, and its scalar rounded to half
  }
}

TEST_CASE("a row of the Hadamard matrix puts all into one coordinate: error by formula", "[special]") {
  // x = S H row, so the rotated vector is sqrt(d) in one slot and exactly 0 elsewhere: the largest level there, +- the
  // least elsewhere. A worst case, not a fault: at one bit least squares has D = 1 - 1 / d, unbiased d - 1.
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(support::all_head_dims));
  CAPTURE(codec->name, dim);
  unit_of<float> unit{*codec, {1, dim, dim, 0}};
  unit.fill([dim](side, int t, int c) {
    bool const negative = kvant::hadamard_negative(dim, t * 9 % dim, kvant::slot_of(c, dim));
    return kvant::negative_sign(kvant::randomized_hadamard<>::seed, c) != negative ? -1 : 1;
  });
  unit.encode_and_decode();
  REQUIRE(unit.scalars_finite());
  REQUIRE(unit.decoded_finite());
  auto const levels_of = [](int bits) {
    auto const table = kvant::detail::compiled_codebook_of(bits);
    return std::pair{static_cast<double>(table.magnitudes[0]),
                     static_cast<double>(table.magnitudes[(1 << (bits - 1)) - 1])};
  };
  for (side const s : sides) {
    side_facts const& f = unit.facts(s);
    if (!token_alone(f) || !f.has_levels || codec->name.find("norm") != std::string::npos) continue;
    auto const [least, largest] = levels_of(f.bits);
    double const noise = (dim - 1) * least * least, signal = largest * largest;
    double const expected = std::sqrt(s == side::key ? noise / (signal + noise) : noise / signal);
    CAPTURE(f.bits, expected);
    for (int t = 0; t < unit.tokens(); ++t)
      REQUIRE_THAT(unit.relative_error(s, t), Catch::Matchers::WithinRel(expected, 0.002));
  }
}
