#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <kvant/cache/page_codec.hpp>
#include <kvant/format/policies.hpp>

#include "support/catch.hpp"
#include "support/rotation_matrix.hpp"
#include "support/statistics.hpp"
#include "support/unit_reference.hpp"

namespace support {

/// Nothing is done to values.
using plain_exact = kvant::exact<float>;
inline constexpr int page_tokens = 64;
inline std::size_t at(int i) { return static_cast<std::size_t>(i); }

/// [page_tokens, dim]: spread[c] * normal + offset[c].
inline std::vector<float> make_rows(std::uint64_t seed, std::vector<double> const& spread,
                                    std::vector<double> const& offset) {
  generator random(seed);
  std::vector<float> rows;
  for (int token = 0; token < page_tokens; ++token)
    for (std::size_t c = 0; c < spread.size(); ++c)
      rows.push_back(static_cast<float>(offset[c] + spread[c] * random.normal()));
  return rows;
}
inline std::vector<double> make_spread(std::uint64_t seed, int dim) {
  generator random(seed);
  std::vector<double> spread;
  for (int c = 0; c < dim; ++c) spread.push_back(std::exp(random.normal()));
  return spread;
}
/// A vector of this norm: all in one channel, or in all of them.
inline std::vector<double> make_offset(std::uint64_t seed, int dim, double norm, bool one_channel = false) {
  generator random(seed);
  std::vector<double> x(at(dim));
  double sum = 0;
  for (auto& v : x) v = one_channel ? 0 : random.normal(), sum += v * v;
  if (one_channel) x[at(dim / 3)] = sum = 1;
  for (auto& v : x) v *= norm / std::sqrt(sum);
  return x;
}

inline double dot(double const* a, float const* b, int dim) {
  double sum = 0;
  for (int c = 0; c < dim; ++c) sum += a[c] * static_cast<double>(b[c]);
  return sum;
}
inline double energy(std::vector<double> const& x) {
  double sum = 0;
  for (double const v : x) sum += v * v;
  return sum;
}

/// One page of keys, of one head, with values beside it.
template <class Key, class Value = plain_exact>
struct page {
  kvant::page_codec<Key, Value> codec;
  std::vector<kvant::half> factors;
  std::vector<std::byte> unit;
  std::vector<double> keys, values;  // decoded

  page(std::vector<float> const& k, std::vector<float> const& v, int masked, std::vector<kvant::half> given = {})
      : factors(given) {
    int const key_dim = static_cast<int>(k.size()) / page_tokens, value_dim = static_cast<int>(v.size()) / page_tokens;
    REQUIRE(codec.prepare({1, key_dim, value_dim, page_tokens}).message() == "");
    if constexpr (Key::is_balanced) {
      if (factors.empty()) {
        factors.assign(at(key_dim), kvant::half{});
        codec.make_factors(k.data(), key_dim, masked, factors.data());
      }
    }
    unit.resize(at(codec.layout().unit_bytes()), std::byte{0xee});
    codec.encode_unit(k.data(), key_dim, v.data(), value_dim, masked, factors.data(), unit.data());
    keys.resize(k.size()), values.resize(v.size());
    codec.decode_unit(unit.data(), factors.data(), keys.data(), values.data());
  }
  explicit page(std::vector<float> const& k, int masked = 0, std::vector<kvant::half> given = {})
      : page(k, std::vector<float>(page_tokens * 64), masked, given) {}
  [[nodiscard]] unit_side<Key, Value, side::key> key_side() const { return {codec.layout(), unit.data()}; }
  [[nodiscard]] unit_side<Key, Value, side::value> value_side() const { return {codec.layout(), unit.data()}; }
};

/// q . k of every token the way kernels compute it: q times the factors, rotated once; its dot with the coded residual;
/// q . mean added once for the page.
template <class Key, class Value>
std::vector<double> scores(page<Key, Value> const& p, std::vector<double> q) {
  int const dim = static_cast<int>(q.size());
  if constexpr (Key::is_balanced)
    for (int c = 0; c < dim; ++c) q[at(c)] *= static_cast<double>(static_cast<float>(p.factors[at(c)]));
  auto const rotated = rotation_matrix<kvant::rotation_of<Key>>::of(dim).rotate(q.data());
  auto const keys = p.key_side();
  double of_mean = 0;
  if constexpr (Key::is_centered)
    for (int c = 0; c < dim; ++c) of_mean += rotated[at(c)] * keys.mean(c);
  std::vector<double> all;
  for (int token = 0; token < page_tokens; ++token) {
    double score = of_mean;
    for (int c = 0; c < dim; ++c) score += rotated[at(c)] * keys.coordinate(token, c);
    all.push_back(score);
  }
  return all;
}

}  // namespace support
