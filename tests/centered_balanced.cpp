#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <kvant/cache/page_codec.hpp>
#include <kvant/plan/layer.hpp>

#include "support/catch.hpp"
#include "support/centered_page.hpp"
#include "support/unit_reference.hpp"

namespace {

using kvant::balanced;
using kvant::centered;
using kvant::half;
using support::at;
using support::dot;
using support::energy;
using support::make_offset;
using support::make_rows;
using support::make_spread;
using support::page;
using support::page_tokens;
using support::plain_exact;
using support::scores;

/// Codecs that lose nothing, so that what the wrappers do is algebra alone.
using rotated_exact =
    kvant::format<kvant::term<kvant::randomized_hadamard<>, kvant::per_token<>, kvant::exact_codec<float>>>;
template <class Pairs>
using balanced_exact = balanced<centered<rotated_exact>, Pairs>;

// ---- types ----

using keys_4bit = kvant::turboquant_key<4>;
static_assert(keys_4bit::is_centered && keys_4bit::is_balanced && kvant::kv_format<keys_4bit>);
static_assert(std::is_same_v<keys_4bit::inner, centered<kvant::turboquant<4>>>);
static_assert(std::is_same_v<keys_4bit::pairs, kvant::half_split_pairs>);
static_assert(centered<kvant::turboquant<4>>::is_centered && !centered<kvant::turboquant<4>>::is_balanced);
static_assert(!kvant::turboquant<4>::is_centered && !kvant::is_exact<centered<plain_exact>>);
template <class... Layers>
constexpr bool values_are_plain = ((!Layers::value::is_centered && !Layers::value::is_balanced) && ...);
static_assert(
    values_are_plain<kvant::turboquant_4bit, kvant::turboquant_3bit, kvant::turboquant_2bit, kvant::turboquant_1bit,
                     kvant::k4v2, kvant::k3v2, kvant::kivi_4bit, kvant::bonsai_1bit_rotated>);

template <class Pairs>
constexpr bool pairs_are_mutual(int dim) {
  for (int c = 0; c < dim; ++c) {
    int const partner = Pairs::partner(c, dim);
    if (partner < 0 || partner >= dim || Pairs::partner(partner, dim) != c) return false;
  }
  return true;
}
static_assert(pairs_are_mutual<kvant::half_split_pairs>(80) && kvant::half_split_pairs::partner(3, 80) == 43);
static_assert(pairs_are_mutual<kvant::adjacent_pairs>(80) && kvant::adjacent_pairs::partner(3, 80) == 2);
static_assert(pairs_are_mutual<kvant::single_channels>(80) && kvant::single_channels::partner(3, 80) == 3);
using first_64_split = kvant::first_pairs<64, kvant::half_split_pairs>;
using first_32_adjacent = kvant::first_pairs<32, kvant::adjacent_pairs>;
static_assert(pairs_are_mutual<first_64_split>(576) && first_64_split::partner(3, 576) == 35);
static_assert(first_64_split::partner(64, 576) == 64 && first_32_adjacent::partner(31, 64) == 30);

/// The mean of each channel over unmasked tokens, in double.
std::vector<double> channel_means(std::vector<float> const& rows, int dim, int masked) {
  std::vector<double> mean(at(dim));
  for (int i = masked * dim; i < page_tokens * dim; ++i)
    mean[at(i % dim)] += static_cast<double>(rows[at(i)]) / (page_tokens - masked);
  return mean;
}

/// The factor of balanced keys, in double: the square root of the root mean square residual of the channel's pair, which
/// counts as no less than 2^-9 of the pair's larger mean.
template <class Pairs>
double factor_by_definition(std::vector<float> const& rows, int dim, int masked, int channel) {
  auto const mean = channel_means(rows, dim, masked);
  double sum = 0, largest = 0;
  for (int const c : {channel, Pairs::partner(channel, dim)}) {
    largest = std::max(largest, std::abs(mean[at(c)]));
    for (int token = masked; token < page_tokens; ++token)
      sum += std::pow(static_cast<double>(rows[at(token * dim + c)]) - mean[at(c)], 2);
  }
  return std::max(1e-4, std::sqrt(std::max(std::sqrt(sum / (2.0 * (page_tokens - masked))), largest / 512)));
}

/// Squared error of the decoded keys.
template <class Page>
double error(Page const& p, std::vector<float> const& rows) {
  double sum = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) sum += std::pow(p.keys[i] - static_cast<double>(rows[i]), 2);
  return sum;
}

}  // namespace

TEMPLATE_TEST_CASE("centering and balancing lose nothing where the codec loses nothing", "[centered]",
                   centered<rotated_exact>, centered<plain_exact>, balanced_exact<kvant::half_split_pairs>,
                   balanced_exact<kvant::adjacent_pairs>, balanced_exact<kvant::single_channels>,
                   balanced_exact<first_64_split>, balanced_exact<first_32_adjacent>) {
  auto const dim = GENERATE(64, 80, 128, 192, 576);
  auto const norm = GENERATE(0.0, 600.0);
  auto const masked = GENERATE(0, 4);
  CAPTURE(dim, norm, masked);
  auto const offset = make_offset(2, dim, norm);
  auto rows = make_rows(1, make_spread(3, dim), offset);
  for (int i = 0; i < masked * dim; ++i) rows[at(i)] *= 1000.f;  // sinks
  page<TestType> const p(rows, masked);

  double worst_key = 0, worst_score = 0, largest_score = 0, largest = 0;
  auto const factor = [&](int c) {
    return TestType::is_balanced ? static_cast<double>(static_cast<float>(p.factors[at(c)])) : 1.0;
  };
  for (int i = masked * dim; i < page_tokens * dim; ++i)
    largest = std::max(largest, std::abs(static_cast<double>(rows[at(i)])) / factor(i % dim));
  for (int i = masked * dim; i < page_tokens * dim; ++i)
    worst_key =
        std::max(worst_key, std::abs(p.keys[at(i)] - static_cast<double>(rows[at(i)])) / (factor(i % dim) * largest));
  for (std::uint64_t seed = 10; seed < 14; ++seed) {
    auto const q = make_offset(seed, dim, 10);
    auto const got = scores(p, q);
    for (int token = masked; token < page_tokens; ++token) {
      double const expected = dot(q.data(), rows.data() + token * dim, dim);
      largest_score = std::max(largest_score, std::abs(expected));
      worst_score = std::max(worst_score, std::abs(got[at(token)] - expected));
    }
  }
  REQUIRE(worst_key <= 5e-7);
  REQUIRE(largest_score > 1);
  REQUIRE(worst_score <= 1e-5 * largest_score);
}

TEMPLATE_TEST_CASE("balance factors are what the definition says", "[balanced]", kvant::half_split_pairs,
                   kvant::adjacent_pairs, kvant::single_channels, first_64_split, first_32_adjacent) {
  auto const dim = GENERATE(64, 96, 576);
  auto const masked = GENERATE(0, 4, 63);
  CAPTURE(dim, masked);
  auto rows = make_rows(5, make_spread(6, dim), make_offset(7, dim, 600));
  for (int token = 0; token < page_tokens; ++token)  // a pair that does not move
    rows[at(token * dim + 5)] = rows[at(token * dim + TestType::partner(5, dim))] = 0.5f;
  page<balanced_exact<TestType>> const p(rows, masked);
  int faults = 0, split = 0;
  for (int c = 0; c < dim; ++c) {
    double const expected = factor_by_definition<TestType>(rows, dim, masked, c);
    faults += support::is_rounded(static_cast<double>(static_cast<float>(p.factors[at(c)])), expected, 1e-5 * expected)
                  ? 0
                  : 1;
    split += p.factors[at(c)] == p.factors[at(TestType::partner(c, dim))] ? 0 : 1;
  }
  REQUIRE(faults == 0);
  REQUIRE(split == 0);
  REQUIRE(p.factors[5] == half{0.03125f});  // constant at 0.5: sqrt(0.5 / 512)
}

TEST_CASE("balance factors are finite and positive whatever the keys are", "[balanced]") {
  using format = balanced_exact<kvant::half_split_pairs>;
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  int const dim = 64;
  auto rows = make_rows(5, make_spread(6, dim), make_offset(7, dim, 0)), cleaned = rows;
  for (int token = 0; token < page_tokens; ++token) {
    rows[at(token * dim + 1)] = token % 2 == 0 ? infinity : nan;
    cleaned[at(token * dim + 1)] = 0;
    rows[at(token * dim + 2)] = token % 2 == 0 ? 3e38f : -3e38f;
    rows[at(token * dim + 3)] = 1e-40f;
    rows[at(token * dim + 35)] = 0;
  }
  rows[at(7 * dim + 4)] = nan, cleaned[at(7 * dim + 4)] = 0;
  page<format> const p(rows);
  for (half const f : p.factors) REQUIRE((static_cast<float>(f) >= 9.9e-5f && static_cast<float>(f) <= 65504.f));
  for (int const c : {0, 1, 4, 31, 33, 36, 63}) {
    double const expected = factor_by_definition<kvant::half_split_pairs>(cleaned, dim, 0, c);
    REQUIRE(support::is_rounded(static_cast<double>(static_cast<float>(p.factors[at(c)])), expected, 1e-5 * expected));
  }
  REQUIRE(p.factors[2] == half{65504.f});
  REQUIRE(p.factors[3] == half{1e-4f});
}

TEST_CASE("a given factor that is no positive number is 1", "[balanced]") {
  int const dim = 64;
  auto const rows = make_rows(5, make_spread(6, dim), make_offset(7, dim, 0));
  std::vector<half> const ones(at(dim), half{1.f});
  auto const bits = GENERATE(0x7e00, 0x7c00, 0xfc00, 0x0000, 0x8000, 0xbc00);  // NaN, infinities, zeros, -1
  auto given = ones;
  given[3] = half::from_bits(static_cast<std::uint16_t>(bits));
  CAPTURE(bits);
  page<keys_4bit> const expected(rows, 0, ones), p(rows, 0, given);
  bool const same_bytes = p.unit == expected.unit, same_keys = p.keys == expected.keys;
  REQUIRE(same_bytes);
  REQUIRE(same_keys);
}

TEMPLATE_TEST_CASE("sinks take no part in means, factors and codes", "[centered][balanced]",
                   centered<kvant::turboquant<3>>, (centered<kvant::kivi_key<2, 64>>), keys_4bit,
                   balanced_exact<kvant::adjacent_pairs>) {
  int const dim = 128, masked = 5;
  auto rows = make_rows(8, make_spread(9, dim), make_offset(10, dim, 50));
  page<TestType> const p(rows, masked);
  for (int c = 0; c < dim; ++c) rows[at(c)] = 6e4f, rows[at(4 * dim + c)] = std::numeric_limits<float>::quiet_NaN();
  page<TestType> const other(rows, masked);
  REQUIRE(other.unit == p.unit);
  REQUIRE(other.factors == p.factors);
  REQUIRE(page<TestType>(rows, masked - 1).unit != p.unit);
}

TEMPLATE_TEST_CASE("codes are those of the residual of the mean as stored", "[centered]",
                   centered<kvant::turboquant<4>>, centered<kvant::turboquant<2>>, keys_4bit,
                   (centered<kvant::kivi_key<2, 64>>), (centered<kvant::kivi_key<4, 32>>),
                   centered<kvant::q1_0_rotated<128>>) {
  auto const norm = GENERATE(0.0, 20.0, 600.0);
  auto const masked = GENERATE(0, 4);
  CAPTURE(norm, masked);
  auto const rows = make_rows(11, make_spread(12, 128), make_offset(13, 128, norm));
  page<TestType> const p(rows, masked);
  REQUIRE(p.key_side().faults(rows, masked, p.factors.data()) == 0);
}

TEMPLATE_TEST_CASE("a bias costs centered keys its rounding at most", "[centered]", kvant::turboquant<4>,
                   kvant::turboquant<3>, kvant::turboquant<2>) {
  auto const dim = GENERATE(64, 128, 256);
  struct bias {
    double ratio;  // to the rms of the residual
    bool one_channel;
    double rounding;  // most energy that the rounding of the mean adds, as a share
  };
  auto const b = GENERATE(bias{0, false, 0.001}, bias{5, false, 0.005}, bias{50, true, 0.02}, bias{50, false, 0.25});
  CAPTURE(dim, b.ratio, b.one_channel);
  double coded = 0, rounding = 0, error_centered = 0, error_residual = 0, error_plain = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto const offset = make_offset(seed, dim, b.ratio * std::sqrt(dim), b.one_channel);
    auto const rows = make_rows(100 + seed, std::vector<double>(at(dim), 1.0), offset);
    auto const mean = channel_means(rows, dim, 0);
    std::vector<float> residual;
    for (std::size_t i = 0; i < rows.size(); ++i)
      residual.push_back(static_cast<float>(static_cast<double>(rows[i]) - mean[i % at(dim)]));
    page<centered<TestType>> const p(rows);
    page<TestType> const plain_residual(residual), plain(rows);
    auto rest = support::rotation_matrix<kvant::randomized_hadamard<>>::of(dim).rotate(mean.data());
    for (int c = 0; c < dim; ++c) rest[at(c)] -= p.key_side().mean(c);
    coded += energy(std::vector<double>(residual.begin(), residual.end()));
    rounding += page_tokens * energy(rest);
    error_centered += error(p, rows);
    error_residual += error(plain_residual, residual);
    error_plain += error(plain, rows);
  }
  CAPTURE(coded, rounding, error_centered, error_residual, error_plain);
  REQUIRE(rounding <= b.rounding * coded);
  REQUIRE(std::abs(error_centered / (coded + rounding) / (error_residual / coded) - 1) <= 0.03);
  if (b.rounding <= 0.02) REQUIRE(std::abs(error_centered / error_residual - 1) <= 0.03);
  if (b.ratio == 50) REQUIRE(error_plain > 100 * error_centered);  // what centering is for
}

TEMPLATE_TEST_CASE("a page of equal keys decodes to its mean", "[centered]", centered<rotated_exact>,
                   centered<kvant::turboquant<4>>, centered<kvant::turboquant<1>>, keys_4bit,
                   (centered<kvant::kivi_key<2, 32>>)) {
  auto const masked = GENERATE(0, 4);
  int const dim = 128;
  auto const offset = make_offset(14, dim, 30);
  page<TestType> const p(make_rows(1, std::vector<double>(at(dim)), offset), masked,
                         std::vector<half>(at(dim), half{2.f}));
  double error = 0, unequal = 0;
  for (int i = masked * dim; i < page_tokens * dim; ++i) {
    unequal += p.keys[at(i)] == p.keys[at(masked * dim + i % dim)] ? 0 : 1;
    error += std::pow(p.keys[at(i)] - offset[at(i % dim)], 2);
  }
  double const share = error / (page_tokens - masked) / energy(offset);
  CAPTURE(share);
  REQUIRE(unequal == 0);
  REQUIRE(share <= 5e-5);  // of an int8 mean, before any code
  if (std::is_same_v<TestType, centered<rotated_exact>>) REQUIRE(share <= 1e-13);

  page<TestType> const zeros(std::vector<float>(page_tokens * 128), masked, std::vector<half>(at(dim), half{2.f}));
  REQUIRE(std::all_of(zeros.keys.begin(), zeros.keys.end(), [](double k) { return k == 0; }));
}

TEMPLATE_TEST_CASE("attention is the same whichever side is rotated", "[centered][rotation]",
                   (page<plain_exact, plain_exact>), (page<rotated_exact, plain_exact>),
                   (page<plain_exact, rotated_exact>), (page<rotated_exact, rotated_exact>),
                   (page<balanced_exact<kvant::half_split_pairs>, rotated_exact>)) {
  auto const dim = GENERATE(64, 80, 128, 320);
  int const value_dim = dim == 80 ? 96 : dim, pages = 2;
  CAPTURE(dim);
  std::vector<std::vector<float>> keys, values;
  std::vector<TestType> all;
  for (std::uint64_t i = 0; i < pages; ++i) {
    keys.push_back(make_rows(20 + i, make_spread(22, dim), make_offset(23 + i, dim, 20)));
    values.push_back(make_rows(30 + i, make_spread(32, value_dim), make_offset(33, value_dim, 5)));
    all.emplace_back(keys[i], values[i], 0, i == 0 ? std::vector<half>{} : all[0].factors);
  }
  auto const q = make_offset(40, dim, 3);
  std::vector<double> logits, expected_logits;
  for (std::size_t i = 0; i < pages; ++i) {
    auto const part = scores(all[i], q);
    logits.insert(logits.end(), part.begin(), part.end());
    for (int token = 0; token < page_tokens; ++token)
      expected_logits.push_back(dot(q.data(), keys[i].data() + token * dim, dim));
  }
  std::vector<double> turned(at(value_dim)), expected(at(value_dim));  // the first is turned back once, at the end
  double sum = 0, expected_sum = 0, worst = 0;
  for (int t = 0; t < pages * page_tokens; ++t) {
    auto const& p = all[at(t / page_tokens)];
    double const weight = std::exp(logits[at(t)] / std::sqrt(dim)),
                 exact_weight = std::exp(expected_logits[at(t)] / std::sqrt(dim));
    sum += weight, expected_sum += exact_weight;
    worst = std::max(worst, std::abs(logits[at(t)] - expected_logits[at(t)]));
    auto const side = p.value_side();
    for (int c = 0; c < value_dim; ++c) {
      turned[at(c)] += weight * side.coordinate(t % page_tokens, c);
      expected[at(c)] +=
          exact_weight * static_cast<double>(values[at(t / page_tokens)][at(t % page_tokens * value_dim + c)]);
    }
  }
  REQUIRE(worst <= 1e-5 * *std::max_element(expected_logits.begin(), expected_logits.end()));
  using value_format = typename decltype(all[0].value_side())::format;
  auto const out = support::rotation_matrix<kvant::rotation_of<value_format>>::of(value_dim).rotate_back(turned.data());
  double worst_output = 0, largest = 0;
  for (int c = 0; c < value_dim; ++c) {
    worst_output = std::max(worst_output, std::abs(out[at(c)] / sum - expected[at(c)] / expected_sum));
    largest = std::max(largest, std::abs(expected[at(c)] / expected_sum));
  }
  REQUIRE(worst_output <= 1e-5 * largest);
}
