#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <kvant/format/hadamard.hpp>
#include <kvant/format/rotation.hpp>
#include <kvant/layout/slot_order.hpp>

#include "support/catch.hpp"
#include "support/statistics.hpp"

namespace {

constexpr std::array all_head_dims{64, 80, 96, 112, 128, 160, 192, 256, 320, 512, 576};

using rotation = kvant::randomized_hadamard<>;

std::size_t index(int i) { return static_cast<std::size_t>(i); }

template <class Real>
std::vector<Real> normal_vector(int n, std::uint64_t seed) {
  support::generator random{seed};
  std::vector<Real> x(index(n));
  for (Real& v : x) v = static_cast<Real>(random.normal());
  return x;
}

double inner_product(auto const& x, auto const& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return sum;
}
double norm(auto const& x) { return std::sqrt(inner_product(x, x)); }

/// y = H S x / sqrt(dim) entry by entry: the channel at position p gets its sign and goes to slot_of(p).
template <std::uint64_t Seed>
std::vector<double> by_matrix(auto const& x) {
  int const dim = static_cast<int>(x.size());
  std::vector<double> y(x.size());
  for (int p = 0; p < dim; ++p) {
    double const signed_x = (kvant::negative_sign(Seed, p) ? -1 : 1) * static_cast<double>(x[index(p)]);
    int const column = kvant::slot_of(p, dim);
    for (int row = 0; row < dim; ++row)
      y[index(row)] += kvant::hadamard_negative(dim, row, column) ? -signed_x : signed_x;
  }
  for (double& v : y) v /= std::sqrt(static_cast<double>(dim));
  return y;
}

double largest_difference(auto const& x, auto const& y) {
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
  return largest;
}

template <class Rotation, class Real>
std::vector<Real> forward(std::vector<Real> const& x) {
  std::vector<Real> y(x.size());
  Rotation::forward(x.data(), y.data(), static_cast<int>(x.size()));
  return y;
}
template <class Rotation, class Real>
std::vector<Real> inverse(std::vector<Real> y) {
  std::vector<Real> x(y.size());
  Rotation::inverse(y.data(), x.data(), static_cast<int>(y.size()));
  return x;
}

static_assert(std::is_empty_v<rotation> && rotation::rotates && !kvant::no_rotation::rotates);
static_assert(kvant::first_channels<512, rotation>::rotates &&
              !kvant::first_channels<512, kvant::no_rotation>::rotates);
static_assert(kvant::hadamard_factor(64) == 1 && kvant::hadamard_factor(96) == 12 && kvant::hadamard_factor(80) == 20);
static_assert(kvant::hadamard_factor(112) == 28 && kvant::hadamard_factor(576) == 36 &&
              kvant::hadamard_factor(176) == 0);
static_assert(kvant::hadamard_factor(0) == 0 && kvant::hadamard_factor(-64) == 0 && kvant::hadamard_factor(6) == 0);

}  // namespace

TEST_CASE("Hadamard matrices have orthogonal rows, exactly", "[rotation]") {
  auto const dim =
      GENERATE(16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 288, 320, 384, 448, 512, 576, 640, 768, 1024);
  CAPTURE(dim);
  int const words = (dim + 63) / 64;
  std::vector<std::uint64_t> negative(index(dim * words));  // [row, word]
  for (int row = 0; row < dim; ++row)
    for (int column = 0; column < dim; ++column)
      if (kvant::hadamard_negative(dim, row, column))
        negative[index(row * words + column / 64)] |= std::uint64_t{1} << column % 64;
  int wrong = 0;
  for (int a = 0; a < dim; ++a)
    for (int b = 0; b < a; ++b) {
      int differing = 0;
      for (int w = 0; w < words; ++w)
        differing += std::popcount(negative[index(a * words + w)] ^ negative[index(b * words + w)]);
      wrong += 2 * differing != dim;
    }
  REQUIRE(wrong == 0);
}

TEST_CASE("the transform is the matrix, exactly on small integers", "[rotation]") {
  auto const dim = GENERATE(from_range(all_head_dims));
  CAPTURE(dim);
  support::generator random{7};
  std::vector<float> x(index(dim));
  for (float& v : x) v = static_cast<float>(static_cast<int>(random.bits() % 2001) - 1000);
  std::vector<float> y = x, transposed = x;
  kvant::hadamard_transform(y.data(), dim);
  kvant::hadamard_transform<1, true>(transposed.data(), dim);
  int wrong = 0, wrong_transposed = 0;
  for (int row = 0; row < dim; ++row) {
    float sum = 0, sum_transposed = 0;  // below 2^24
    for (int column = 0; column < dim; ++column) {
      sum += kvant::hadamard_negative(dim, row, column) ? -x[index(column)] : x[index(column)];
      sum_transposed += kvant::hadamard_negative(dim, column, row) ? -x[index(column)] : x[index(column)];
    }
    wrong += y[index(row)] != sum;
    wrong_transposed += transposed[index(row)] != sum_transposed;
  }
  REQUIRE(wrong == 0);
  REQUIRE(wrong_transposed == 0);
}

TEMPLATE_TEST_CASE("a rotation is signs, slot order and Hadamard matrix", "[rotation]", float, double) {
  auto const dim = GENERATE(from_range(all_head_dims));
  CAPTURE(dim);
  double const small = std::is_same_v<TestType, float> ? 2e-6 : 1e-14;
  auto const x = normal_vector<TestType>(dim, 11);
  REQUIRE(largest_difference(forward<rotation>(x), by_matrix<rotation::seed>(x)) < small);
  REQUIRE(largest_difference(forward<kvant::randomized_hadamard<5>>(x), by_matrix<5>(x)) < small);
}

TEMPLATE_TEST_CASE("the inverse undoes a rotation, and a rotation the inverse", "[rotation]", float, double) {
  auto const dim = GENERATE(from_range(all_head_dims));
  CAPTURE(dim);
  double const small = std::is_same_v<TestType, float> ? 2e-6 : 1e-14;
  auto const x = normal_vector<TestType>(dim, 12);
  REQUIRE(largest_difference(inverse<rotation>(forward<rotation>(x)), x) < small);
  REQUIRE(largest_difference(forward<rotation>(inverse<rotation>(x)), x) < small);
}

TEST_CASE("a rotation keeps norms and inner products", "[rotation]") {
  auto const dim = GENERATE(from_range(all_head_dims));
  CAPTURE(dim);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto const x = normal_vector<float>(dim, 100 + seed), y = normal_vector<float>(dim, 200 + seed);
    auto const rotated_x = forward<rotation>(x), rotated_y = forward<rotation>(y);
    REQUIRE(std::abs(norm(rotated_x) - norm(x)) <= 1e-5 * norm(x));
    REQUIRE(std::abs(inner_product(rotated_x, rotated_y) - inner_product(x, y)) <= 1e-5 * norm(x) * norm(y));
    auto const back = inverse<rotation>(y);
    REQUIRE(std::abs(inner_product(rotated_x, y) - inner_product(x, back)) <=
            1e-5 * norm(x) * norm(y));  // q to the key
  }
}

TEMPLATE_TEST_CASE("vectors side by side turn as each alone, bit for bit", "[rotation]", rotation, kvant::no_rotation,
                   (kvant::first_channels<64, rotation>)) {
  auto const dim = GENERATE(from_range(all_head_dims));
  CAPTURE(dim);
  constexpr int lanes = 16;
  auto const x = normal_vector<float>(dim * lanes, 13);  // [dim, lanes]
  std::vector<float> y(x.size()), back(x.size());
  TestType::template forward<lanes>(x.data(), y.data(), dim);
  auto overwritten = y;
  TestType::template inverse<lanes>(overwritten.data(), back.data(), dim);
  int wrong = 0, wrong_back = 0;
  for (int lane = 0; lane < lanes; ++lane) {
    std::vector<float> alone(index(dim));
    for (int c = 0; c < dim; ++c) alone[index(c)] = x[index(c * lanes + lane)];
    auto const turned = forward<TestType>(alone), returned = inverse<TestType>(turned);
    for (int c = 0; c < dim; ++c) {
      wrong +=
          std::bit_cast<std::uint32_t>(turned[index(c)]) != std::bit_cast<std::uint32_t>(y[index(c * lanes + lane)]);
      wrong_back += std::bit_cast<std::uint32_t>(returned[index(c)]) !=
                    std::bit_cast<std::uint32_t>(back[index(c * lanes + lane)]);
    }
  }
  REQUIRE(wrong == 0);
  REQUIRE(wrong_back == 0);
}

TEST_CASE("no rotation leaves every bit", "[rotation]") {
  auto const dim = GENERATE(64, 80, 208, 576);
  auto const x = normal_vector<float>(dim, 14);
  REQUIRE(kvant::no_rotation::supports(dim));
  REQUIRE(forward<kvant::no_rotation>(x) == x);
  REQUIRE(inverse<kvant::no_rotation>(x) == x);
}

TEST_CASE("a rotation of the first channels leaves the rest and is the rotation of those", "[rotation]") {
  using latent = kvant::first_channels<512, rotation>;
  auto const x = normal_vector<float>(576, 15);
  auto const y = forward<latent>(x);
  std::vector<float> const head(x.begin(), x.begin() + 512), tail(x.begin() + 512, x.end());
  REQUIRE(std::vector<float>(y.begin(), y.begin() + 512) == forward<rotation>(head));
  REQUIRE(std::vector<float>(y.begin() + 512, y.end()) == tail);
  REQUIRE(largest_difference(inverse<latent>(y), x) < 2e-6);
  auto const back = inverse<latent>(y);
  REQUIRE(std::vector<float>(back.begin() + 512, back.end()) == tail);
}

TEST_CASE("what a rotation cannot serve it refuses", "[rotation]") {
  for (int const dim : all_head_dims) {
    CAPTURE(dim);
    REQUIRE(rotation::supports(dim));
    REQUIRE(kvant::no_rotation::supports(dim));
  }
  for (int const dim : {72, 176, 208, 240, 272, 528, 48 * 11, 8, 100, 12, 20, 36, 0, -64}) {
    CAPTURE(dim);
    REQUIRE_FALSE(rotation::supports(dim));
    REQUIRE(kvant::no_rotation::supports(dim) == (dim > 0 && dim % 16 == 0));
  }
  STATIC_REQUIRE(kvant::first_channels<512, rotation>::supports(576));
  STATIC_REQUIRE(kvant::first_channels<512, rotation>::supports(512));
  STATIC_REQUIRE_FALSE(kvant::first_channels<512, rotation>::supports(256));
  STATIC_REQUIRE_FALSE(kvant::first_channels<512, rotation>::supports(520));
  STATIC_REQUIRE_FALSE(kvant::first_channels<208, rotation>::supports(576));
}

TEST_CASE("a sign is the top bit of splitmix64 of seed and channel", "[rotation]") {
  // The first numbers of splitmix64 from state 0: e220a839.., 6e789e6a.., 06c45d18.., f88bb8a8.., 1b39896a...
  constexpr bool from_zero[] = {true, false, false, true, false};
  for (int c = 0; c < 5; ++c) REQUIRE(kvant::negative_sign(0, c) == from_zero[c]);

  int wrong = 0;
  for (std::uint64_t const seed : {std::uint64_t{0}, std::uint64_t{1}, rotation::seed, ~std::uint64_t{0}}) {
    support::generator splitmix{seed};
    for (int c = 0; c < 1024; ++c) wrong += kvant::negative_sign(seed, c) != (splitmix.bits() >> 63 != 0);
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("signs differ between seeds and are balanced", "[rotation]") {
  constexpr int channels = 1024, seeds = 64;
  int negative = 0, differing = 0, most = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    int of_seed = 0;
    for (int c = 0; c < channels; ++c) {
      of_seed += kvant::negative_sign(seed, c);
      differing += kvant::negative_sign(seed, c) != kvant::negative_sign(seed + 1, c);
    }
    negative += of_seed;
    most = std::max(most, std::abs(of_seed - channels / 2));
  }
  double const error = std::sqrt(0.25 * channels * seeds);  // standard error of a count of fair signs: 128 of 65536
  REQUIRE(std::abs(negative - channels * seeds / 2) <= 4 * error);
  REQUIRE(std::abs(differing - channels * seeds / 2) <= 4 * error);
  REQUIRE(most <= 4 * std::sqrt(0.25 * channels));

  for (int const dim : all_head_dims) {  // the default seed over each head
    int of_head = 0;
    for (int c = 0; c < dim; ++c) of_head += kvant::negative_sign(rotation::seed, c);
    CAPTURE(dim, of_head);
    REQUIRE(std::abs(of_head - 0.5 * dim) <= 3 * std::sqrt(0.25 * dim));
  }
}

TEST_CASE("the signs of a channel are the same at every head size", "[rotation]") {
  // Row 0 of every matrix is +1 or its entries are known: what is left of the sum is the channel's sign.
  auto const dim = GENERATE(from_range(all_head_dims));
  CAPTURE(dim);
  int wrong = 0;
  for (int c = 0; c < dim; ++c) {
    std::vector<float> x(index(dim));
    x[index(c)] = 1;
    bool const negative = forward<rotation>(x)[0] < 0;
    wrong += negative !=
             (kvant::negative_sign(rotation::seed, c) != kvant::hadamard_negative(dim, 0, kvant::slot_of(c, dim)));
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("a vector with one channel set becomes flat", "[rotation]") {
  auto const dim = GENERATE(from_range(all_head_dims));
  CAPTURE(dim);
  auto const flat = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
  int wrong = 0;
  for (int c = 0; c < dim; ++c) {
    std::vector<float> x(index(dim));
    x[index(c)] = -3;
    for (float const y : forward<rotation>(x)) wrong += std::abs(y) != 3 * flat;
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("slots and positions are permutations of each other within runs of 32", "[rotation]") {
  for (int dim = 16; dim <= 1024; dim += 16) {
    CAPTURE(dim);
    std::vector<int> seen(index(dim));
    int wrong = 0;
    for (int p = 0; p < dim; ++p) {
      int const slot = kvant::slot_of(p, dim);
      wrong += slot < 0 || slot >= dim || kvant::position_of(slot, dim) != p || slot / 32 != p / 32;
      if (slot >= 0 && slot < dim) ++seen[index(slot)];
    }
    wrong += static_cast<int>(std::count_if(seen.begin(), seen.end(), [](int n) { return n != 1; }));
    REQUIRE(wrong == 0);
  }
}

TEST_CASE("a lane's eight values are the operands of its two fragments", "[rotation]") {
  // Position 32c + 8t + i <-> slot: k = 2t, 2t + 1, 2t + 8, 2t + 9 of fragment 2c, then the same of fragment 2c + 1.
  int wrong = 0;
  for (int c = 0; c < 3; ++c)
    for (int t = 0; t < 4; ++t)
      for (int i = 0; i < 8; ++i) {
        int const k = 2 * t + std::array{0, 1, 8, 9}[index(i % 4)];
        wrong += kvant::slot_of(32 * c + 8 * t + i, 112) != 16 * (2 * c + i / 4) + k;
      }
  for (int t = 0; t < 4; ++t)  // the last 16 of 112: four values a lane
    for (int i = 0; i < 4; ++i)
      wrong += kvant::slot_of(96 + 4 * t + i, 112) != 96 + 2 * t + std::array{0, 1, 8, 9}[index(i)];
  REQUIRE(wrong == 0);
  STATIC_REQUIRE(kvant::slot_of(13, 128) == 18 + 1);
  STATIC_REQUIRE(kvant::position_of(19, 128) == 13);
}
