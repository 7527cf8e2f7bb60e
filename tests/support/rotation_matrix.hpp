#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include <kvant/format/rotation.hpp>

namespace support {

/// Rotations entry by entry: the row is a coordinate, the column a channel.
template <class Rotation>
struct matrix_of;
template <>
struct matrix_of<kvant::no_rotation> {
  static double entry(int coordinate, int channel, int) { return coordinate == channel ? 1 : 0; }
};
template <std::uint64_t Seed>
struct matrix_of<kvant::randomized_hadamard<Seed>> {
  static double entry(int coordinate, int channel, int dim) {
    bool const negative = kvant::hadamard_negative(dim, coordinate, kvant::slot_of(channel, dim));
    return (negative != kvant::negative_sign(Seed, channel) ? -1 : 1) / std::sqrt(static_cast<double>(dim));
  }
};
template <int Channels, class Rotation>
struct matrix_of<kvant::first_channels<Channels, Rotation>> {
  static double entry(int coordinate, int channel, int) {
    if (coordinate < Channels && channel < Channels) return matrix_of<Rotation>::entry(coordinate, channel, Channels);
    return coordinate == channel ? 1 : 0;
  }
};

template <class Rotation>
class rotation_matrix {
 public:
  /// Made once for each head size.
  static rotation_matrix const& of(int dim) {
    static std::map<int, rotation_matrix> made;
    return made.try_emplace(dim, dim).first->second;
  }
  explicit rotation_matrix(int dim)
      : dim_(dim), entries_(static_cast<std::size_t>(dim) * static_cast<std::size_t>(dim)) {
    for (int i = 0; i < dim; ++i)
      for (int j = 0; j < dim; ++j) entries_[at(i, j)] = matrix_of<Rotation>::entry(i, j, dim);
  }
  /// Channels -> coordinates.
  [[nodiscard]] std::vector<double> rotate(double const* x) const {
    std::vector<double> y(static_cast<std::size_t>(dim_));
    for (int i = 0; i < dim_; ++i) {
      double sum = 0;
      for (int j = 0; j < dim_; ++j) sum += entries_[at(i, j)] * x[j];
      y[static_cast<std::size_t>(i)] = sum;
    }
    return y;
  }
  /// Coordinates -> channels: the transpose.
  [[nodiscard]] std::vector<double> rotate_back(double const* y) const {
    std::vector<double> x(static_cast<std::size_t>(dim_));
    for (int i = 0; i < dim_; ++i)
      for (int j = 0; j < dim_; ++j) x[static_cast<std::size_t>(j)] += entries_[at(i, j)] * y[i];
    return x;
  }

 private:
  [[nodiscard]] std::size_t at(int i, int j) const { return static_cast<std::size_t>(i * dim_ + j); }
  int dim_;
  std::vector<double> entries_;
};

}  // namespace support
