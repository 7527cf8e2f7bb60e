// The arithmetic that stands for comparisons with cell boundaries: fitted anew, and every half through them. Host code
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
  using search = kvant::cell_search<Bits>;
  using table = kvant::codebook_table<Bits>;
  static constexpr int boundaries = table::magnitudes - 1, base = Bits == 4 ? 1032 : 1028;

  /// Least squares over the boundaries, by Gauss-Newton steps from the stored numbers: the search is to reach
  /// base + i + 1/2 at boundary i. Moving a boundary by d costs density * gap * d^2, and a search that is off by r moves
  /// it by r * gap.
  static std::array<double, 3> fit() {
    std::array<double, 3> x{double{search::slope}, double{search::offset}, double{search::shift}};
    for (int step = 0; step < 20; ++step) {
      std::array<std::array<double, 4>, 3> a{};
      for (int i = 0; i < boundaries; ++i) {
        double const b = static_cast<double>(table::boundary(i));
        double const gap = (table::magnitude(i + 1) - table::magnitude(i)) * static_cast<double>(table::step);
        double const weight = density(b) * gap * gap * gap;
        double const t = x[0] * b + x[1], u = t * t + x[2], off = base + i + 0.5 - (u * u + double{search::start});
        std::array<double, 3> const d{4 * u * t * b, 4 * u * t, 2 * u};
        for (int p = 0; p < 3; ++p) {
          for (int q = 0; q < 3; ++q) a[at(p)][at(q)] += weight * d[at(p)] * d[at(q)];
          a[at(p)][3] += weight * d[at(p)] * off;
        }
      }
      for (int p = 0; p < 3; ++p)
        for (int r = 0; r < 3; ++r)
          if (r != p) {
            double const factor = a[at(r)][at(p)] / a[at(p)][at(p)];
            for (int q = 0; q <= 3; ++q) a[at(r)][at(q)] -= factor * a[at(p)][at(q)];
          }
      for (int p = 0; p < 3; ++p) x[at(p)] += a[at(p)][3] / a[at(p)][at(p)];
    }
    return x;
  }

  /// What the device computes of |z|, as a half, for rows of root mean square rms; its low byte less what stands there
  /// beside the cell.
  static int cell(double z, double rms) {
    double const limit = to_half(static_cast<double>(table::largest) * static_cast<double>(table::step) * rms);
    double v = to_half(std::min(z, limit) * to_half(double{search::slope} / rms) + double{search::offset});
    v = to_half(v * v + double{search::shift});
    v = to_half(v * v + double{search::start});
    return static_cast<int>(v) - base;  // at 1024 and above, halves are whole numbers
  }

 private:
  static constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }
};

template <int Bits>
void check_cells(double rms, double most_moved, double most_cost) {
  using c = cells<Bits>;
  using table = typename c::table;
  auto const fitted = c::fit();
  CAPTURE(Bits, rms, fitted);
  // What is stored may stand off as far as 0 needs to stay in the first cell.
  CHECK(std::abs(double{c::search::slope} - fitted[0]) <= 0.005);
  CHECK(std::abs(double{c::search::offset} - fitted[1]) <= 0.002);
  CHECK(std::abs(double{c::search::shift} - fitted[2]) <= 0.005);
  for (double const stored : {double{c::search::offset}, double{c::search::shift}, double{c::search::start}})
    CHECK(stored == to_half(stored));
  double moved = 0, cost = 0, least = 0;
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    auto const value = [rms](std::uint32_t b) {
      return static_cast<double>(static_cast<float>(half::from_bits(static_cast<std::uint16_t>(b)))) / rms;
    };
    double const z = value(bits);
    double const low = bits == 0 ? 0 : (value(bits - 1) + z) / 2,
                 high = bits == 0x7bff ? 1e9 : (z + value(bits + 1)) / 2;
    double const share = 2 * (below(high) - below(low));
    int exact = 0;
    while (exact < c::boundaries && z > static_cast<double>(table::boundary(exact))) ++exact;
    int const got = c::cell(z * rms, rms);
    REQUIRE(std::abs(got - exact) <= 1);
    REQUIRE(got >= 0);
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

TEST_CASE("cell searches are the fit to the codebook's boundaries", "[cuda][cells]") {
  // From the least to the greatest norm that the quantizer takes as it is, times what H carries.
  auto const rms = GENERATE(0x1p-8, 1., 1.37, 6.1, 256., 4096.);
  check_cells<4>(rms, 0.0085, 0.0009);
  check_cells<3>(rms, 0.0012, 0.00002);
}
