#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <kvant/cache/views.hpp>
#include <kvant/half.hpp>
#include <kvant/layout/page_layout.hpp>

#include "support/statistics.hpp"

namespace support {

/// Keys and values of a page, [tokens, heads, dim], and balance factors, [heads, key_dim]. Every number is one that half,
/// bfloat16 and float hold.
struct page_input {
  kvant::page_shape shape;
  std::vector<float> keys, values;
  std::vector<kvant::half> factors;
};

inline page_input make_input(kvant::page_shape shape, std::uint64_t seed) {
  support::generator random(seed);
  auto const fill = [&](int dim, double bias) {
    std::vector<double> center, spread;
    for (int c = 0; c < shape.kv_heads * dim; ++c) {
      center.push_back(bias * random.normal());
      spread.push_back(std::exp(0.5 * random.normal()));
    }
    std::vector<float> x;
    for (int token = 0; token < shape.page_tokens; ++token)
      for (std::size_t c = 0; c < center.size(); ++c) {
        auto const v = static_cast<float>(kvant::bfloat16{static_cast<float>(center[c] + spread[c] * random.normal())});
        x.push_back(std::abs(v) < 0x1p-16f ? 0.f : v);
      }
    return x;
  };
  page_input in{shape, fill(shape.key_dim, 2), fill(shape.value_dim, 0.3), {}};
  for (int i = 0; i < shape.kv_heads * shape.key_dim; ++i)
    in.factors.push_back(kvant::half{static_cast<float>(std::exp(random.normal()))});
  return in;
}

template <kvant::element T>
std::vector<T> as(std::vector<float> const& x) {
  std::vector<T> y;
  for (float const v : x) y.push_back(static_cast<T>(v));
  return y;
}

/// Rows of one head, [tokens, dim], of [tokens, heads, dim].
inline std::vector<float> head_rows(std::vector<float> const& x, kvant::page_shape s, int dim, int head) {
  std::vector<float> rows;
  for (int token = 0; token < s.page_tokens; ++token) {
    auto const row = x.begin() + (std::int64_t{token} * s.kv_heads + head) * dim;
    rows.insert(rows.end(), row, row + dim);
  }
  return rows;
}

template <class T>
kvant::token_rows<T> token_major(std::vector<T> const& x, kvant::page_shape s, int dim) {
  return {x.data(), std::int64_t{s.kv_heads} * dim, dim};
}

}  // namespace support
