#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <kvant/cache/views.hpp>
#include <kvant/half.hpp>

namespace report {

/// One layer's attention inputs as they were captured: queries and keys after RoPE.
struct layer_inputs {
  int index = 0;               // in the model
  int sliding_window = 0;      // 0: none
  std::vector<kvant::half> q;  // [rows, q_heads, key_dim]
  std::vector<kvant::half> k;  // [tokens, kv_heads, key_dim]
  std::vector<kvant::half> v;  // [tokens, kv_heads, value_dim]
};

/// Which channels RoPE turned together: (c, c + dim / 2) or (2c, 2c + 1).
enum class rope_pairs { half_split, adjacent };

/// A file of attention inputs (samples/README.md says the format), complete and checked.
struct sample {
  std::string name, path;                       // name: the file's, without folder and extension
  std::map<std::string, std::string> metadata;  // as in the file
  int tokens = 0, rows = 0, q_heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  double softmax_scale = 0, soft_cap = 0;  // soft_cap 0: none
  rope_pairs pairs = rope_pairs::half_split;
  std::vector<std::int32_t> positions;  // [rows]: row r sees tokens 0 .. positions[r]
  std::vector<layer_inputs> layers;     // ascending index

  [[nodiscard]] kvant::token_rows<kvant::half> keys(layer_inputs const& layer) const {
    return {layer.k.data(), std::int64_t{kv_heads} * key_dim, key_dim};
  }
  [[nodiscard]] kvant::token_rows<kvant::half> values(layer_inputs const& layer) const {
    return {layer.v.data(), std::int64_t{kv_heads} * value_dim, value_dim};
  }
  /// What the file says under `key`; "not given" without it.
  [[nodiscard]] std::string said(std::string const& key) const;
};

/// Throws kvant::io_error with the file, the tensor or metadata key, what was expected and what came.
[[nodiscard]] sample load_sample(std::string const& path);

/// ||mean k||^2 / mean ||k||^2 over the tokens, of each kv head. Near 1 the keys differ little from one another, and a
/// format that does not take the mean off spends its codes on it.
[[nodiscard]] std::vector<double> key_energy_in_mean_by_head(sample const& s, layer_inputs const& layer);  // [kv_heads]

/// The same for all kv heads of the layer together.
[[nodiscard]] double key_energy_in_mean(sample const& s, layer_inputs const& layer);

}  // namespace report
