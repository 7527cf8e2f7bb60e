#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>
#include <vector>

#include <kvant/format/codebook_tables.hpp>
#include <kvant/format/lloyd_max_search.hpp>
#include <kvant/format/lloyd_max_solver.hpp>
#include <kvant/half.hpp>

#include "support/catch.hpp"

namespace {

using Catch::Matchers::WithinAbs;
using Catch::Matchers::WithinRel;

constexpr std::array all_head_dims{64, 80, 96, 112, 128, 160, 192, 256, 320, 512, 576};

/// The integral of t f(t) over [lo, hi] in closed form, with no cancellation in narrow cells.
double first_moment(kvant::sphere_density const& f, double lo, double hi) {
  double const power = 0.5 * (f.dim() - 1);
  double const at_lo = f.constant() / (2 * power) * std::exp(power * std::log1p(-lo * lo));
  return hi >= 1 ? at_lo : -at_lo * std::expm1(power * std::log1p(-(hi - lo) * (hi + lo) / ((1 - lo) * (1 + lo))));
}

template <int Bits>
std::vector<int> compiled_magnitudes() {
  std::vector<int> all;
  for (int i = 0; i < kvant::codebook_table<Bits>::magnitudes; ++i)
    all.push_back(kvant::codebook_table<Bits>::magnitude(i));
  return all;
}

template <int Bits>
struct width {
  using table = kvant::codebook_table<Bits>;
};

}  // namespace

TEST_CASE("the sphere density is a density with variance 1/d", "[codebooks]") {
  auto const d = GENERATE(3, 4, 5, 64, 80, 112, 128, 576, 1023, 1024, 4096);
  CAPTURE(d);
  kvant::sphere_density const f{d};
  auto const all = f.moments(-1, 1);
  REQUIRE_THAT(all.mass, WithinAbs(1, 1e-13));
  REQUIRE_THAT(all.first, WithinAbs(0, 1e-15));
  REQUIRE_THAT(d * all.second, WithinAbs(1, 1e-13));
  REQUIRE_THAT(f.moments(-2, 0).mass, WithinAbs(0.5, 1e-13));

  double const sigma = 1 / std::sqrt(static_cast<double>(d)), lo = 0.3 * sigma, hi = 1.7 * sigma, c = 0.9 * sigma;
  auto const at_zero = f.moments(lo, hi), at_c = f.moments(lo, hi, c), mirrored = f.moments(-hi, -lo, -c);
  REQUIRE_THAT(at_zero.first, WithinRel(first_moment(f, lo, hi), 1e-13));
  REQUIRE_THAT(f.moments(hi, 1).first, WithinRel(first_moment(f, hi, 1), 1e-13));
  REQUIRE_THAT(f.moments(-lo, hi).mass, WithinRel(f.moments(0, lo).mass + f.moments(0, hi).mass, 1e-13));
  REQUIRE_THAT(at_c.second, WithinRel(at_zero.second - 2 * c * at_zero.first + c * c * at_zero.mass, 1e-12));
  REQUIRE(mirrored.mass == at_c.mass);
  REQUIRE(mirrored.first == -at_c.first);
  REQUIRE(mirrored.second == at_c.second);
  REQUIRE(f.moments(hi, lo).mass == 0);
}

TEST_CASE("tails of the sphere density are exact far out", "[codebooks]") {
  // The regularized incomplete beta function in 400-digit arithmetic.
  struct tail {
    int d;
    double lo, hi, mass;
  };
  auto const t = GENERATE(tail{3, 0.9, 1, 0.049999999999999989}, tail{4, 0.5, 1, 0.19550110947788532},
                          tail{64, 0.5, 1, 1.1137602195959365e-5}, tail{64, 0.9, 1, 1.0579339389577735e-24},
                          tail{128, 0.25, 1, 0.0021360770445634321}, tail{128, 0.5, 0.6, 8.0533988090760305e-10},
                          tail{576, 0.2, 1, 6.4024300058975126e-7}, tail{1024, 0.1, 0.101, 7.1652633122127101e-5},
                          tail{1024, 0.25, 1, 2.2651412654537177e-16}, tail{1024, 0.4, 1, 5.7605538070609554e-41});
  CAPTURE(t.d, t.lo, t.hi);
  REQUIRE_THAT(kvant::sphere_density{t.d}.moments(t.lo, t.hi).mass, WithinRel(t.mass, 1e-13));
}

TEST_CASE("the solver ends where every centroid is the mean of its cell", "[codebooks]") {
  auto const d = GENERATE(3, 16, 64, 128, 160, 512, 1024, 4096);
  auto const bits = GENERATE(1, 2, 3, 4, 8);
  CAPTURE(d, bits);
  kvant::sphere_density const f{d};
  auto const book = kvant::solve_codebook(d, bits);
  auto const n = std::size_t{1} << bits;
  REQUIRE(book.d == d);
  REQUIRE(book.bits == bits);
  REQUIRE(book.centroids.size() == n);
  REQUIRE(book.boundaries.size() == n - 1);
  REQUIRE(book.boundaries[n / 2 - 1] == 0);

  double residual = 0, mass = 0, error = 0;
  bool antisymmetric = true, ascending = true, midpoints = true;
  for (std::size_t i = 0; i < n; ++i) {
    antisymmetric = antisymmetric && book.centroids[i] == -book.centroids[n - 1 - i];
    if (i + 1 < n) {
      ascending = ascending && book.centroids[i] < book.boundaries[i] && book.boundaries[i] < book.centroids[i + 1];
      midpoints = midpoints && book.boundaries[i] == 0.5 * (book.centroids[i] + book.centroids[i + 1]);
    }
    if (i < n / 2) continue;
    double const lo = book.boundaries[i - 1], hi = i + 1 < n ? book.boundaries[i] : 1;
    auto const cell = f.moments(lo, hi);
    residual =
        std::max(residual, std::abs(first_moment(f, lo, hi) / cell.mass - book.centroids[i]) / book.centroids[i]);
    mass += 2 * cell.mass;
    error += 2 * f.moments(lo, hi, book.centroids[i]).second;
  }
  REQUIRE(antisymmetric);
  REQUIRE(ascending);
  REQUIRE(midpoints);
  REQUIRE(residual < 1e-12);
  REQUIRE_THAT(mass, WithinAbs(1, 1e-13));
  REQUIRE_THAT(book.mse_per_coord, WithinRel(error, 1e-13));
  REQUIRE(book.mse_total == d * book.mse_per_coord);
}

TEST_CASE("one bit is the mean magnitude of a coordinate", "[codebooks]") {
  auto const d = GENERATE(3, 64, 128, 1024);
  CAPTURE(d);
  double const mean = std::exp(std::lgamma(0.5 * d) - std::lgamma(0.5 * (d + 1))) / std::sqrt(std::numbers::pi);
  auto const book = kvant::solve_codebook(d, 1);
  REQUIRE_THAT(book.centroids[1], WithinRel(mean, 1e-12));
  REQUIRE_THAT(book.mse_total, WithinRel(1 - d * mean * mean, 1e-12));
}

TEST_CASE("codebooks at d = 128 have the known centroids", "[codebooks]") {
  std::vector<std::vector<double>> const known{
      {0.799444},
      {0.452453, 1.505193},
      {0.244425, 0.753330, 1.336599, 2.131471},
      {0.127873, 0.386381, 0.653619, 0.937097, 1.247770, 1.604343, 2.045925, 2.688859}};  // times 1 / sqrt(d)
  auto const bits = GENERATE(1, 2, 3, 4);
  auto const book = kvant::solve_codebook(128, bits);
  auto const& magnitudes = known[static_cast<std::size_t>(bits - 1)];
  for (std::size_t i = 0; i < magnitudes.size(); ++i) {
    CAPTURE(bits, i);
    REQUIRE_THAT(book.centroids[magnitudes.size() + i] * std::sqrt(128.), WithinAbs(magnitudes[i], 5.5e-7));
  }
}

TEST_CASE("codebooks have the known relative squared error at every head size", "[codebooks]") {
  constexpr double known[4][11] = {
      {0.35839, 0.35939, 0.36006, 0.36053, 0.36089, 0.36139, 0.36172, 0.36214, 0.36238, 0.36276, 0.36283},
      {0.11453, 0.11511, 0.11551, 0.11579, 0.11600, 0.11630, 0.11649, 0.11674, 0.11689, 0.11711, 0.11715},
      {0.03339, 0.03362, 0.03377, 0.03388, 0.03397, 0.03408, 0.03416, 0.03426, 0.03431, 0.03440, 0.03442},
      {0.00913, 0.00920, 0.00925, 0.00929, 0.00931, 0.00935, 0.00938, 0.00941, 0.00943, 0.00945, 0.00946}};
  for (int bits = 1; bits <= 4; ++bits) {
    for (std::size_t i = 0; i < all_head_dims.size(); ++i) {
      CAPTURE(bits, all_head_dims[i]);
      REQUIRE_THAT(kvant::solve_codebook(all_head_dims[i], bits).mse_total, WithinAbs(known[bits - 1][i], 5.5e-6));
    }
  }
}

TEST_CASE("large head sizes come near the codebook of the normal distribution", "[codebooks]") {
  constexpr double normal[] = {0.36338, 0.11748, 0.03455, 0.00950};
  for (int bits = 1; bits <= 4; ++bits) {
    CAPTURE(bits);
    REQUIRE_THAT(kvant::solve_codebook(4096, bits).mse_total, WithinRel(normal[bits - 1], 2e-3));
  }
}

TEST_CASE("every further bit lowers the error, at every head size", "[codebooks]") {
  auto const d = GENERATE(16, 64, 100, 128, 160, 255, 256, 320, 512, 576, 777, 1023, 1024);
  double before = kvant::solve_codebook(d, 1).mse_total;
  for (int bits = 2; bits <= kvant::max_codebook_bits; ++bits) {
    double const error = kvant::solve_codebook(d, bits).mse_total;
    CAPTURE(d, bits, before, error);
    REQUIRE(before / error >= (bits == 2 ? 2.9 : 3.3));
    before = error;
  }
}

TEST_CASE("the solver gives an empty codebook for what it does not solve", "[codebooks]") {
  auto const [d, bits] = GENERATE(std::pair{2, 2}, std::pair{0, 2}, std::pair{-64, 2}, std::pair{4097, 2},
                                  std::pair{64, 0}, std::pair{64, -1}, std::pair{64, 9});
  CAPTURE(d, bits);
  auto const book = kvant::solve_codebook(d, bits);
  REQUIRE(book.d == 0);
  REQUIRE(book.centroids.empty());
}

TEMPLATE_TEST_CASE("compiled tables are what the search finds", "[codebooks]", width<1>, width<2>, width<3>, width<4>) {
  using table = typename TestType::table;
  auto const found = kvant::search_integer_table(table::bits);
  REQUIRE(found.magnitudes == compiled_magnitudes<table::bits>());
  REQUIRE(found.step == static_cast<double>(table::step));
  REQUIRE(found.distortion == kvant::distortion_of(found.magnitudes, found.step, 128));
}

TEMPLATE_TEST_CASE("compiled tables cost little against the optimum of any head size", "[codebooks]", width<1>,
                   width<2>, width<3>, width<4>) {
  using table = typename TestType::table;
  for (int const d : all_head_dims) {
    double const best = kvant::solve_codebook(d, table::bits).mse_total;
    double const compiled =
        kvant::distortion_of(compiled_magnitudes<table::bits>(), static_cast<double>(table::step), d);
    CAPTURE(table::bits, d, best, compiled);
    REQUIRE(compiled >= best);
    REQUIRE(compiled <= best * (table::bits == 2 ? 1.0116 : 1.0011));
  }
}

TEMPLATE_TEST_CASE("codes, levels and boundaries of a table belong together", "[codebooks]", width<1>, width<2>,
                   width<3>, width<4>) {
  using table = typename TestType::table;
  constexpr int limit = table::bits == 4 ? 255 : table::bits == 3 ? 127 : table::bits == 2 ? 3 : 1;
  STATIC_REQUIRE(table::levels == 1 << table::bits);
  STATIC_REQUIRE(table::magnitudes == table::levels / 2);
  STATIC_REQUIRE(table::largest == table::magnitude(table::magnitudes - 1));
  STATIC_REQUIRE(table::magnitude(0) >= 1);
  STATIC_REQUIRE(table::largest <= limit);
  for (int code = 0; code < table::levels; ++code) {
    CAPTURE(table::bits, code);
    if (table::bits == 4) {
      REQUIRE(table::level(code) == (code & 8 ? -1 : 1) * table::magnitude(code & 7));
    } else {
      REQUIRE(table::level(code) == -table::level(table::levels - 1 - code));
      REQUIRE((code == 0 || table::level(code - 1) < table::level(code)));
      REQUIRE((code < table::magnitudes || table::level(code) == table::magnitude(code - table::magnitudes)));
    }
  }
  for (int i = 0; i + 1 < table::magnitudes; ++i) {
    CAPTURE(table::bits, i);
    REQUIRE(table::magnitude(i) < table::magnitude(i + 1));
    double const middle = 0.5 * (table::magnitude(i) + table::magnitude(i + 1)) * static_cast<double>(table::step);
    REQUIRE(static_cast<double>(table::boundary(i)) == middle);
  }
}

TEMPLATE_TEST_CASE("half times step times level is exact in float, in any order", "[codebooks]", width<1>, width<2>,
                   width<3>, width<4>) {
  using table = typename TestType::table;
  int exponent = 0;
  auto const mantissa = static_cast<std::uint32_t>(std::ldexp(std::frexp(table::step, &exponent), 24));
  int const step_bits = 24 - std::countr_zero(mantissa);
  int const level_bits = static_cast<int>(std::bit_width(static_cast<unsigned>(table::largest)));
  REQUIRE(step_bits + level_bits <= 13);

  int inexact = 0;
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {  // every finite half that is not negative
    auto const scalar = static_cast<float>(kvant::half::from_bits(static_cast<std::uint16_t>(bits)));
    for (int code = 0; code < table::levels; ++code) {
      auto const level = static_cast<float>(table::level(code));
      double const exact = static_cast<double>(scalar) * static_cast<double>(table::step) * table::level(code);
      inexact += static_cast<double>((scalar * table::step) * level) != exact;
      inexact += static_cast<double>((level * table::step) * scalar) != exact;
      inexact += static_cast<double>((scalar * level) * table::step) != exact;
    }
  }
  REQUIRE(inexact == 0);
}
