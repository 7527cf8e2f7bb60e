#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace report {

/// A mean that grows. Without any number it is NaN: nothing was measured.
struct running_mean {
  double sum = 0;
  std::int64_t count = 0;

  void add(double x) { sum += x, ++count; }
  void add(running_mean const& other) { sum += other.sum, count += other.count; }
  [[nodiscard]] double value() const { return sum / static_cast<double>(count); }
};

/// a . b / (|a| |b|); 1 for two zero vectors, 0 for one.
[[nodiscard]] double cosine(std::span<double const> a, std::span<double const> b);

/// |exact - other| / |exact|; for exact = 0 it is 0 if other is 0 too, else 1.
[[nodiscard]] double relative_error(std::span<double const> exact, std::span<double const> other);

/// sum p ln(p / q) over the positions with p > 0; a q that underflowed to 0 counts as the least normal double.
[[nodiscard]] double kl_divergence(std::span<double const> p, std::span<double const> q);

/// Whether the largest weight is at the same position (the first of equals).
[[nodiscard]] bool same_top1(std::span<double const> p, std::span<double const> q);

/// How a format's attention over one layer differs from the exact one. Everything is a mean over query rows and q heads
/// unless it says otherwise.
struct layer_measures {
  int layer = 0;                                               // index in the model
  running_mean key_cosine, key_residual_cosine, value_cosine;  // over quantized tokens and kv heads
  running_mean output_cosine, output_rel_error, kl, top1;
  std::vector<running_mean> head_cosine;         // [q_heads]
  std::vector<running_mean> row_cosine, row_kl;  // [rows]
  double seconds = 0;                            // encoding, decoding and attention

  /// The least mean cosine of a q head.
  [[nodiscard]] double worst_head() const;
};

/// What a range of query positions has in common: [from, to).
struct position_bin {
  int from = 0, to = 0, rows = 0;
  running_mean cosine, kl;
};

/// The same over all layers of a sample.
struct sample_measures {
  std::vector<layer_measures> layers;

  [[nodiscard]] running_mean all(running_mean layer_measures::*member) const;
  [[nodiscard]] double output_cosine_worst_layer() const;
  [[nodiscard]] double output_cosine_worst_head() const;
  [[nodiscard]] double seconds() const;
  /// `bins` equal ranges over [0, tokens), without those that hold no row.
  [[nodiscard]] std::vector<position_bin> by_position(std::span<std::int32_t const> positions, int tokens,
                                                      int bins) const;
};

}  // namespace report
