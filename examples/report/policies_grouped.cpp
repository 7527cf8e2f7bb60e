#include "policy.hpp"

namespace report {

std::vector<policy> kivi_policies() {
  return {
      make_policy<kvant::kivi_2bit>("kivi_2bit", family::kivi),
      make_policy<kvant::kivi_2bit_g64>("kivi_2bit_g64", family::kivi),
      make_policy<kvant::kivi_4bit>("kivi_4bit", family::kivi),
  };
}

std::vector<policy> bonsai_policies() {
  return {
      make_policy<kvant::bonsai_1bit>("bonsai_1bit", family::bonsai),
      make_policy<kvant::bonsai_1bit_rotated>("bonsai_1bit_rotated", family::bonsai),
  };
}

}  // namespace report
