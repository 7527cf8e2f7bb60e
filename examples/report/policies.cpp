#include <algorithm>

#include "policy.hpp"

namespace report {

int window_rows(policy const& p, setting how) { return (how.window + p.page_tokens + 15) / 16 * 16; }

namespace {
constexpr double row_mib = 2.0 * llama_layers * llama_kv_heads * llama_dim * 2 / mib;  // one token, keys and values
}

double window_mib(policy const& p, setting how) { return window_rows(p, how) * row_mib; }
double sinks_mib(setting how) { return how.sinks * row_mib; }
double factors_mib(policy const& p) { return p.has_factors ? row_mib / 2 : 0; }

std::vector<policy> all_policies(rope_pairs pairs) {
  std::vector<policy> all{make_policy<kvant::exact_layer>("exact", family::exact)};
  auto const append = [&](std::vector<policy> more) { std::move(more.begin(), more.end(), std::back_inserter(all)); };
  append(pairs == rope_pairs::adjacent ? adjacent_policies() : half_split_policies());
  append(plain_policies());
  append(kivi_policies());
  append(bonsai_policies());
  return all;
}

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (auto const& p : all_policies(rope_pairs::half_split)) names.push_back(p.name);
  return names;
}

}  // namespace report
