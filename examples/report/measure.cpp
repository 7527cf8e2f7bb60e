#include "measure.hpp"

#include <kvant/format/policies.hpp>

namespace report {
namespace {

/// Rows of one head in double: channels of token t.
std::vector<double> row_of(kvant::token_rows<kvant::half> rows, int token, int head, int dim) {
  std::vector<double> to(static_cast<std::size_t>(dim));
  for (int c = 0; c < dim; ++c)
    to[static_cast<std::size_t>(c)] = static_cast<double>(static_cast<float>(rows.row(token, head)[c]));
  return to;
}

}  // namespace

void compare_tokens(layer_task const& task, int head, int begin, int end, std::span<double const> keys,
                    std::span<double const> values, layer_measures& into) {
  auto const& s = task.data;
  auto const key_dim = static_cast<std::size_t>(s.key_dim), value_dim = static_cast<std::size_t>(s.value_dim);
  auto const key_rows = s.keys(task.layer), value_rows = s.values(task.layer);
  std::vector<double> mean(key_dim), residual(key_dim), decoded(key_dim);
  for (int t = begin; t < end; ++t) {
    auto const key = row_of(key_rows, t, head, s.key_dim);
    for (std::size_t c = 0; c < key_dim; ++c) mean[c] += key[c] / (end - begin);
  }
  for (int t = begin; t < end; ++t) {
    auto const token = static_cast<std::size_t>(t);
    auto const key = row_of(key_rows, t, head, s.key_dim), value = row_of(value_rows, t, head, s.value_dim);
    auto const coded = keys.subspan(token * key_dim, key_dim);
    into.key_cosine.add(cosine(key, coded));
    into.value_cosine.add(cosine(value, values.subspan(token * value_dim, value_dim)));
    for (std::size_t c = 0; c < key_dim; ++c) residual[c] = key[c] - mean[c], decoded[c] = coded[c] - mean[c];
    into.key_residual_cosine.add(cosine(residual, decoded));
  }
}

void compare_rows(layer_task const& task, int begin, int end, std::span<double const> out,
                  std::span<double const> weights, layer_measures& into) {
  auto const& s = task.data;
  auto const heads = static_cast<std::size_t>(s.q_heads), dim = static_cast<std::size_t>(s.value_dim),
             tokens = static_cast<std::size_t>(s.tokens);
  for (auto r = static_cast<std::size_t>(begin); r < static_cast<std::size_t>(end); ++r)
    for (std::size_t h = 0; h < heads; ++h) {
      std::size_t const place = r * heads + h, here = (r - static_cast<std::size_t>(begin)) * heads + h;
      auto const exact_out = std::span<double const>(task.exact.out).subspan(place * dim, dim);
      auto const exact_weights = std::span<double const>(task.exact.weights).subspan(place * tokens, tokens);
      auto const its_out = out.subspan(here * dim, dim), its_weights = weights.subspan(here * tokens, tokens);
      double const similar = cosine(exact_out, its_out), divergence = kl_divergence(exact_weights, its_weights);
      into.output_cosine.add(similar);
      into.head_cosine[h].add(similar);
      into.row_cosine[r].add(similar);
      into.output_rel_error.add(relative_error(exact_out, its_out));
      into.kl.add(divergence);
      into.row_kl[r].add(divergence);
      into.top1.add(same_top1(exact_weights, its_weights) ? 1 : 0);
    }
}

kvant::attention_options options_of(sample const& s, layer_inputs const& layer) {
  kvant::attention_options options;
  options.softmax_scale = s.softmax_scale;
  options.soft_cap = s.soft_cap;
  options.sliding_window = layer.sliding_window;
  return options;
}

exact_attention attend_exactly(sample const& s, layer_inputs const& layer) {
  using exact = kvant::exact<kvant::half>;
  plain_cache<exact, exact> cache;
  kvant::page_shape const shape{s.kv_heads, s.key_dim, s.value_dim, 0};
  auto const built = cache.build(shape, s.keys(layer), s.values(layer), s.tokens, 0, 0);
  if (!built.ok()) throw std::runtime_error(s.path + ": " + built.message());
  exact_attention exact_one;
  std::vector<std::int32_t> const histories(s.positions.size());
  attend(cache, s, layer, histories, 0, s.rows, exact_one.out, exact_one.weights);
  return exact_one;
}

}  // namespace report
