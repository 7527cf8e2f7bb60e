#include "metrics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace report {

double cosine(std::span<double const> a, std::span<double const> b) {
  double aa = 0, bb = 0, ab = 0;
  for (std::size_t i = 0; i < a.size(); ++i) aa += a[i] * a[i], bb += b[i] * b[i], ab += a[i] * b[i];
  if (aa == 0 || bb == 0) return aa == bb ? 1 : 0;
  return ab / (std::sqrt(aa) * std::sqrt(bb));
}

double relative_error(std::span<double const> exact, std::span<double const> other) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += (exact[i] - other[i]) * (exact[i] - other[i]);
    norm += exact[i] * exact[i];
  }
  if (norm == 0) return error == 0 ? 0 : 1;
  return std::sqrt(error / norm);
}

double kl_divergence(std::span<double const> p, std::span<double const> q) {
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i)
    if (p[i] > 0) sum += p[i] * std::log(p[i] / std::max(q[i], std::numeric_limits<double>::min()));
  return sum;
}

bool same_top1(std::span<double const> p, std::span<double const> q) {
  return std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
}

double layer_measures::worst_head() const {
  double worst = std::numeric_limits<double>::infinity();
  for (auto const& head : head_cosine) worst = std::min(worst, head.value());
  return worst;
}

running_mean sample_measures::all(running_mean layer_measures::*member) const {
  running_mean mean;
  for (auto const& layer : layers) mean.add(layer.*member);
  return mean;
}

double sample_measures::output_cosine_worst_layer() const {
  double worst = std::numeric_limits<double>::infinity();
  for (auto const& layer : layers) worst = std::min(worst, layer.output_cosine.value());
  return worst;
}

double sample_measures::output_cosine_worst_head() const {
  double worst = std::numeric_limits<double>::infinity();
  for (auto const& layer : layers) worst = std::min(worst, layer.worst_head());
  return worst;
}

double sample_measures::seconds() const {
  double sum = 0;
  for (auto const& layer : layers) sum += layer.seconds;
  return sum;
}

std::vector<position_bin> sample_measures::by_position(std::span<std::int32_t const> positions, int tokens,
                                                       int bins) const {
  std::vector<position_bin> filled;
  for (int i = 0; i < bins; ++i) {
    auto const edge = [&](int k) { return static_cast<int>(std::int64_t{tokens} * k / bins); };
    position_bin bin;
    bin.from = edge(i), bin.to = edge(i + 1);
    for (std::size_t r = 0; r < positions.size(); ++r) {
      if (positions[r] < bin.from || positions[r] >= bin.to) continue;
      ++bin.rows;
      for (auto const& layer : layers) bin.cosine.add(layer.row_cosine[r]), bin.kl.add(layer.row_kl[r]);
    }
    if (bin.rows > 0) filled.push_back(bin);
  }
  return filled;
}

}  // namespace report
