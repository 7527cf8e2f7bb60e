#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <kvant/attention/reference.hpp>
#include <kvant/cache/kv_cache.hpp>
#include <kvant/half.hpp>

namespace toy {

using kvant::half;

inline constexpr int kv_heads = 2, q_heads = 4, dim = 64;
inline constexpr kvant::page_shape shape{kv_heads, dim, dim, 0};

/// Keys, values and queries of a model that does not exist: keys have a bias, as those of real models do, and every
/// number follows from its place.
struct model {
  std::uint64_t text = 1;  // another text, other numbers

  [[nodiscard]] float noise(std::uint64_t what, std::uint64_t layer, std::uint64_t position, int i) const {
    std::uint64_t z = ((text * 8 + what) * 64 + layer) * 1000003u + position;
    z = z * 4096 + static_cast<std::uint64_t>(i);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u, z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<float>(static_cast<std::int32_t>(z >> 32)) * 0x1p-31f;
  }
  [[nodiscard]] std::vector<half> keys(int layer, int begin, int tokens) const {  // [tokens, kv_heads, dim]
    return rows(tokens * kv_heads * dim,
                [&](int t, int i) { return noise(0, at(layer), at(begin + t), i) + 3 * noise(1, at(layer), 0, i); });
  }
  [[nodiscard]] std::vector<half> values(int layer, int begin, int tokens) const {
    return rows(tokens * kv_heads * dim, [&](int t, int i) { return noise(2, at(layer), at(begin + t), i); });
  }
  [[nodiscard]] std::vector<half> queries(int layer, int begin, int tokens) const {  // [tokens, q_heads, dim]
    std::vector<half> x;
    for (int t = 0; t < tokens; ++t)
      for (int i = 0; i < q_heads * dim; ++i) x.push_back(half{2 * noise(3, at(layer), at(begin + t), i)});
    return x;
  }

 private:
  static std::uint64_t at(int i) { return static_cast<std::uint64_t>(i); }
  template <class F>
  static std::vector<half> rows(int count, F const& f) {
    std::vector<half> x;
    for (int i = 0; i < count; ++i) x.push_back(half{f(i / (kv_heads * dim), i % (kv_heads * dim))});
    return x;
  }
};

/// Rows of a layer as caches take them.
struct new_tokens {
  std::vector<half> keys, values;
  new_tokens(model const& m, int layer, int begin, int tokens)
      : keys(m.keys(layer, begin, tokens)), values(m.values(layer, begin, tokens)) {}
  [[nodiscard]] kvant::layer_rows<half> rows() const {
    return {{keys.data(), kv_heads * dim, dim}, {values.data(), kv_heads * dim, dim}};
  }
};

/// What the last `tokens` queries of a sequence read from a layer's views, [tokens, q_heads, dim].
template <class Layer>
kvant::result<std::vector<double>> attend(kvant::layer_view<half> const& view, model const& m, int layer, int tokens) {
  int const begin = view.sequences.length[0] - tokens;
  auto const q = m.queries(layer, begin, tokens);
  std::int32_t const offsets[] = {0, tokens};
  kvant::queries_view<half> const queries{q.data(), q_heads * dim, dim, offsets, q_heads, tokens};
  std::vector<double> out(static_cast<std::size_t>(tokens * q_heads * dim));
  auto const done = kvant::reference_attention<typename Layer::key, typename Layer::value>(
      shape, view, queries, kvant::attention_options{}, kvant::reference_output{out.data()});
  if (!done.ok()) return done;
  return out;
}

/// The same of all tokens as they came.
inline std::vector<double> attend_exactly(model const& m, int layer, int length, int tokens) {
  auto const k = m.keys(layer, 0, length), v = m.values(layer, 0, length);
  auto const q = m.queries(layer, length - tokens, tokens);
  std::vector<double> out;
  for (int t = 0; t < tokens; ++t)
    for (int h = 0; h < q_heads; ++h) {
      int const head = h * kv_heads / q_heads;
      std::vector<double> one(dim);
      double sum = 0;
      for (int p = 0; p <= length - tokens + t; ++p) {
        double dot = 0;
        for (int c = 0; c < dim; ++c)
          dot += static_cast<double>(static_cast<float>(q[static_cast<std::size_t>((t * q_heads + h) * dim + c)])) *
                 static_cast<double>(static_cast<float>(k[static_cast<std::size_t>((p * kv_heads + head) * dim + c)]));
        double const weight = std::exp(dot / std::sqrt(double{dim}));
        sum += weight;
        for (std::size_t c = 0; c < dim; ++c)
          one[c] += weight * static_cast<double>(
                                 static_cast<float>(v[static_cast<std::size_t>((p * kv_heads + head) * dim) + c]));
      }
      for (double const x : one) out.push_back(x / sum);
    }
  return out;
}

/// |a - b| / |b|.
inline double error(std::vector<double> const& a, std::vector<double> const& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
  return std::sqrt(difference / size);
}

}  // namespace toy
