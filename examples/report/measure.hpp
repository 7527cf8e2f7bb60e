#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <kvant/attention/reference.hpp>

#include "metrics.hpp"
#include "plain_cache.hpp"
#include "sample.hpp"

namespace report {

/// How many of the newest and of the first tokens stay exact.
struct setting {
  int window = 0, sinks = 0;
  friend bool operator==(setting, setting) = default;
};

/// Attention over one layer with nothing quantized: what the formats are measured against.
struct exact_attention {
  std::vector<double> out;      // [rows, q_heads, value_dim]
  std::vector<double> weights;  // [rows, q_heads, tokens]
};

/// One layer, one setting; the format is the template argument of what measures it.
struct layer_task {
  sample const& data;
  layer_inputs const& layer;
  exact_attention const& exact;
  setting how;
};

/// The tokens in pages when the token at `position` attends: what the commit after the step before it has quantized.
[[nodiscard]] constexpr int committed(int position, int window, int page_tokens) {
  return std::max(0, position - window) / page_tokens * page_tokens;
}

/// Adds the cosines of decoded rows of one kv head, tokens [begin, end). Rows count from token 0.
void compare_tokens(layer_task const& task, int head, int begin, int end, std::span<double const> keys,
                    std::span<double const> values, layer_measures& into);

/// Adds what attention of query rows [begin, end) came to; out and weights begin at row `begin`.
void compare_rows(layer_task const& task, int begin, int end, std::span<double const> out,
                  std::span<double const> weights, layer_measures& into);

[[nodiscard]] kvant::attention_options options_of(sample const& s, layer_inputs const& layer);

/// Reference attention for query rows [begin, end): each row is a sequence that ends with it, and all share one cache.
template <kvant::kv_format Key, kvant::kv_format Value>
void attend(plain_cache<Key, Value>& cache, sample const& s, layer_inputs const& layer,
            std::vector<std::int32_t> const& histories, int begin, int end, std::vector<double>& out,
            std::vector<double>& weights) {
  auto const count = static_cast<std::size_t>(end - begin), width = static_cast<std::size_t>(s.q_heads);
  std::vector<std::int32_t> lengths, offsets{0};
  for (int r = begin; r < end; ++r) {
    lengths.push_back(s.positions[static_cast<std::size_t>(r)] + 1);
    offsets.push_back(r - begin + 1);
  }
  out.resize(count * width * static_cast<std::size_t>(s.value_dim));
  weights.resize(count * width * static_cast<std::size_t>(s.tokens));

  auto view = cache.view();
  view.sequences.length = lengths.data();
  view.sequences.history = histories.data() + begin;
  view.sequences.count = end - begin;
  kvant::queries_view<kvant::half> queries;
  queries.head_stride = s.key_dim, queries.row_stride = std::int64_t{s.q_heads} * s.key_dim;
  queries.data = layer.q.data() + begin * queries.row_stride;
  queries.row_offsets = offsets.data(), queries.q_heads = s.q_heads;
  kvant::reference_output output;
  output.out = out.data(), output.weights = weights.data(), output.weight_stride = s.tokens;
  auto const done = kvant::reference_attention<Key, Value>(cache.shape(), view, queries, options_of(s, layer), output);
  if (!done.ok()) throw std::runtime_error(s.path + ": layer " + std::to_string(layer.index) + ": " + done.message());
}

/// Everything that is measured of one pair of formats on one layer.
template <kvant::kv_format Key, kvant::kv_format Value>
layer_measures measure_layer(layer_task const& task) {
  auto const start = std::chrono::steady_clock::now();
  auto const& s = task.data;
  kvant::page_layout<Key, Value> const layout(kvant::page_shape{s.kv_heads, s.key_dim, s.value_dim, 0});
  std::vector<std::int32_t> histories;
  for (std::int32_t const p : s.positions) histories.push_back(committed(p, task.how.window, layout.shape.page_tokens));
  int const history = *std::max_element(histories.begin(), histories.end());

  plain_cache<Key, Value> cache;
  auto const built =
      cache.build(layout.shape, s.keys(task.layer), s.values(task.layer), s.tokens, history, task.how.sinks);
  if (!built.ok()) throw std::runtime_error(s.path + ": " + built.message());

  layer_measures measures;
  measures.layer = task.layer.index;
  measures.head_cosine.resize(static_cast<std::size_t>(s.q_heads));
  measures.row_cosine.resize(static_cast<std::size_t>(s.rows));
  measures.row_kl.resize(static_cast<std::size_t>(s.rows));
  std::vector<double> keys(static_cast<std::size_t>(history) * static_cast<std::size_t>(s.key_dim));
  std::vector<double> values(static_cast<std::size_t>(history) * static_cast<std::size_t>(s.value_dim));
  for (int head = 0; head < s.kv_heads; ++head) {
    cache.decode(head, keys.data(), values.data());
    compare_tokens(task, head, task.how.sinks, history, keys, values, measures);
  }

  constexpr int block = 8;  // rows at a time: the weights of all rows of a long text would not fit
  std::vector<double> out, weights;
  for (int begin = 0; begin < s.rows; begin += block) {
    int const end = std::min(s.rows, begin + block);
    attend(cache, s, task.layer, histories, begin, end, out, weights);
    compare_rows(task, begin, end, out, weights, measures);
  }
  measures.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return measures;
}

/// Attention over the exact window alone.
[[nodiscard]] exact_attention attend_exactly(sample const& s, layer_inputs const& layer);

}  // namespace report
