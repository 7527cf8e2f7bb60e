#include <cmath>
#include <vector>

#include <nlohmann/json.hpp>

#include "output.hpp"

namespace report {
namespace {

using json = nlohmann::ordered_json;

json number(double x) { return std::isfinite(x) ? json(x) : json(nullptr); }

json layer_object(layer_measures const& m, key_energy const& e) {
  json heads = json::array();
  for (auto const& head : m.head_cosine) heads.push_back(number(head.value()));
  return {{"layer", m.layer},
          {"key_energy_in_mean", number(e.in_mean)},
          {"key_cosine", number(m.key_cosine.value())},
          {"key_residual_cosine", number(m.key_residual_cosine.value())},
          {"value_cosine", number(m.value_cosine.value())},
          {"output_rel_error", number(m.output_rel_error.value())},
          {"output_cosine_mean", number(m.output_cosine.value())},
          {"output_cosine_worst_head", number(m.worst_head())},
          {"output_cosine_by_head", heads},
          {"attention_kl", number(m.kl.value())},
          {"top1_unchanged", number(m.top1.value())}};
}

json object(sample_report const& r, result const& line) {
  auto const& m = line.measures;
  auto const mean = [&](running_mean layer_measures::*member) { return number(m.all(member).value()); };
  json o{{"sample", r.data.name},
         {"model", r.data.said("model")},
         {"policy", line.what.name},
         {"bits_per_value", number(line.bits_per_value)},
         {"mib_llama31_8b_32k", number(line.what.mib_llama31_8b_32k)},
         {"saved", number(1 - line.what.mib_llama31_8b_32k / llama_fp16_mib)},
         {"key_cosine", mean(&layer_measures::key_cosine)},
         {"key_residual_cosine", mean(&layer_measures::key_residual_cosine)},
         {"value_cosine", mean(&layer_measures::value_cosine)},
         {"output_rel_error", mean(&layer_measures::output_rel_error)},
         {"output_cosine_mean", mean(&layer_measures::output_cosine)},
         {"output_cosine_worst_layer", number(m.output_cosine_worst_layer())},
         {"output_cosine_worst_head", number(m.output_cosine_worst_head())},
         {"attention_kl", mean(&layer_measures::kl)},
         {"top1_unchanged", mean(&layer_measures::top1)},
         {"window", line.how.window},
         {"sinks", line.how.sinks},
         {"page_tokens", line.what.page_tokens},
         {"window_rows", window_rows(line.what, line.how)},
         {"window_mib", window_mib(line.what, line.how)},
         {"sinks_mib", sinks_mib(line.how)},
         {"factors_mib", factors_mib(line.what)},
         {"seconds", number(m.seconds())}};
  json layers = json::array(), positions = json::array();
  for (std::size_t i = 0; i < m.layers.size(); ++i) layers.push_back(layer_object(m.layers[i], r.energies[i]));
  for (auto const& bin : m.by_position(r.data.positions, r.data.tokens, 16))
    positions.push_back({{"from", bin.from},
                         {"to", bin.to},
                         {"rows", bin.rows},
                         {"output_cosine_mean", number(bin.cosine.value())},
                         {"attention_kl", number(bin.kl.value())}});
  o["by_layer"] = layers;
  o["by_position"] = positions;
  return o;
}

}  // namespace

std::string json_text(std::vector<sample_report> const& reports) {
  json all = json::array();
  for (auto const& r : reports)
    for (auto const& line : r.results) all.push_back(object(r, line));
  return all.dump(1) + "\n";
}

}  // namespace report
