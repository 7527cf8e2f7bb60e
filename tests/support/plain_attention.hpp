#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include <kvant/attention/options.hpp>
#include <kvant/format/policies.hpp>

#include "support/attention_fixture.hpp"
#include "support/catch.hpp"

namespace support {

/// Attention of one query by its definition, over plain arrays: sums of exponentials as they are, which long double
/// holds.
struct plain_result {
  std::vector<long double> out, weights;
  long double log_sum_exp = -std::numeric_limits<long double>::infinity();
};

template <class Cache, class Queries>
plain_result plain_attention(Cache const& cache, Queries const& q, int sequence, int row, int q_head,
                             kvant::attention_options const& options) {
  auto const [kv_heads, key_dim, value_dim, page_tokens] = cache.options.shape;
  request const& r = cache.requests[static_cast<std::size_t>(sequence)];
  int const head = q_head / (q.view.q_heads / kv_heads);
  int const position = options.rows == kvant::query_rows::causal_tail ? r.length - r.rows + row : r.length + row;
  int const newest = std::min(position, r.length - 1);
  int const oldest = options.sliding_window > 0 ? std::max(0, position - options.sliding_window + 1) : 0;
  long double const scale = options.softmax_scale != 0 ? static_cast<long double>(options.softmax_scale)
                                                       : 1 / std::sqrt(static_cast<long double>(key_dim));
  auto const* const query = q.view.row(q.view.row_offsets[sequence] + row, q_head);

  plain_result result;
  result.out.resize(static_cast<std::size_t>(value_dim));
  result.weights.resize(static_cast<std::size_t>(r.length));
  long double total = 0;
  if (options.sink_logits != nullptr) total += std::exp(static_cast<long double>(options.sink_logits[q_head]));
  for (int p = oldest; p <= newest; ++p) {
    if (!cache.present(sequence, p)) continue;
    long double s = 0;
    for (int c = 0; c < key_dim; ++c)
      s += static_cast<long double>(static_cast<float>(query[c])) *
           static_cast<long double>(cache.key(sequence, p, head, c));
    s *= scale;
    auto const cap = static_cast<long double>(options.soft_cap);
    if (cap > 0) s = cap * std::tanh(s / cap);
    if (options.alibi_slopes != nullptr)
      s -= static_cast<long double>(options.alibi_slopes[q_head]) * static_cast<long double>(position - p);
    result.weights[static_cast<std::size_t>(p)] = std::exp(s);
    total += std::exp(s);
  }
  for (int p = 0; p < r.length; ++p) {
    auto& w = result.weights[static_cast<std::size_t>(p)];
    if (w == 0) continue;
    w /= total;
    for (int c = 0; c < value_dim; ++c)
      result.out[static_cast<std::size_t>(c)] += w * static_cast<long double>(cache.value(sequence, p, head, c));
  }
  if (total > 0) result.log_sum_exp = std::log(total);
  return result;
}

/// The largest difference of any output, log-sum-exp or weight from plain attention; infinity where one is not finite
/// and should be.
template <class Cache, class Queries>
double difference(Cache const& cache, Queries const& q, kvant::attention_options const& options = {}) {
  auto const came = attend(cache, q, options);
  REQUIRE(came.status.message() == "");
  auto const value_dim = static_cast<std::size_t>(cache.options.shape.value_dim);
  long double worst = 0;
  auto const compare = [&](double got, long double expected) {
    if (static_cast<long double>(got) == expected) return;
    long double const d = std::abs(static_cast<long double>(got) - expected);
    worst = d < std::numeric_limits<long double>::infinity() ? std::max(worst, d)
                                                             : std::numeric_limits<long double>::infinity();
  };
  std::size_t place = 0;
  for (int i = 0; i < cache.count(); ++i)
    for (int row = 0; row < cache.requests[static_cast<std::size_t>(i)].rows; ++row)
      for (int head = 0; head < q.view.q_heads; ++head, ++place) {
        auto const expected = plain_attention(cache, q, i, row, head, options);
        compare(came.log_sum_exp[place], expected.log_sum_exp);
        for (std::size_t c = 0; c < value_dim; ++c) compare(came.out[place * value_dim + c], expected.out[c]);
        auto const stride = static_cast<std::size_t>(came.weight_stride);
        for (std::size_t p = 0; p < stride; ++p)
          compare(came.weights[place * stride + p], p < expected.weights.size() ? expected.weights[p] : 0.L);
      }
  return static_cast<double>(worst);
}

/// What rounding makes of outputs up to 8.
inline constexpr double tolerance = 1e-12;

/// Caches and queries that need no decoding.
using exact_format = kvant::exact<float>;
using exact_cache = attention_cache<exact_format, exact_format, float>;
using queries = query_rows_of<float>;
inline constexpr kvant::page_shape small{.kv_heads = 2, .key_dim = 16, .value_dim = 32, .page_tokens = 64};

}  // namespace support
