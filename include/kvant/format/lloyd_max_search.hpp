#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <kvant/format/lloyd_max_solver.hpp>

namespace kvant::inline v0 {

/// Levels +-magnitude * step for vectors of rms 1: what is compiled into codebook_tables.hpp.
struct integer_table {
  int bits = 0;
  double step = 0;
  std::vector<int> magnitudes;  // [2^(bits - 1)], ascending
  double distortion = 0;        // D at d = 128, plain scale
};

namespace detail {

/// Errors of a density cut at multiples of half a step, for vectors of rms 1.
class stepped_density {
 public:
  stepped_density(sphere_density const& f, double step, int largest)
      : unit_(step / std::sqrt(static_cast<double>(f.dim()))), largest_(largest) {
    for (int i = 0; i < 2 * largest; ++i) {
      auto const m = f.moments(0.5 * i * unit_, 0.5 * (i + 1) * unit_);
      auto const& last = sums_.back();
      sums_.push_back({last.mass + m.mass, last.first + m.first, last.second + m.second});
    }
    tail_ = f.moments(largest * unit_, 1);
  }

  /// Squared error of what lies between neighbouring magnitudes a < b, each value going to the nearer one.
  [[nodiscard]] double between(int a, int b) const { return error(2 * a, a + b, a) + error(a + b, 2 * b, b); }
  /// Of what lies between 0 and the least magnitude; above the greatest one.
  [[nodiscard]] double below(int m) const { return error(0, 2 * m, m); }
  [[nodiscard]] double above(int m) const { return error(2 * m, 2 * largest_, m) + about(tail_, m * unit_); }

 private:
  [[nodiscard]] static double about(cell_moments const& m, double c) {
    return m.second - 2 * c * m.first + c * c * m.mass;
  }
  [[nodiscard]] double error(int lo, int hi, int level) const {
    auto const &a = sums_[static_cast<unsigned>(lo)], &b = sums_[static_cast<unsigned>(hi)];
    return about({b.mass - a.mass, b.first - a.first, b.second - a.second}, level * unit_);
  }

  double unit_;
  int largest_;
  std::vector<cell_moments> sums_{cell_moments{}};  // over [0, i * unit / 2]
  cell_moments tail_;
};

/// The best `count` magnitudes in 1..largest for this step: the error is a sum over neighbours, so the optimum is a
/// shortest path of `count` nodes.
inline std::vector<int> best_magnitudes(sphere_density const& f, double step, int count, int largest) {
  stepped_density const errors{f, step, largest};
  auto const at = [&](int k, int m) { return static_cast<std::size_t>(k * (largest + 1) + m); };
  std::vector<double> cost(at(count, 0), std::numeric_limits<double>::infinity());
  std::vector<int> before(cost.size());
  std::vector<double> edge(static_cast<std::size_t>((largest + 1) * (largest + 1)));
  for (int b = 1; b <= largest; ++b) {
    cost[at(0, b)] = errors.below(b);
    for (int a = 1; a < b; ++a) edge[at(b, a)] = errors.between(a, b);
  }
  for (int k = 1; k < count; ++k)
    for (int b = k + 1; b <= largest; ++b)
      for (int a = k; a < b; ++a)
        if (double const c = cost[at(k - 1, a)] + edge[at(b, a)]; c < cost[at(k, b)])
          cost[at(k, b)] = c, before[at(k, b)] = a;
  int last = count;
  double best = std::numeric_limits<double>::infinity();
  for (int m = count; m <= largest; ++m)
    if (double const c = cost[at(count - 1, m)] + errors.above(m); c < best) best = c, last = m;
  std::vector<int> magnitudes(static_cast<std::size_t>(count));
  for (int k = count - 1; k >= 0; last = before[at(k, last)], --k) magnitudes[static_cast<unsigned>(k)] = last;
  return magnitudes;
}

/// Every step of at most 13 - width significant bits that puts the top integer of `width` bits at 0.75 to 2.5 times the
/// level `top`.
inline std::vector<double> admissible_steps(double top, int width) {
  int const largest = (1 << width) - 1;
  auto const grain = [&](double step) { return std::ldexp(1., std::ilogb(step) - (12 - width)); };
  double const first = 0.75 * top / largest;
  std::vector<double> steps;
  for (double step = std::ceil(first / grain(first)) * grain(first); step * largest <= 2.5 * top; step += grain(step))
    steps.push_back(step);
  return steps;
}

}  // namespace detail

/// The step and the integers of least D at d = 128 with the plain scale, one table of a width for all head sizes.
/// A decoded value is a half (11 significant bits) times step times integer and must be exact in float (24 bits), so
/// step and the largest integer have at most 13 bits together. The integers are those the kernels can unpack: up to 1,
/// 3, 127 and 255 at 1, 2, 3 and 4 bits. An empty table (bits = 0) when bits is not 1..4.
[[nodiscard]] inline integer_table search_integer_table(int bits) {
  if (bits < 1 || bits > 4) return {};
  constexpr int d = 128;
  sphere_density const f{d};
  double const top = solve_codebook(d, bits).centroids.back() * std::sqrt(static_cast<double>(d));
  integer_table best{.bits = bits, .step = 0, .magnitudes = {}, .distortion = std::numeric_limits<double>::infinity()};
  int const widest = bits == 4 ? 8 : bits == 3 ? 7 : bits;  // bits of the largest integer
  for (int width = bits; width <= widest; ++width) {
    for (double const step : detail::admissible_steps(top, width)) {
      auto const magnitudes = detail::best_magnitudes(f, step, 1 << (bits - 1), (1 << width) - 1);
      if (double const distortion = distortion_of(magnitudes, step, d); distortion < best.distortion)
        best.step = step, best.magnitudes = magnitudes, best.distortion = distortion;
    }
  }
  return best;
}

}  // namespace kvant::inline v0
