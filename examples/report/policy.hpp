#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "measure.hpp"

#include <kvant/layout/page_layout.hpp>
#include <kvant/plan/layer.hpp>
#include <kvant/status.hpp>

namespace report {

/// What kind of format a policy is: its colour and shape in the charts.
enum class family { exact, balanced, plain, kivi, bonsai };

/// A named pair of formats with its type erased.
struct policy {
  std::string name;
  family kind = family::exact;
  bool rotates_without_centering = false;  // of keys: what fails where the mean carries their energy
  bool has_factors = false;                // balance factors in the side record
  int page_tokens = 0;
  double mib_llama31_8b_32k = 0;  // pages of Llama-3.1-8B at 32,768 tokens
  kvant::status (*check)(kvant::page_shape) = nullptr;
  double (*bits_per_value)(kvant::page_shape) = nullptr;
  std::function<layer_measures(layer_task const&)> measure;
};

/// Llama-3.1-8B: 32 layers of 8 kv heads.
inline constexpr int llama_layers = 32, llama_kv_heads = 8, llama_dim = 128, llama_tokens = 32768;
inline constexpr double mib = 1024.0 * 1024.0;
inline constexpr double llama_fp16_mib = 2.0 * llama_layers * llama_kv_heads * llama_dim * 2 * llama_tokens / mib;
static_assert(llama_fp16_mib == 4096);

template <class Layer>
[[nodiscard]] constexpr double llama_mib() {
  using key = typename Layer::key;
  using value = typename Layer::value;
  constexpr kvant::page_shape shape =
      kvant::page_layout<key, value>::with_defaults({llama_kv_heads, llama_dim, llama_dim, 0});
  constexpr auto pages = std::int64_t{llama_layers} * (llama_tokens / shape.page_tokens);
  return static_cast<double>(pages * kvant::page_bytes<key, value>(shape)) / mib;
}

/// Bytes of one sequence of that model beside its pages, as a cache allocates them: the window is a ring of
/// W + P - 1 + 1 rows rounded up to 16 (one uncommitted token), so that an unfinished page finds room.
[[nodiscard]] int window_rows(policy const& p, setting how);
[[nodiscard]] double window_mib(policy const& p, setting how);
[[nodiscard]] double sinks_mib(setting how);
[[nodiscard]] double factors_mib(policy const& p);

template <class Layer>
[[nodiscard]] policy make_policy(std::string name, family kind) {
  using key = typename Layer::key;
  using value = typename Layer::value;
  policy p;
  p.name = std::move(name);
  p.kind = kind;
  p.rotates_without_centering = kvant::rotation_of<key>::rotates && !key::is_centered;
  p.has_factors = key::is_balanced;
  p.page_tokens = kvant::page_layout<key, value>::least_page_tokens;
  p.mib_llama31_8b_32k = llama_mib<Layer>();
  p.check = &kvant::page_layout<key, value>::check;
  p.bits_per_value = &kvant::bits_per_value<key, value>;
  p.measure = &measure_layer<key, value>;
  return p;
}

/// The policies of one file each, so that they compile side by side.
[[nodiscard]] std::vector<policy> half_split_policies();
[[nodiscard]] std::vector<policy> adjacent_policies();
[[nodiscard]] std::vector<policy> plain_policies();
[[nodiscard]] std::vector<policy> kivi_policies();
[[nodiscard]] std::vector<policy> bonsai_policies();

/// All of them in the order of the report; `pairs` decides what the balanced keys pair.
[[nodiscard]] std::vector<policy> all_policies(rope_pairs pairs);

/// The names of all policies, in the order of the report.
[[nodiscard]] std::vector<std::string> policy_names();

}  // namespace report
