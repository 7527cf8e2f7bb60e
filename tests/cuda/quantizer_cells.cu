// The polynomials that stand for comparisons with cell boundaries: fitted anew, and every half through them. Host code
// alone; needs nvcc for the header, no GPU.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include <kvant/warp/quantize.cuh>

#include "support/catch.hpp"

namespace {

using kvant::half;

double density(double z) { return std::exp(-z * z / 2) * 0.3989422804014327; }
double below(double z) { return 0.5 * std::erfc(-z * 0.7071067811865476); }

/// x rounded to a half; of a double, so that fused operations round once.
double to_half(double x) {
  if (x == 0) return 0;
  int exponent;
  std::frexp(x, &exponent);
  double const unit = std::ldexp(1., std::max(exponent - 11, -24));
  return std::nearbyint(x / unit) * unit;
}

template <int Bits>
struct cells {
  using polynomial = kvant::cell_polynomial<Bits>;
  using table = kvant::codebook_table<Bits>;
  static constexpr int boundaries = table::magnitudes - 1, degree = polynomial::degree;

  /// Least squares over the boundaries: the polynomial is to reach i + 1 at boundary i, less half of what its last bit
  /// stands for (a sixteenth: halves from 64 to 128). Moving a boundary by d costs density * gap * d^2, and a polynomial
  /// that is off by r moves it by r * gap.
  static std::array<double, degree + 1> fit() {
    std::array<std::array<double, degree + 1>, degree> a{};
    for (int i = 0; i < boundaries; ++i) {
      double const b = static_cast<double>(table::boundary(i));
      double const gap = (table::magnitude(i + 1) - table::magnitude(i)) * static_cast<double>(table::step);
      double const weight = density(b) * gap * gap * gap, target = i + 1 - 1. / 32;
      for (int p = 0; p < degree; ++p) {
        for (int q = 0; q < degree; ++q) a[at(p)][at(q)] += weight * std::pow(b, p + q + 2);
        a[at(p)][at(degree)] += weight * std::pow(b, p + 1) * target;
      }
    }
    for (int p = 0; p < degree; ++p)
      for (int r = 0; r < degree; ++r)
        if (r != p) {
          double const factor = a[at(r)][at(p)] / a[at(p)][at(p)];
          for (int q = 0; q <= degree; ++q) a[at(r)][at(q)] -= factor * a[at(p)][at(q)];
        }
    std::array<double, degree + 1> coefficient{};
    for (int p = 0; p < degree; ++p)
      coefficient[at(p + 1)] = a[at(p)][at(degree)] / a[at(p)][at(p)] / std::pow(double{polynomial::rms}, p + 1);
    return coefficient;
  }

  /// What the device computes of |z|, as a half times rms.
  static int cell(double scaled) {
    double const limit =
        to_half(static_cast<double>(table::largest) * static_cast<double>(table::step) * double{polynomial::rms});
    double const a = std::min(scaled, limit);
    double v = polynomial::coefficient(degree);
    for (int p = degree - 1; p >= 1; --p) v = to_half(v * a + static_cast<double>(polynomial::coefficient(p)));
    v = to_half(v * a + double{polynomial::start});
    return static_cast<int>(std::lround(std::floor((v - 64) * 16))) >> 4 & 7;
  }

 private:
  static constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }
};

template <int Bits>
void check_cells(double most_moved, double most_cost) {
  using c = cells<Bits>;
  using table = typename c::table;
  auto const fitted = c::fit();
  for (int p = 1; p <= c::degree; ++p) {
    double const stored = static_cast<double>(c::polynomial::coefficient(p));
    CAPTURE(Bits, p, stored, fitted[static_cast<std::size_t>(p)]);
    CHECK(stored == to_half(stored));
    CHECK(std::abs(stored - fitted[static_cast<std::size_t>(p)]) <= std::abs(stored) * 0x1p-10);
  }
  double moved = 0, cost = 0, least = 0;
  int const first = Bits == 3 ? 4 : 0;  // 3 bits: the polynomial starts at 68
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    auto const value = [](std::uint32_t b) {
      return static_cast<double>(static_cast<float>(half::from_bits(static_cast<std::uint16_t>(b)))) /
             double{c::polynomial::rms};
    };
    double const z = value(bits);
    double const low = bits == 0 ? 0 : (value(bits - 1) + z) / 2,
                 high = bits == 0x7bff ? 1e9 : (z + value(bits + 1)) / 2;
    double const share = 2 * (below(high) - below(low));
    int exact = 0;
    while (exact < c::boundaries && z > static_cast<double>(table::boundary(exact))) ++exact;
    int const got = c::cell(z * double{c::polynomial::rms}) - first;
    REQUIRE(std::abs(got - exact) <= 1);
    REQUIRE(got < table::magnitudes);
    auto const error = [&](int cell) {
      double const e = z - table::magnitude(cell) * static_cast<double>(table::step);
      return e * e;
    };
    if (share == 0) continue;
    moved += got != exact ? share : 0, cost += share * error(got), least += share * error(exact);
  }
  CAPTURE(Bits, moved, cost / least - 1);
  CHECK(moved <= most_moved);
  CHECK(cost / least - 1 <= most_cost);
}

}  // namespace

TEST_CASE("cell polynomials are the fit to the codebook's boundaries", "[cuda][cells]") {
  check_cells<4>(0.0017, 0.00006);
  check_cells<3>(0.0007, 0.00001);
}
