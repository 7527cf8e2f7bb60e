#include "policy.hpp"

namespace report {

/// Rotation alone.
std::vector<policy> plain_policies() {
  return {
      make_policy<kvant::plain_turboquant_4bit>("plain_turboquant_4bit", family::plain),
      make_policy<kvant::plain_turboquant_3bit>("plain_turboquant_3bit", family::plain),
      make_policy<kvant::plain_turboquant_2bit>("plain_turboquant_2bit", family::plain),
      make_policy<kvant::plain_turboquant_1bit>("plain_turboquant_1bit", family::plain),
  };
}

}  // namespace report
