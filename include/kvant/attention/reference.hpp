#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <kvant/attention/check.hpp>
#include <kvant/attention/options.hpp>
#include <kvant/cache/page_codec.hpp>
#include <kvant/cache/views.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/status.hpp>

namespace kvant::inline v0 {

/// Where reference_attention writes. Rows are those of the queries, in their numbering.
struct reference_output {
  double* out = nullptr;          // [rows, q_heads, value_dim]
  double* log_sum_exp = nullptr;  // [rows, q_heads], natural logarithm; may be null
  double* weights = nullptr;  // [rows, q_heads, weight_stride]: softmax by position, 0 where not visible; may be null
  std::int64_t weight_stride = 0;  // at least the longest length
};

namespace detail {

template <element T>
double to_double(T x) {
  return static_cast<double>(static_cast<float>(x));
}
inline double to_double(double x) { return x; }

/// One kv head of a sequence by absolute position; `present` where there is a token, zeros elsewhere.
struct gathered_head {
  std::vector<double> keys, values;  // [length, key_dim], [length, value_dim]
  std::vector<bool> present;         // [length]
};

template <kv_format Key, kv_format Value, element T>
gathered_head gather_head(page_codec<Key, Value>& codec, layer_view<T> const& layer, std::int32_t i, int head) {
  page_shape const shape = codec.layout().shape;
  auto const key_dim = static_cast<std::size_t>(shape.key_dim), value_dim = static_cast<std::size_t>(shape.value_dim);
  auto const& s = layer.sequences;
  std::int64_t const length = s.length[i], history = s.history[i], first = s.first_of(i), sinks = layer.side.sinks;
  auto const tokens = static_cast<std::size_t>(length), page_tokens = static_cast<std::size_t>(shape.page_tokens);
  gathered_head all{std::vector<double>(tokens * key_dim), std::vector<double>(tokens * value_dim),
                    std::vector<bool>(tokens)};
  auto const put = [&](std::int64_t position, auto const* key, auto const* value) {
    auto const at = static_cast<std::size_t>(position);
    for (std::size_t c = 0; c < key_dim; ++c) all.keys[at * key_dim + c] = to_double(key[c]);
    for (std::size_t c = 0; c < value_dim; ++c) all.values[at * value_dim + c] = to_double(value[c]);
    all.present[at] = true;
  };

  for (std::int64_t p = 0; p < std::min(sinks, length); ++p)
    put(p, layer.side.sink(s.record_of(i), side::key, head, p), layer.side.sink(s.record_of(i), side::value, head, p));

  std::vector<double> page_keys(page_tokens * key_dim), page_values(page_tokens * value_dim);
  half const* const factors = Key::is_balanced && history > first ? layer.side.factor(s.record_of(i), head) : nullptr;
  for (std::int64_t begin = first; begin < history; begin += shape.page_tokens) {
    std::int32_t const page = layer.table.page(i, begin / shape.page_tokens);
    codec.decode_unit(layer.pages.unit(page, head), factors, page_keys.data(), page_values.data());
    for (std::int64_t p = std::max(begin, sinks); p < begin + shape.page_tokens; ++p)
      put(p, page_keys.data() + (p - begin) * shape.key_dim, page_values.data() + (p - begin) * shape.value_dim);
  }

  for (std::int64_t p = std::max(history, sinks); p < length; ++p)
    put(p, layer.window.row(s.slot_of(i), side::key, head, p), layer.window.row(s.slot_of(i), side::value, head, p));
  return all;
}

/// Where one query writes.
struct one_result {
  double* out = nullptr;          // [value_dim]
  double* log_sum_exp = nullptr;  // may be null
  double* weights = nullptr;      // [weight_stride], may be null
};

/// One query at `position` against one head. Adds to `result.out`, which holds zeros, like `result.weights`.
inline void attend(std::vector<double> const& query, int value_dim, gathered_head const& head, std::int64_t position,
                   int q_head, attention_options const& options, one_result result) {
  auto const key_dim = static_cast<std::int64_t>(query.size());
  double const scale = options.softmax_scale != 0 ? options.softmax_scale : 1 / std::sqrt(static_cast<double>(key_dim));
  double const sink = options.sink_logits != nullptr ? to_double(options.sink_logits[q_head])
                                                     : -std::numeric_limits<double>::infinity();
  bool const causal = options.rows == query_rows::causal_tail;

  std::vector<std::int64_t> visible;
  std::vector<double> logits;
  for (std::int64_t j = 0; j < static_cast<std::int64_t>(head.present.size()); ++j) {
    if (!head.present[static_cast<std::size_t>(j)] || (causal && j > position)) continue;
    if (options.sliding_window > 0 && position - j >= options.sliding_window) continue;
    double const* const key = head.keys.data() + j * key_dim;
    double dot = 0;
    for (std::size_t c = 0; c < query.size(); ++c) dot += query[c] * key[c];
    double logit = scale * dot;
    if (options.soft_cap > 0) logit = options.soft_cap * std::tanh(logit / options.soft_cap);
    if (options.alibi_slopes != nullptr)
      logit += to_double(options.alibi_slopes[q_head]) * static_cast<double>(j - position);
    visible.push_back(j);
    logits.push_back(logit);
  }

  double largest = sink;
  for (double const logit : logits) largest = std::max(largest, logit);
  double sum = std::exp(sink - largest);
  for (double const logit : logits) sum += std::exp(logit - largest);

  for (std::size_t k = 0; k < visible.size(); ++k) {
    double const weight = std::exp(logits[k] - largest) / sum;
    double const* const value = head.values.data() + visible[k] * value_dim;
    for (int c = 0; c < value_dim; ++c) result.out[c] += weight * value[c];
    if (result.weights != nullptr) result.weights[visible[k]] = weight;
  }
  if (result.log_sum_exp != nullptr) *result.log_sum_exp = visible.empty() ? sink : largest + std::log(sum);
}

}  // namespace detail

/// Attention over the sinks [0, min(S, length)), the pages [max(first, S), history) and the window
/// [max(history, S), length) of every sequence of a batch, in double precision with plain loops: what every other path
/// is measured against. Tokens from S to `first` were dropped and are not visible. position_base is not used: masks and
/// ALiBi go by differences of positions. A row that sees no token gets zeros and, as log-sum-exp, the sink logit or minus
/// infinity; so do the rows of padding (a negative slot), of which nothing else is read. Takes
/// length * (key_dim + value_dim) doubles of memory for one head of one sequence at a time.
///
/// An error says what was expected and what came; nothing is written then. Keys, values and queries may be any numbers:
/// NaN in a visible token comes out as NaN, what is not visible never matters.
template <kv_format Key, kv_format Value, element T, element Q>
status reference_attention(page_shape shape, layer_view<T> const& layer, queries_view<Q> const& queries,
                           attention_options const& options, reference_output output) {
  page_codec<Key, Value> codec;
  if (status s = codec.prepare(shape); !s.ok()) return s;
  shape = codec.layout().shape;
  if (status s = detail::check_attention(codec.layout(), layer, queries, options); !s.ok()) return s;
  auto const& sequences = layer.sequences;
  std::int32_t longest = 0;
  for (std::int32_t i = 0; i < sequences.count; ++i)
    if (sequences.slot_of(i) >= 0) longest = std::max(longest, sequences.length[i]);
  bool const no_rows = sequences.count == 0 || queries.first_row(0) == queries.first_row(sequences.count);
  if (no_rows) return {};
  if (output.out == nullptr) return status::error("output: expected memory for out, got a null pointer");
  if (output.weights != nullptr && output.weight_stride < longest)
    return detail::unexpected("weight stride", "at least " + std::to_string(longest) + ", the longest length",
                              output.weight_stride);

  int const ratio = queries.q_heads / shape.kv_heads;
  std::vector<double> query(static_cast<std::size_t>(shape.key_dim));
  for (std::int32_t i = 0; i < sequences.count; ++i) {
    std::int64_t const begin = queries.first_row(i), end = queries.first_row(i + 1);
    std::int64_t const length = sequences.slot_of(i) < 0 ? 0 : sequences.length[i];
    bool const tail = options.rows == query_rows::causal_tail;
    for (int head = 0; head < shape.kv_heads; ++head) {
      detail::gathered_head const gathered =
          length > 0 && begin < end ? detail::gather_head(codec, layer, i, head) : detail::gathered_head{};
      for (std::int64_t row = begin; row < end; ++row)
        for (int q_head = head * ratio; q_head < (head + 1) * ratio; ++q_head) {
          std::int64_t const place = row * queries.q_heads + q_head;
          detail::one_result result;
          result.out = output.out + place * shape.value_dim;
          std::fill_n(result.out, shape.value_dim, 0.0);
          if (output.log_sum_exp != nullptr) result.log_sum_exp = output.log_sum_exp + place;
          if (output.weights != nullptr) {
            result.weights = output.weights + place * output.weight_stride;
            std::fill_n(result.weights, output.weight_stride, 0.0);
          }
          std::int64_t const position = tail ? length - (end - row) : length + (row - begin);
          for (std::size_t c = 0; c < query.size(); ++c) query[c] = detail::to_double(queries.row(row, q_head)[c]);
          detail::attend(query, shape.value_dim, gathered, position, q_head, options, result);
        }
    }
  }
  return {};
}

}  // namespace kvant::inline v0
