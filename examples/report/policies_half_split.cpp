#include "policy.hpp"

namespace report {

/// Balanced and centered keys for RoPE over (c, c + dim / 2).
std::vector<policy> half_split_policies() {
  using pairs = kvant::half_split_pairs;
  return {
      make_policy<kvant::turboquant_layer<4, 4, pairs>>("turboquant_4bit", family::balanced),
      make_policy<kvant::turboquant_layer<3, 3, pairs>>("turboquant_3bit", family::balanced),
      make_policy<kvant::turboquant_layer<2, 2, pairs>>("turboquant_2bit", family::balanced),
      make_policy<kvant::turboquant_layer<1, 1, pairs>>("turboquant_1bit", family::balanced),
      make_policy<kvant::turboquant_layer<4, 2, pairs>>("k4v2", family::balanced),
      make_policy<kvant::turboquant_layer<3, 2, pairs>>("k3v2", family::balanced),
  };
}

}  // namespace report
