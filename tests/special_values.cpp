#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <kvant/half.hpp>

#include "support/all_formats.hpp"
#include "support/catch.hpp"
#include "support/define_all_formats.hpp"
#include "support/statistics.hpp"
#include "support/unit_fixture.hpp"

using namespace support;
using kvant::bfloat16;
using kvant::half;

// ---- zeros and constants ----

TEST_CASE("a page of zeros decodes to zeros", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(support::all_head_dims));
  CAPTURE(codec->name, dim);
  unit_of<float> unit{*codec, {1, dim, dim, 0}};
  for (float const zero : {0.f, -0.f}) {
    unit.fill([zero](side, int, int) { return zero; });
    REQUIRE(unit.encode() == 0);
    unit.decode();
    REQUIRE(all_are(unit.decoded_keys, 0));
    REQUIRE(all_are(unit.decoded_values, 0));
    REQUIRE(unit.scalars_are_zero());
  }
}

TEST_CASE("a group of zeros among others decodes to zeros", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(some_head_dims));
  CAPTURE(codec->name, dim);
  unit_of<float> unit{*codec, {1, dim, dim, 0}};
  unit.fill_normal(2);
  constexpr int zero_token = 7, zero_channel = 11;
  for (side const s : sides) {
    for (int c = 0; c < dim; ++c) unit.at(s, zero_token, c) = 0;
    for (int t = 0; t < unit.tokens(); ++t) unit.at(s, t, zero_channel) = 0;
  }
  unit.encode_and_decode();
  for (side const s : sides) {
    side_facts const& f = unit.facts(s);
    int nonzero_in_token = 0, nonzero_in_channel = 0;
    double energy = 0;
    for (int c = 0; c < dim; ++c) {
      nonzero_in_token += unit.output(s, zero_token, c) != 0;
      energy += std::pow(static_cast<double>(unit.output(s, zero_token, c)), 2);
    }
    for (int t = 0; t < unit.tokens(); ++t) nonzero_in_channel += unit.output(s, t, zero_channel) != 0;
    if (f.exact || token_alone(f)) REQUIRE(nonzero_in_token == 0);
    if (f.exact || (f.along_tokens && !f.centered)) REQUIRE(nonzero_in_channel == 0);
    // The residual of a centered zero is minus the mean, an eighth of a token: coded, it cannot come to much.
    if (f.centered && !f.along_tokens) REQUIRE(std::sqrt(energy) <= 0.35 * std::sqrt(static_cast<double>(dim)));
  }
}

TEST_CASE("tokens that are all the same come back", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(support::all_head_dims));
  CAPTURE(codec->name, dim);
  unit_of<half> unit{*codec, {1, dim, dim, 0}};
  support::generator random{3};
  std::vector<float> vector(static_cast<std::size_t>(dim));
  for (float& v : vector) v = static_cast<float>(std::round(16 * random.normal()) / 16);  // a bfloat16 too
  unit.fill([&](side, int, int c) { return vector[static_cast<std::size_t>(c)]; });
  unit.encode_and_decode();
  for (side const s : sides) {
    side_facts const& f = unit.facts(s);
    double const worst = unit.worst_error(s);
    if (f.exact || (f.along_tokens && !f.centered))
      REQUIRE(worst == 0);  // constant groups
    else if (f.centered)
      REQUIRE(worst <= 0.012);  // what an int8 mean leaves
    else
      REQUIRE(worst <= 1.2 * ordinary_error(*codec, {1, dim, dim, 0}, s));
  }
}

TEST_CASE("tokens whose channels are all the same come back", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(support::all_head_dims));
  CAPTURE(codec->name, dim);
  unit_of<half> unit{*codec, {1, dim, dim, 0}};
  unit.fill([](side, int t, int) { return (t % 2 == 0 ? 1 : -1) * std::ldexp(1 + t % 8 / 8., t % 7 - 3); });
  unit.encode_and_decode();
  for (side const s : sides) {
    side_facts const& f = unit.facts(s);
    double const worst = unit.worst_error(s);
    CAPTURE(f.bits, worst);
    if (f.exact || (token_alone(f) && !f.rotates))
      REQUIRE(worst == 0);
    else if (token_alone(f))
      REQUIRE(worst <= 1.5 * ordinary_error(*codec, {1, dim, dim, 0}, s));
    else
      REQUIRE(std::isfinite(worst));
  }
}

// ---- small and large ----

TEST_CASE("directions are kept for norms from 1e-5 to 1e5", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(support::all_head_dims));
  auto const norm = GENERATE(1e-5, 1e5);
  CAPTURE(codec->name, dim, norm);
  unit_of<float> ordinary{*codec, {1, dim, dim, 0}}, unit{*codec, {1, dim, dim, 0}};
  ordinary.fill_normal_of_norm(4, std::sqrt(static_cast<double>(dim)));
  unit.fill_normal_of_norm(4, norm);
  ordinary.encode_and_decode();
  unit.encode_and_decode();
  REQUIRE(unit.scalars_finite());
  REQUIRE(unit.decoded_finite());
  for (side const s : sides) {
    side_facts const& f = unit.facts(s);
    bool const has_a_norm = f.exact || f.has_levels || f.bits == 1;
    // An affine step is a fraction of the range, and halves end at 2^-24: at 8 bits a norm of 1e-5 has no step.
    // A mean has steps too, of its largest over 127.
    double const lost = !has_a_norm ? 0.03 : f.centered ? 0.01 : 0.003;
    if (has_a_norm || norm > 1 || f.bits <= 4) REQUIRE(mean_cosine(unit, s) >= mean_cosine(ordinary, s) - lost);
  }
}

TEST_CASE("vectors too small for a half decode to zeros", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(some_head_dims));
  auto const size = GENERATE(1e-30, 1e-38, 1e-42);  // the last: subnormal floats
  CAPTURE(codec->name, dim, size);
  unit_of<float> unit{*codec, {1, dim, dim, 0}};
  unit.fill_normal(5, size);
  REQUIRE(unit.encode() == 0);
  unit.decode();
  for (side const s : sides) {
    side_facts const& f = unit.facts(s);
    if (!f.exact)
      REQUIRE(all_are(unit.decoded(s), 0));
    else if (f.bits == 32)
      REQUIRE(unit.decoded(s) == unit.rows(s));
    else
      REQUIRE(std::all_of(unit.decoded(s).begin(), unit.decoded(s).end(),
                          [&](float x) { return std::abs(x) <= 5 * size; }));
  }
}

TEMPLATE_TEST_CASE("subnormal elements are harmless", "[special]", half, bfloat16) {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(some_head_dims));
  CAPTURE(codec->name, dim);
  unit_of<TestType> unit{*codec, {1, dim, dim, 0}};
  support::generator random{6};
  float largest = 0;
  for (side const s : sides)
    for (TestType& x : unit.rows(s)) {
      x = TestType::from_bits(static_cast<std::uint16_t>(random.bits() & 0x807fu));  // subnormal in both
      largest = std::max(largest, std::abs(static_cast<float>(x)));
    }
  REQUIRE(unit.encode() == 0);
  unit.decode();
  REQUIRE(unit.scalars_finite());
  for (side const s : sides)
    REQUIRE(std::all_of(unit.decoded(s).begin(), unit.decoded(s).end(),
                        [&](float x) { return std::abs(x) <= 4 * largest; }));
}

TEST_CASE("huge elements give finite scalars and values", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(other_head_dims));
  auto const size = GENERATE(1e38f, 3.38953139e38f, 1e20f, 1e6f);
  CAPTURE(codec->name, dim, size);
  unit_of<bfloat16> unit{*codec, {1, dim, dim, 0}};
  support::generator random{7};
  unit.fill([&](side, int, int) { return random.bits() % 2 == 0 ? size : -size; });
  REQUIRE(unit.encode() == 0);
  unit.decode();
  REQUIRE(unit.scalars_finite());
  for (side const s : sides)
    if (!unit.facts(s).exact) {
      REQUIRE(all_finite(unit.decoded(s)));
      // Saturated, not lost; a mean saturates at 127 times the scalars, and hides them.
      if (!unit.facts(s).centered) REQUIRE(mean_cosine(unit, s) >= 0.5);
    }
  unit.fill([&](side, int, int) { return size; });  // and all of one sign: the largest means
  unit.factors.clear();
  unit.encode_and_decode();
  REQUIRE(unit.scalars_finite());
  for (side const s : sides)
    if (!unit.facts(s).exact) REQUIRE(all_finite(unit.decoded(s)));
}

TEST_CASE("huge vectors keep their direction where a scalar of their own saturates", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const size = GENERATE(1e6, 1e12, 1e25);
  constexpr int dim = 128;
  CAPTURE(codec->name, size);
  unit_of<float> ordinary{*codec, {1, dim, dim, 0}}, unit{*codec, {1, dim, dim, 0}};
  ordinary.fill_normal(8);
  unit.fill_normal(8, size);
  ordinary.encode_and_decode();
  unit.encode_and_decode();
  for (side const s : sides) {
    side_facts const& f = unit.facts(s);
    if (token_alone(f) && !f.exact && (f.has_levels || f.bits == 1))
      REQUIRE(mean_cosine(unit, s) >= mean_cosine(ordinary, s) - 0.003);  // several groups: all saturate alike
  }
}

// ---- not finite ----

TEST_CASE("what is not finite spoils its own group at most, and is counted", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(some_head_dims));
  auto const bad = GENERATE(values({not_a_number, infinity, -infinity}));
  CAPTURE(codec->name, dim, bad);
  constexpr int token = 5;
  constexpr std::array channels{3, 37};
  unit_of<float> clean{*codec, {1, dim, dim, 0}}, unit{*codec, {1, dim, dim, 0}}, zeroed{*codec, {1, dim, dim, 0}};
  clean.fill_normal(10);
  unit.keys = zeroed.keys = clean.keys, unit.values = zeroed.values = clean.values;
  for (side const s : sides)
    for (int const c : channels) unit.at(s, token, c) = bad, zeroed.at(s, token, c) = 0;
  std::int64_t expected = 0;
  for (side const s : sides) expected += unit.facts(s).exact ? 0 : 2;
  REQUIRE(unit.encode() == expected);
  clean.encode_and_decode();
  zeroed.encode_and_decode();
  unit.decode();
  if (expected == 4) REQUIRE(unit.bytes() == zeroed.bytes());

  for (side const s : sides) {
    side_facts const& f = unit.facts(s);
    int differing = 0, not_as_zero = 0;
    for (int t = 0; t < unit.tokens(); ++t)
      for (int c = 0; c < dim; ++c) {
        bool const same_channel = c == channels[0] || c == channels[1];
        bool const same_run = c / f.group_channels == channels[0] / f.group_channels ||
                              c / f.group_channels == channels[1] / f.group_channels;
        bool const in_group = f.exact          ? t == token && same_channel
                              : f.centered     ? true
                              : f.along_tokens ? same_channel && t / f.group_tokens == token / f.group_tokens
                                               : t == token && (f.rotates || same_run);
        auto const bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
        if (!in_group) differing += bits(unit.output(s, t, c)) != bits(clean.output(s, t, c));
        if (!f.exact) not_as_zero += bits(unit.output(s, t, c)) != bits(zeroed.output(s, t, c));
      }
    CAPTURE(f.bits);
    REQUIRE(differing == 0);
    REQUIRE(not_as_zero == 0);
    if (f.centered)
      for (int t = 0; t < unit.tokens(); ++t)
        if (t != token) REQUIRE(unit.relative_error(s, t) <= 1.1 * clean.worst_error(s));
    if (f.exact) {
      float const kept = unit.output(s, token, channels[0]);
      REQUIRE((std::isnan(bad) ? std::isnan(kept) : kept == bad));
    }
  }
}

TEST_CASE("a page of NaN is a page of zeros", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(some_head_dims));
  CAPTURE(codec->name, dim);
  unit_of<bfloat16> unit{*codec, {1, dim, dim, 0}};
  unit.fill([](side, int, int) { return not_a_number; });
  std::int64_t expected = 0;
  for (side const s : sides) expected += unit.facts(s).exact ? 0 : std::int64_t{unit.tokens()} * dim;
  REQUIRE(unit.encode() == expected);
  unit.decode();
  REQUIRE(unit.scalars_are_zero());
  for (side const s : sides)
    if (!unit.facts(s).exact) REQUIRE(all_are(unit.decoded(s), 0));
}

TEST_CASE("a balance factor that is not finite counts as 1", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const bad = GENERATE(values({not_a_number, infinity, -infinity}));
  constexpr int dim = 96;
  CAPTURE(codec->name, bad);
  unit_of<float> unit{*codec, {1, dim, dim, 0}};
  if (!unit.facts(side::key).balanced) {
    SUCCEED("no factors");
    return;
  }
  unit.fill_normal(11);
  unit.factors.assign(dim, half{2.f});
  unit.factors[7] = half{1.f};
  unit.encode_and_decode();
  auto const bytes = unit.bytes();
  auto const decoded = unit.decoded_keys;
  unit.factors[7] = half{bad};
  unit.encode_and_decode();
  REQUIRE(unit.bytes() == bytes);
  REQUIRE(unit.decoded_keys == decoded);
}

TEST_CASE("balance factors of any input are finite and at least 1e-4", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  constexpr int dim = 80;
  unit_of<float> unit{*codec, {1, dim, dim, 0}};
  CAPTURE(codec->name);
  if (!unit.facts(side::key).balanced) {
    SUCCEED("no factors");
    return;
  }
  support::generator random{12};
  unit.fill([&](side, int t, int c) {
    double const x = random.normal();
    if (c % 8 == 0) return t == 9 ? static_cast<double>(not_a_number) : x;
    if (c % 8 == 1) return 0.;
    if (c % 8 == 2) return 1e38 * x;
    if (c % 8 == 3) return 1e-30 * x;
    if (c % 8 == 4) return t == 9 ? static_cast<double>(infinity) : 5.;
    return 100 * x;
  });
  unit.make_factors(4);
  for (half const factor : unit.factors) {
    REQUIRE(static_cast<float>(factor) >= 0.99e-4f);
    REQUIRE(static_cast<float>(factor) <= 65504.f);
  }
}

TEST_CASE("any balance factors of an engine give finite scalars and values", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const size = GENERATE(1., 1e38);
  constexpr int dim = 576;
  CAPTURE(codec->name, size);
  unit_of<bfloat16> unit{*codec, {1, dim, dim, 0}};
  if (!unit.facts(side::key).balanced) {
    SUCCEED("no factors");
    return;
  }
  unit.fill_normal(12, size);
  for (int const bits : {1, 0x7bff, 0, 0x8000, 0xbc00}) {  // the least, the largest; 0, -0 and -1 are none
    unit.factors.assign(dim, half{1.f});
    for (std::size_t c = 0; c < unit.factors.size(); c += 2)
      unit.factors[c] = half::from_bits(static_cast<std::uint16_t>(bits));
    unit.encode_and_decode();
    CAPTURE(bits);
    REQUIRE(unit.scalars_finite());
    REQUIRE(all_finite(unit.decoded_keys));
  }
}
