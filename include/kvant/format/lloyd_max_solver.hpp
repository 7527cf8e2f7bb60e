#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <span>
#include <vector>

namespace kvant::inline v0 {

/// Head sizes and widths the solver takes.
inline constexpr int min_codebook_dim = 3, max_codebook_dim = 4096, max_codebook_bits = 8;

/// The best scalar quantizer for one coordinate of a random unit vector: levels and the midpoints between them.
/// `mse_total` is d * `mse_per_coord`, the relative squared error D of a whole vector.
struct codebook {
  int d = 0, bits = 0;
  std::vector<double> centroids;   // [2^bits], ascending, antisymmetric
  std::vector<double> boundaries;  // [2^bits - 1], midpoints of neighbours, the middle one 0
  double mse_per_coord = 0, mse_total = 0;
};

/// Integrals of 1, (t - c) and (t - c)^2 against a density.
struct cell_moments {
  double mass = 0, first = 0, second = 0;
};

namespace detail {

struct gauss_legendre {
  static constexpr int points = 16;
  std::array<double, points> node{}, weight{};  // on [-1, 1]

  gauss_legendre() {
    for (int i = 0; i < points; ++i) {
      double x = std::cos(std::numbers::pi * (i + 0.75) / (points + 0.5)), slope = 1;
      for (int step = 0; step < 8; ++step) {
        double before = 1, p = x;
        for (int n = 2; n <= points; ++n) {
          double const next = ((2 * n - 1) * x * p - (n - 1) * before) / n;
          before = p, p = next;
        }
        slope = points * (before - x * p) / ((1 - x) * (1 + x));
        x -= p / slope;
      }
      node[static_cast<unsigned>(i)] = x;
      weight[static_cast<unsigned>(i)] = 2 / ((1 - x) * (1 + x) * slope * slope);
    }
  }
};

}  // namespace detail

/// Density of one coordinate t of a uniformly random unit vector in d dimensions (arXiv 2504.19874, Lemma 1):
/// f(t) = Gamma(d/2) / (sqrt(pi) Gamma((d-1)/2)) * (1 - t^2)^((d-3)/2), |t| <= 1; close to N(0, 1/d).
class sphere_density {
 public:
  explicit sphere_density(int d) : d_(d), constant_(d % 2 == 0 ? 1 / std::numbers::pi : 0.5) {
    for (int n = d % 2 == 0 ? 2 : 3; n < d; n += 2) constant_ *= static_cast<double>(n) / (n - 1);
  }

  [[nodiscard]] int dim() const { return d_; }
  [[nodiscard]] double constant() const { return constant_; }
  [[nodiscard]] double operator()(double t) const {
    return t <= -1 || t >= 1 ? 0 : constant_ * std::exp(0.5 * (d_ - 3) * std::log1p(-t * t));
  }

  /// Moments about `center` of the density in [lo, hi]; relative error below 1e-13 down to masses of 1e-100.
  [[nodiscard]] cell_moments moments(double lo, double hi, double center = 0) const {
    lo = std::clamp(lo, -1., 1.), hi = std::clamp(hi, -1., 1.);
    if (!(lo < hi)) return {};
    if (lo >= 0) return right_half(lo, hi, center);
    auto const left = right_half(std::max(0., -hi), -lo, -center);
    auto const right = hi > 0 ? right_half(0, hi, center) : cell_moments{};
    return {left.mass + right.mass, right.first - left.first, left.second + right.second};
  }

 private:
  // With t = sin(angle) the integrand is constant * cos(angle)^(d-2): smooth up to the ends for every d. Panels are
  // short where it is steep; past exp(-60) of its first value the tail no longer counts.
  [[nodiscard]] cell_moments right_half(double lo, double hi, double center) const {
    auto const log_power = [&](double t) { return 0.5 * (d_ - 2) * std::log1p(-t * t); };
    double const end = std::asin(hi), first_log = log_power(lo);
    cell_moments sum;
    for (double angle = std::asin(lo); angle < end;) {
      double const panel = 1.5 / (std::sqrt(static_cast<double>(d_)) + 0.5 * (d_ - 2) * std::tan(angle));
      double const next = end - angle <= panel ? end : angle + panel;
      if (next <= angle || log_power(std::sin(angle)) < first_log - 60) break;
      for (unsigned i = 0; i < detail::gauss_legendre::points; ++i) {
        double const t = std::sin(0.5 * (angle + next) + 0.5 * (next - angle) * rule_.node[i]);
        double const w = 0.5 * (next - angle) * rule_.weight[i] * std::exp(log_power(t));
        sum.mass += w, sum.first += w * (t - center), sum.second += w * (t - center) * (t - center);
      }
      angle = next;
    }
    return {constant_ * sum.mass, constant_ * sum.first, constant_ * sum.second};
  }

  int d_;
  double constant_;
  detail::gauss_legendre rule_;
};

namespace detail {

/// The upper end of cell i of ascending magnitudes; the last cell ends at 1.
inline double upper_boundary(std::span<double const> magnitudes, std::size_t i) {
  return i + 1 < magnitudes.size() ? 0.5 * (magnitudes[i] + magnitudes[i + 1]) : 1.;
}

/// Mean squared error of one coordinate when it takes the nearest of +-magnitudes (ascending, positive).
inline double mean_squared_error(sphere_density const& f, std::span<double const> magnitudes) {
  double sum = 0, lo = 0;
  for (std::size_t i = 0; i < magnitudes.size(); ++i) {
    double const hi = upper_boundary(magnitudes, i);
    sum += f.moments(lo, hi, magnitudes[i]).second;
    lo = hi;
  }
  return 2 * sum;
}

/// `count` quantiles of the positive half of f^(1/3), the asymptotically best density of levels: every cell starts
/// with mass in it, however narrow f is.
inline std::vector<double> starting_magnitudes(int d, int count) {
  constexpr int grid = 4096;
  double const power = (d - 3) / 3. + 1;
  double const width = std::min(0.5 * std::numbers::pi, 12 * std::sqrt(3. / d)) / grid;
  std::array<double, grid + 1> cumulative{};
  for (unsigned i = 0; i < grid; ++i) cumulative[i + 1] = cumulative[i] + std::pow(std::cos((i + 0.5) * width), power);
  std::vector<double> magnitudes;
  unsigned at = 0;
  for (int k = 0; k < count; ++k) {
    double const want = cumulative[grid] * (k + 0.5) / count;
    while (at + 1 < grid && cumulative[at + 1] < want) ++at;
    magnitudes.push_back(std::sin(width * (at + (want - cumulative[at]) / (cumulative[at + 1] - cumulative[at]))));
  }
  return magnitudes;
}

/// One Newton step on "every magnitude is the mean of its cell"; the system is tridiagonal. Returns how far the
/// magnitudes were from those means before the step. A step that leaves their order is replaced by the means.
inline double improve(sphere_density const& f, std::vector<double>& magnitudes) {
  auto const n = magnitudes.size();
  std::vector<double> excess(n), ratio(n), means(n), stepped(n);  // excess: mean of the cell minus the magnitude
  double lo = 0, worst = 0, below = 0;                            // below: change of the mean with the lower neighbour
  for (std::size_t i = 0; i < n; ++i) {
    double const hi = upper_boundary(magnitudes, i);
    auto const m = f.moments(lo, hi, magnitudes[i]);
    double const shift = m.first / m.mass;
    means[i] = magnitudes[i] + shift;
    below = i == 0 ? 0 : 0.5 * f(lo) * (means[i] - lo) / m.mass;
    double const above = i + 1 == n ? 0 : 0.5 * f(hi) * (hi - means[i]) / m.mass;
    double const pivot = 1 - below - above - (i == 0 ? 0 : below * ratio[i - 1]);
    ratio[i] = above / pivot;
    excess[i] = (shift + (i == 0 ? 0 : below * excess[i - 1])) / pivot;
    worst = std::max(worst, std::abs(shift));
    lo = hi;
  }
  for (std::size_t i = n; i-- > 0;) {
    if (i + 1 < n) excess[i] += ratio[i] * excess[i + 1];
    stepped[i] = magnitudes[i] + excess[i];
  }
  bool ordered = stepped.front() > 0 && stepped.back() < 1;
  for (std::size_t i = 1; i < n; ++i) ordered = ordered && stepped[i - 1] < stepped[i];
  magnitudes = ordered ? stepped : means;
  return worst;
}

}  // namespace detail

/// The Lloyd-Max quantizer of the exact density for unit vectors in d dimensions, to machine precision.
/// An empty codebook (d = 0) when d or bits is out of range.
[[nodiscard]] inline codebook solve_codebook(int d, int bits) {
  if (d < min_codebook_dim || d > max_codebook_dim || bits < 1 || bits > max_codebook_bits) return {};
  sphere_density const f{d};
  auto magnitudes = detail::starting_magnitudes(d, 1 << (bits - 1));
  double const enough = 1e-12 / std::sqrt(static_cast<double>(d));
  for (int step = 0; step < 200; ++step)
    if (detail::improve(f, magnitudes) <= enough) break;

  codebook book{.d = d, .bits = bits, .centroids = {}, .boundaries = {}, .mse_per_coord = 0, .mse_total = 0};
  for (auto m = magnitudes.rbegin(); m != magnitudes.rend(); ++m) book.centroids.push_back(-*m);
  book.centroids.insert(book.centroids.end(), magnitudes.begin(), magnitudes.end());
  for (std::size_t i = 1; i < book.centroids.size(); ++i)
    book.boundaries.push_back(0.5 * (book.centroids[i - 1] + book.centroids[i]));
  book.mse_per_coord = detail::mean_squared_error(f, magnitudes);
  book.mse_total = d * book.mse_per_coord;
  return book;
}

/// D of vectors in d dimensions, scaled to rms 1, whose coordinates take the nearest of +-step * magnitudes
/// (positive, ascending): the plain scale rule.
[[nodiscard]] inline double distortion_of(std::span<int const> magnitudes, double step, int d) {
  std::vector<double> scaled;
  for (int const m : magnitudes) scaled.push_back(m * step / std::sqrt(static_cast<double>(d)));
  return d * detail::mean_squared_error(sphere_density{d}, scaled);
}

}  // namespace kvant::inline v0
