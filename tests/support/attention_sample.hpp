#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <kvant/half.hpp>

#include "support/safetensors_bytes.hpp"

namespace support {

/// A made-up file of attention inputs: Gaussian queries, keys and values, and a constant added to all keys.
struct sample_shape {
  int tokens = 200, rows = 5, q_heads = 4, kv_heads = 2, key_dim = 64, value_dim = 32;
  std::vector<int> layers{0, 7};
  float bias = 0;  // of the keys, channels 3 and 40 of every head
  unsigned seed = 1;
};

inline std::vector<kvant::half> gaussian_halves(std::size_t count, std::mt19937& random, float scale = 1) {
  std::normal_distribution<float> normal;
  std::vector<kvant::half> all;
  for (std::size_t i = 0; i < count; ++i) all.emplace_back(scale * normal(random));
  return all;
}

/// Rows stand at the positions tokens * (r + 1) / rows - 1: the last one is the last token.
inline safetensors_builder attention_sample(sample_shape const& shape) {
  std::mt19937 random(shape.seed);
  safetensors_builder file;
  file.header["__metadata__"] = {{"format", "kvant-attention-inputs-1"},
                                 {"model", "Synthetic <b>&\"1\"</b>"},
                                 {"license", "none"},
                                 {"layers_total", "9"},
                                 {"softmax_scale", "0.125"},
                                 {"rope_pairs", "half_split"}};
  std::vector<std::int32_t> positions;
  for (int r = 0; r < shape.rows; ++r) positions.push_back(shape.tokens * (r + 1) / shape.rows - 1);
  file.add("q_positions", "I32", {shape.rows}, positions);
  for (int const layer : shape.layers) {
    auto const name = "layers." + std::to_string(layer) + ".";
    auto const count = [](int a, int b, int c) {
      return static_cast<std::size_t>(a) * static_cast<std::size_t>(b) * static_cast<std::size_t>(c);
    };
    auto keys = gaussian_halves(count(shape.tokens, shape.kv_heads, shape.key_dim), random);
    for (std::size_t i = 0; i < keys.size(); ++i)
      if (auto const c = i % static_cast<std::size_t>(shape.key_dim); c == 3 || c == 40)
        keys[i] = kvant::half(static_cast<float>(keys[i]) + shape.bias);
    file.add(name + "q", "F16", {shape.rows, shape.q_heads, shape.key_dim},
             gaussian_halves(count(shape.rows, shape.q_heads, shape.key_dim), random));
    file.add(name + "k", "F16", {shape.tokens, shape.kv_heads, shape.key_dim}, keys);
    file.add(name + "v", "F16", {shape.tokens, shape.kv_heads, shape.value_dim},
             gaussian_halves(count(shape.tokens, shape.kv_heads, shape.value_dim), random));
  }
  return file;
}

}  // namespace support
