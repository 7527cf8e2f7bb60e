#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

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

[[nodiscard]] inline status unexpected(std::string const& what, std::string const& expected, std::int64_t got) {
  return status::error(what + ": expected " + expected + ", got " + std::to_string(got));
}

/// What can be wrong with one sequence of a batch.
template <kv_format Key, kv_format Value, element T>
status check_sequence(page_layout<Key, Value> const& layout, layer_view<T> const& layer, std::int32_t i) {
  auto const& s = layer.sequences;
  std::string const name = "sequence " + std::to_string(i) + ": ";
  int const page_tokens = layout.shape.page_tokens;
  std::string const multiple = "a multiple of the page's " + std::to_string(page_tokens) + " tokens";
  std::int32_t const length = s.length[i], history = s.history[i], first = s.first_of(i);
  if (length < 0) return unexpected(name + "length", "at least 0", length);
  if (history < 0 || history > length)
    return unexpected(name + "history", "0 to the length " + std::to_string(length), history);
  if (history % page_tokens != 0) return unexpected(name + "history", multiple, history);
  if (first < 0 || first > history)
    return unexpected(name + "first", "0 to the history " + std::to_string(history), first);
  if (first % page_tokens != 0) return unexpected(name + "first", multiple, first);

  if (length - history > layer.window.rows)
    return unexpected(name + "window rows",
                      "at least " + std::to_string(length - history) + " (length " + std::to_string(length) +
                          " - history " + std::to_string(history) + ")",
                      layer.window.rows);
  if (length > std::max(history, layer.side.sinks) && layer.window.base == nullptr)
    return status::error(name + "window: expected memory, got a null pointer");
  bool const needs_sinks = layer.side.sinks > 0 && length > 0, needs_factors = Key::is_balanced && history > first;
  if (needs_sinks && layer.side.sink_rows == nullptr)
    return status::error(name + "sinks: expected rows, got a null pointer");
  if (needs_factors && layer.side.factors == nullptr)
    return status::error(name +
                         "balance factors: expected [kv_heads, key_dim] halves for balanced keys, got a null pointer");
  if ((needs_sinks || needs_factors) && s.record_of(i) < 0)
    return unexpected(name + "side record", "at least 0", s.record_of(i));

  if (history == first) return {};
  if (layer.pages.base == nullptr) return status::error(name + "pages: expected memory, got a null pointer");
  if (layer.table.ids == nullptr) return status::error(name + "block table: expected page ids, got a null pointer");
  std::int32_t const pages = (history - first) / page_tokens;
  if (layer.table.capacity < pages)
    return unexpected(name + "block table",
                      "a capacity of at least " + std::to_string(pages) + " entries (pages of positions " +
                          std::to_string(first) + " to " + std::to_string(history - 1) + ")",
                      layer.table.capacity);
  for (std::int32_t index = first / page_tokens; index < history / page_tokens; ++index) {
    std::int32_t const id = layer.table.page(i, index);
    if (id < 0 || id >= layer.pages.count)
      return unexpected(name + "page " + std::to_string(index),
                        "an id from 0 to " + std::to_string(layer.pages.count - 1), id);
  }
  return {};
}

/// What can be wrong with a call of attention, whatever path takes it. Looks at no key, value or query.
template <kv_format Key, kv_format Value, element T, element Q>
status check_attention(page_layout<Key, Value> const& layout, layer_view<T> const& layer,
                       queries_view<Q> const& queries, attention_options const& options) {
  if (status s = check(options); !s.ok()) return s;
  int const kv_heads = layout.shape.kv_heads;
  if (queries.q_heads < 1 || queries.q_heads % kv_heads != 0)
    return unexpected("q_heads", "a multiple of the " + std::to_string(kv_heads) + " kv_heads", queries.q_heads);
  if (0 > layer.side.sinks || layer.side.sinks >= layout.shape.page_tokens)
    return unexpected("sinks", "0 to " + std::to_string(layout.shape.page_tokens - 1) + " (less than a page)",
                      layer.side.sinks);
  if (layer.pages.base != nullptr && layer.pages.head_stride < layout.unit_bytes())
    return unexpected("head stride of pages", "at least " + std::to_string(layout.unit_bytes()) + " bytes (a unit)",
                      layer.pages.head_stride);
  auto const& sequences = layer.sequences;
  if (sequences.count < 0) return unexpected("sequences", "a count of at least 0", sequences.count);
  if (sequences.count == 0) return {};
  if (sequences.length == nullptr || sequences.history == nullptr)
    return status::error("sequences: expected arrays of length and history, got a null pointer");
  if (queries.first_row(0) < 0) return unexpected("row_offsets[0]", "at least 0", queries.first_row(0));
  for (std::int32_t i = 0; i < sequences.count; ++i) {
    std::int32_t const begin = queries.first_row(i), end = queries.first_row(i + 1);
    if (end < begin)
      return unexpected("row_offsets[" + std::to_string(i + 1) + "]",
                        "at least " + std::to_string(begin) + ", the offset before it", end);
    if (end > begin && queries.data == nullptr) return status::error("queries: expected rows, got a null pointer");
    if (sequences.slot_of(i) < 0) continue;
    if (status s = check_sequence(layout, layer, i); !s.ok()) return s;
    std::int32_t const length = sequences.length[i];
    if (options.rows == query_rows::causal_tail && length > 0 && end - begin > length)
      return unexpected("sequence " + std::to_string(i) + ": query rows",
                        "at most " + std::to_string(length) + ", its tokens", end - begin);
  }
  return {};
}

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
