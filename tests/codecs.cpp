#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include <kvant/format/codec.hpp>
#include <kvant/format/format.hpp>
#include <kvant/format/policies.hpp>
#include <kvant/format/rotation.hpp>

#include "support/catch.hpp"
#include "support/statistics.hpp"
#include "support/unit_fixture.hpp"

namespace {

using kvant::half;

template <int Bits>
constexpr bool codebook_concepts = kvant::scalar_codec<kvant::lloyd_max<Bits>>&&
    kvant::level_codec<kvant::lloyd_max<Bits>>&& std::is_trivially_copyable_v<typename kvant::lloyd_max<Bits>::params>&&
        kvant::kv_format<kvant::turboquant<Bits>>&& std::is_empty_v<kvant::turboquant<Bits>>&&
            kvant::kv_format<kvant::centered<kvant::turboquant<Bits>>>&&
                kvant::kv_format<kvant::balanced<kvant::centered<kvant::turboquant<Bits>>, kvant::adjacent_pairs>>;
static_assert(codebook_concepts<1> && codebook_concepts<2> && codebook_concepts<3> && codebook_concepts<4>);

template <int Bits>
constexpr bool affine_concepts =
    kvant::scalar_codec<kvant::affine<Bits>> && !kvant::level_codec<kvant::affine<Bits>> &&
    sizeof(typename kvant::affine<Bits>::params) == 4 && kvant::kv_format<kvant::kivi_key<Bits, 64>> &&
    kvant::kv_format<kvant::kivi_value<Bits, 128>>;
static_assert(affine_concepts<2> && affine_concepts<3> && affine_concepts<4> && affine_concepts<8>);

static_assert(kvant::scalar_codec<kvant::sign> && !kvant::level_codec<kvant::sign> && sizeof(kvant::sign::params) == 2);
static_assert(kvant::kv_format<kvant::q1_0<>> && kvant::kv_format<kvant::q1_0_rotated<64>>);
static_assert(!kvant::scalar_codec<kvant::exact_codec<half>> && std::is_empty_v<kvant::exact_codec<half>>);
static_assert(kvant::kv_format<kvant::exact<half>> && kvant::kv_format<kvant::exact<float>>);
static_assert(!kvant::scalar_codec<int> && !kvant::kv_format<int> && !kvant::kv_format<kvant::lloyd_max<2>>);
static_assert(kvant::scale_rule<kvant::plain_norm> && kvant::scale_rule<kvant::norm_corrected> &&
              kvant::scale_rule<kvant::least_squares> && kvant::scale_rule<kvant::unbiased> &&
              !kvant::scale_rule<kvant::scale_by_side> && !kvant::scale_rule<kvant::min_max>);
static_assert(kvant::is_exact<kvant::exact<kvant::bfloat16>> && !kvant::is_exact<kvant::centered<kvant::exact<half>>> &&
              !kvant::is_exact<kvant::turboquant<4>>);
static_assert(
    std::is_same_v<kvant::scale_of<kvant::turboquant<3>, kvant::side::key>, kvant::least_squares> &&
    std::is_same_v<kvant::scale_of<kvant::turboquant<3>, kvant::side::value>, kvant::unbiased> &&
    std::is_same_v<kvant::scale_of<kvant::turboquant<3, kvant::plain_norm>, kvant::side::value>, kvant::plain_norm>);

/// Numbers over many magnitudes, and what lies at and beside each boundary of the table, of either sign.
template <class Table>
std::vector<float> codebook_inputs() {
  std::vector<float> all{0.f, -0.f, 1e-9f, -1e-9f, 1e6f, -1e6f};
  for (int i = 0; i + 1 < Table::magnitudes; ++i) {
    float const tie = Table::boundary(i);
    for (float const x : {std::nextafter(tie, 0.f), tie, std::nextafter(tie, 9.f)}) all.insert(all.end(), {x, -x});
  }
  support::generator random{3};
  for (int i = 0; i < 100000; ++i) all.push_back(static_cast<float>(1.5 * random.normal()));
  return all;
}

template <class Codec>
typename Codec::params params_of(float first, float second = 0) {
  typename Codec::params p{};
  p.scalar[0] = half{first};
  if constexpr (Codec::scalars == 2) p.scalar[1] = half{second};
  return p;
}

template <class Codec>
typename Codec::stats observe(std::vector<float> const& group) {
  typename Codec::stats s;
  for (float const x : group) s.observe(x);
  return s;
}
template <class Codec>
auto fit(std::vector<float> const& group) {
  return Codec::fit(observe<Codec>(group), static_cast<int>(group.size()));
}
template <class Codec>
auto make_grid(std::vector<float> const& group) {
  return Codec::make_grid(observe<Codec>(group), static_cast<int>(group.size()));
}

/// Groups of `size` numbers at all magnitudes that a half can scale, some with an offset far larger than their spread.
std::vector<std::vector<float>> groups_of(int size, int count) {
  support::generator random{17};
  std::vector<std::vector<float>> all(static_cast<std::size_t>(count));
  for (auto& group : all) {
    double const spread = std::exp2(18 * random.uniform() - 10),
                 offset = random.uniform() < 0.3 ? 8 * spread * random.normal() : 0;
    for (int i = 0; i < size; ++i) group.push_back(static_cast<float>(offset + spread * random.normal()));
  }
  return all;
}

constexpr float half_error = 0x1p-11f, least_half = 0x1p-24f;

}  // namespace

TEMPLATE_TEST_CASE("every code of a codebook is reached and decodes to its own level", "[codecs]", kvant::lloyd_max<1>,
                   kvant::lloyd_max<2>, kvant::lloyd_max<3>, kvant::lloyd_max<4>) {
  using table = typename TestType::table;
  auto const rms = GENERATE(1.f, 0.5f, 1024.f, 0x1p-20f);
  typename TestType::grid const grid{1 / rms};
  auto const params = params_of<TestType>(rms);
  std::uint32_t reached = 0;
  for (int code = 0; code < table::levels; ++code) {
    float const value = static_cast<float>(table::level(code)) * table::step * rms;
    auto const coded = TestType::encode_level(value, grid);
    CAPTURE(TestType::bits, rms, code, value);
    REQUIRE(coded.code == static_cast<std::uint32_t>(code));
    REQUIRE(coded.level == table::level(code));
    REQUIRE(TestType::encode(value, grid) == coded.code);
    REQUIRE(TestType::decode(coded.code, params) == value);
    reached |= 1u << coded.code;
  }
  REQUIRE(reached == (1u << table::levels) - 1);
}

TEMPLATE_TEST_CASE("a value gets the nearest level, ties towards zero", "[codecs]", kvant::lloyd_max<1>,
                   kvant::lloyd_max<2>, kvant::lloyd_max<3>, kvant::lloyd_max<4>) {
  using table = typename TestType::table;
  auto const inverse_rms = GENERATE(1.f, 3.f, 0x1p-20f);
  CAPTURE(TestType::bits, inverse_rms);
  typename TestType::grid const grid{inverse_rms};
  int wrong_level = 0, wrong_code = 0, seen_ties = 0;
  std::vector<int> reached(static_cast<std::size_t>(table::levels));
  for (float const z : codebook_inputs<table>()) {
    float const x = inverse_rms == 0x1p-20f ? z / inverse_rms : z;
    double const scaled = static_cast<double>(x * inverse_rms);
    int best = 0;
    double best_distance = std::numeric_limits<double>::infinity();
    for (int code = 0; code < table::levels; ++code) {
      int const level = table::level(code);
      double const distance = std::abs(scaled - level * static_cast<double>(table::step));
      // At zero itself both least levels are nearest, and neither is nearer to zero: it counts as positive.
      bool const preferred = std::abs(level) < std::abs(best) || (scaled == 0 && level > best);
      seen_ties += distance == best_distance;
      if (distance < best_distance || (distance == best_distance && preferred)) best = level, best_distance = distance;
    }
    auto const coded = TestType::encode_level(x, grid);
    wrong_level += coded.level != best;
    wrong_code += coded.code >= static_cast<std::uint32_t>(table::levels) ||
                  table::level(static_cast<int>(coded.code)) != coded.level;
    ++reached[coded.code];
  }
  REQUIRE(wrong_level == 0);
  REQUIRE(wrong_code == 0);
  REQUIRE(seen_ties >= (inverse_rms == 3.f ? 2 : 2 * table::magnitudes));
  REQUIRE(std::count(reached.begin(), reached.end(), 0) == 0);
  REQUIRE(TestType::encode_level(1e-40f, grid).level == table::magnitude(0));
  REQUIRE(TestType::encode_level(-1e-30f, grid).level == -table::magnitude(0));
  REQUIRE(TestType::encode_level(1e30f, grid).level == table::largest);
  REQUIRE(TestType::encode_level(-1e30f, grid).level == -table::largest);
}

TEMPLATE_TEST_CASE("decoding a codebook is exact in float", "[codecs]", kvant::lloyd_max<1>, kvant::lloyd_max<2>,
                   kvant::lloyd_max<3>, kvant::lloyd_max<4>) {
  using table = typename TestType::table;
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    half const scalar = half::from_bits(static_cast<std::uint16_t>(bits));
    if ((bits & 0x7fffu) >= 0x7c00) continue;  // never stored
    typename TestType::params const params{{scalar}};
    for (int code = 0; code < table::levels; ++code) {
      long double const exact = static_cast<long double>(static_cast<float>(scalar)) *
                                static_cast<long double>(table::step) * table::level(code);
      wrong += static_cast<long double>(TestType::decode(static_cast<std::uint32_t>(code), params)) != exact;
    }
  }
  REQUIRE(wrong == 0);
}

TEMPLATE_TEST_CASE("a codebook's group is scaled by its root mean square", "[codecs]", kvant::lloyd_max<1>,
                   kvant::lloyd_max<2>, kvant::lloyd_max<3>, kvant::lloyd_max<4>) {
  for (auto const& group : groups_of(96, 50)) {
    double sum = 0;
    for (float const x : group) sum += static_cast<double>(x) * static_cast<double>(x);
    double const rms = std::sqrt(sum / 96);
    auto const grid = make_grid<TestType>(group);
    CAPTURE(TestType::bits, rms);
    REQUIRE_THAT(grid.inverse_rms * rms, Catch::Matchers::WithinRel(1., 1e-6));
  }
  REQUIRE(make_grid<TestType>({0.f, -0.f, 0.f}).inverse_rms == 0);
}

TEMPLATE_TEST_CASE("scale rules store what they say", "[codecs]", kvant::lloyd_max<1>, kvant::lloyd_max<2>,
                   kvant::lloyd_max<3>, kvant::lloyd_max<4>) {
  constexpr auto step = static_cast<double>(TestType::table::step);
  auto const stored = []<class Rule>(Rule, kvant::moments m) {
    return static_cast<double>(static_cast<float>(TestType::template fit<Rule>(m).scalar[0]));
  };
  for (auto const& group : groups_of(128, 50)) {
    auto const grid = make_grid<TestType>(group);
    double xx = 0, xc = 0, cc = 0;  // c: the decoded unit of scale
    kvant::moments m{128};
    for (float const x : group) {
      auto const coded = TestType::encode_level(x, grid);
      double const c = coded.level * step, v = static_cast<double>(x);
      xx += v * v, xc += v * c, cc += c * c;
      m.xx += v * v, m.xl += v * coded.level, m.ll += coded.level * coded.level;
    }
    CAPTURE(TestType::bits, xx, xc, cc);
    auto const is = [](double x) { return Catch::Matchers::WithinAbs(x, x * 0x1.001p-11 + 0x1p-25); };
    REQUIRE_THAT(stored(kvant::plain_norm{}, m), is(std::sqrt(xx / 128)));
    REQUIRE_THAT(stored(kvant::norm_corrected{}, m), is(std::sqrt(xx / cc)));
    REQUIRE_THAT(stored(kvant::least_squares{}, m), is(xc / cc));
    REQUIRE_THAT(stored(kvant::unbiased{}, m), is(xx / xc));
  }
}

TEMPLATE_TEST_CASE("a scale rule without anything to scale stores zero, one with too much the largest half", "[codecs]",
                   kvant::plain_norm, kvant::norm_corrected, kvant::least_squares, kvant::unbiased) {
  using codec = kvant::lloyd_max<3>;
  REQUIRE(codec::fit<TestType>({}).scalar[0].bits == 0);
  REQUIRE(codec::fit<TestType>({128, 0, 0, 128. * 14 * 14}).scalar[0].bits == 0);  // zeros, coded as the least level
  REQUIRE(codec::fit<TestType>({128, 1e60, 1e32, 1e4}).scalar[0].bits == 0x7bff);
  REQUIRE(codec::decode(7, params_of<codec>(65504.f)) == 65504.f * 121 * 0.017578125f);
  for (std::uint32_t code = 0; code < 8; ++code) REQUIRE(codec::decode(code, params_of<codec>(0.f)) == 0);
}

TEMPLATE_TEST_CASE("affine codes are KIVI's", "[codecs]", kvant::affine<2>, kvant::affine<3>, kvant::affine<4>,
                   kvant::affine<8>) {
  auto const size = GENERATE(32, 64, 128);
  CAPTURE(TestType::bits, size);
  constexpr int top = (1 << TestType::bits) - 1;
  std::vector<int> reached(static_cast<std::size_t>(top + 1));
  int wrong_code = 0, wrong_value = 0;
  for (auto const& group : groups_of(size, 300)) {
    auto const [lo, hi] = std::minmax_element(group.begin(), group.end());
    auto const params = fit<TestType>(group);
    half const scale{(*hi - *lo) / top}, zero{*lo};
    REQUIRE(params.scalar[0] == scale);
    REQUIRE(params.scalar[1] == zero);
    auto const grid = make_grid<TestType>(group);
    REQUIRE(grid.scale == static_cast<float>(scale));
    REQUIRE(grid.zero == static_cast<float>(zero));
    for (float const x : group) {
      float const at = (x - static_cast<float>(zero)) / static_cast<float>(scale);
      auto const expected = static_cast<std::uint32_t>(std::nearbyint(std::clamp(at, 0.f, static_cast<float>(top))));
      std::uint32_t const code = TestType::encode(x, grid);
      wrong_code += code != expected;
      ++reached[std::min<std::size_t>(code, static_cast<std::size_t>(top))];
      double const exact =
          static_cast<double>(static_cast<float>(scale)) * code + static_cast<double>(static_cast<float>(zero));
      wrong_value += TestType::decode(code, params) != static_cast<float>(exact);
    }
  }
  REQUIRE(wrong_code == 0);
  REQUIRE(wrong_value == 0);
  REQUIRE(std::count(reached.begin(), reached.end(), 0) == 0);
}

TEMPLATE_TEST_CASE("an affine code is at most half a step off, and what rounding its scalars costs", "[codecs]",
                   kvant::affine<2>, kvant::affine<3>, kvant::affine<4>, kvant::affine<8>) {
  constexpr auto top = static_cast<float>((1 << TestType::bits) - 1);
  float worst = 0, largest = 0;  // in steps; worst: of what rounding does not excuse
  for (auto const& group : groups_of(64, 1000)) {
    auto const params = fit<TestType>(group);
    auto const grid = make_grid<TestType>(group);
    auto const [lo, hi] = std::minmax_element(group.begin(), group.end());
    float const rounding = half_error * (*hi - *lo + std::abs(*lo)) + 0.5f * least_half * (top + 1);
    for (float const x : group) {
      float const error = std::abs(x - TestType::decode(TestType::encode(x, grid), params));
      worst = std::max(worst, (error - rounding) / grid.scale);
      largest = std::max(largest, error / grid.scale);
    }
  }
  REQUIRE(worst <= 0.501f);  // the subtraction and the division are rounded too
  REQUIRE(largest > 0.49f);
}

TEMPLATE_TEST_CASE("affine codes round half to even and stay in range", "[codecs]", kvant::affine<2>, kvant::affine<3>,
                   kvant::affine<4>, kvant::affine<8>) {
  constexpr int top = (1 << TestType::bits) - 1;
  typename TestType::grid const grid{2, -6};
  for (int code = 0; code < top; ++code) {
    float const tie = -6 + 2 * (static_cast<float>(code) + 0.5f);
    auto const below = static_cast<std::uint32_t>(code), above = below + 1;
    CAPTURE(TestType::bits, tie);
    REQUIRE(TestType::encode(tie, grid) == (code % 2 == 0 ? below : above));
    REQUIRE(TestType::encode(std::nextafter(tie, 1e9f) + 1e-5f * std::abs(tie), grid) == above);
    REQUIRE(TestType::encode(std::nextafter(tie, -1e9f) - 1e-5f * std::abs(tie), grid) == below);
  }
  REQUIRE(TestType::encode(-1e30f, grid) == 0);
  REQUIRE(TestType::encode(1e30f, grid) == top);
  STATIC_REQUIRE(TestType::encode(1e30f, {2, -6}) == top);
  STATIC_REQUIRE(TestType::decode(top, {{half{2.f}, half{-6.f}}}) == 2.f * top - 6);
}

TEMPLATE_TEST_CASE("a constant affine group decodes to its zero point", "[codecs]", kvant::affine<2>, kvant::affine<3>,
                   kvant::affine<4>, kvant::affine<8>) {
  auto const value = GENERATE(0.f, 1.f, -3.5f, 65504.f, -65504.f, 1e30f, -1e30f, 0x1p-24f, 1e-40f, 0.1f);
  CAPTURE(TestType::bits, value);
  std::vector<float> const group(32, value);
  auto const params = fit<TestType>(group);
  REQUIRE(params.scalar[0].bits == 0);
  REQUIRE(params.scalar[1] == kvant::saturate_to_half(value));
  REQUIRE(TestType::encode(value, make_grid<TestType>(group)) == 0);
  for (std::uint32_t code = 0; code <= static_cast<std::uint32_t>(TestType::top); ++code)
    REQUIRE(TestType::decode(code, params) == static_cast<float>(kvant::saturate_to_half(value)));
}

TEMPLATE_TEST_CASE("affine scalars saturate and a vanishing range is none", "[codecs]", kvant::affine<2>,
                   kvant::affine<3>, kvant::affine<4>, kvant::affine<8>) {
  constexpr auto top = static_cast<float>((1 << TestType::bits) - 1);
  auto const huge = fit<TestType>({-1e30f, 1e30f});
  REQUIRE(huge.scalar[0].bits == 0x7bff);
  REQUIRE(huge.scalar[1].bits == 0xfbff);
  REQUIRE(std::isfinite(TestType::decode(TestType::top, huge)));

  std::vector<float> const within{0.f, 0.99f * 0x1p-25f * top}, beyond{0.f, 1.01f * 0x1p-25f * top};
  REQUIRE(fit<TestType>(within).scalar[0].bits == 0);
  REQUIRE(TestType::encode(within[1], make_grid<TestType>(within)) == 0);
  REQUIRE(fit<TestType>(beyond).scalar[0].bits == 1);
}

TEST_CASE("a sign code is set from zero up, for either zero", "[codecs]") {
  using kvant::sign;
  for (float const x : {0.f, -0.f, 1e-45f, 1.f, 1e30f}) REQUIRE(sign::encode(x, {}) == 1);
  for (float const x : {-1e-45f, -1.f, -1e30f}) REQUIRE(sign::encode(x, {}) == 0);
  STATIC_REQUIRE(sign::encode(-0.f, {}) == 1);
  auto const params = params_of<sign>(0.75f);
  REQUIRE(sign::decode(1, params) == 0.75f);
  REQUIRE(sign::decode(0, params) == -0.75f);
}

TEST_CASE("a sign group stores its mean magnitude", "[codecs]") {
  using kvant::sign;
  for (auto const& group : groups_of(128, 100)) {
    double sum = 0;
    for (float const x : group) sum += std::abs(static_cast<double>(x));
    REQUIRE(fit<sign>(group).scalar[0] == kvant::saturate_to_half(static_cast<float>(sum / 128)));
  }
  STATIC_REQUIRE(sign::fit({}, 128).scalar[0].bits == 0);
  REQUIRE(fit<sign>({0.f, -0.f}).scalar[0].bits == 0);
  REQUIRE(fit<sign>({1e30f, -1e30f}).scalar[0].bits == 0x7bff);
  REQUIRE(fit<sign>({1.f, -3.f}).scalar[0] == half{2.f});
}

TEMPLATE_TEST_CASE("exact elements keep every bit", "[codecs]", half, kvant::bfloat16) {
  using codec = kvant::exact_codec<TestType>;
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    auto const stored = TestType::from_bits(static_cast<std::uint16_t>(bits));
    float const x = codec::decode(stored.bits);
    wrong += std::isnan(x) ? !std::isnan(static_cast<float>(stored))
                           : codec::encode(x) != bits || x != static_cast<float>(stored);
  }
  REQUIRE(wrong == 0);
  STATIC_REQUIRE(codec::bits == 16);
  STATIC_REQUIRE(codec::encode(1.f) == TestType{1.f}.bits);
  STATIC_REQUIRE(kvant::exact_codec<float>::bits == 32);
  STATIC_REQUIRE(kvant::exact_codec<float>::decode(kvant::exact_codec<float>::encode(-0.1f)) == -0.1f);
}

TEMPLATE_TEST_CASE("every cell of a codebook goes through a page and back", "[codecs]", kvant::lloyd_max<1>,
                   kvant::lloyd_max<2>, kvant::lloyd_max<3>, kvant::lloyd_max<4>) {
  using table = typename TestType::table;
  using kvant::side;
  auto const dim = GENERATE(64, 80, 96, 128, 192, 576);
  CAPTURE(TestType::bits, dim);
  // Every code once, then codes that bring the root mean square to 1: each coordinate lies on its level.
  std::vector<int> codes;
  double sum = 0;
  auto const square_of = [](int code) { return std::pow(table::level(code) * static_cast<double>(table::step), 2); };
  for (int c = 0; c < dim; ++c) {
    int best = 0;
    for (int code = 0; code < table::levels; ++code)
      if (std::abs(sum + square_of(code) - c - 1) < std::abs(sum + square_of(best) - c - 1)) best = code;
    codes.push_back(c < table::levels ? c : c % 2 == 0 || TestType::bits == 4 ? best : table::levels - 1 - best);
    sum += square_of(codes.back());
  }
  support::codec_of_pair<kvant::turboquant<TestType::bits>, kvant::turboquant<TestType::bits>> codec{"levels"};
  support::unit_of<float> unit{codec, {1, dim, dim, 0}};
  auto const code_at = [&](int t, int c) { return codes[static_cast<std::size_t>((c + 3 * t) % dim)]; };
  std::vector<float> y(static_cast<std::size_t>(dim)), x(y.size());
  for (side const s : {side::key, side::value})
    for (int t = 0; t < unit.tokens(); ++t) {
      for (int c = 0; c < dim; ++c)
        y[static_cast<std::size_t>(c)] = static_cast<float>(table::level(code_at(t, c))) * table::step;
      kvant::randomized_hadamard<>::inverse(y.data(), x.data(), dim);
      std::copy(x.begin(), x.end(), &unit.at(s, t, 0));
    }
  unit.encode_and_decode();
  int wrong_codes = 0, wrong_scalars = 0;
  double worst = 0;
  for (side const s : {side::key, side::value})
    for (int t = 0; t < unit.tokens(); ++t) {
      kvant::randomized_hadamard<>::forward(unit.decoded(s).data() + t * dim, y.data(), dim);
      wrong_scalars += unit.scalars(s, t, 0)[0] != half{1.f};
      for (int c = 0; c < dim; ++c) {
        wrong_codes += unit.code(s, t, c) != static_cast<std::uint32_t>(code_at(t, c));
        float const centroid = static_cast<float>(table::level(code_at(t, c))) * table::step;
        worst = std::max(worst, static_cast<double>(std::abs(y[static_cast<std::size_t>(c)] - centroid)));
      }
    }
  REQUIRE(wrong_codes == 0);
  REQUIRE(wrong_scalars == 0);
  REQUIRE(worst <= 2e-6);
}
