#include <kvant/plan/plan.hpp>

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"

namespace {

using kvant::exact_layer;
using kvant::plan;
using kvant::repeat;
using kvant::turboquant_3bit;
using kvant::turboquant_4bit;

using model = plan<repeat<2, exact_layer>, repeat<28, turboquant_3bit>, repeat<2, exact_layer>>;
using local = kvant::kivi_2bit;
using alternating = plan<repeat<4, repeat<5, local>, turboquant_4bit>, local>;
static_assert(model::size == 32 && alternating::size == 25);
static_assert(plan<exact_layer>::size == 1);
static_assert(std::is_same_v<model::distinct_layers, kvant::detail::type_list<exact_layer, turboquant_3bit>>);
static_assert(std::is_same_v<alternating::distinct_layers, kvant::detail::type_list<local, turboquant_4bit>>);
static_assert(kvant::cache_layer<exact_layer> && !kvant::cache_layer<kvant::turboquant<3>>);

template <class Layer>
char letter() {
  return std::is_same_v<Layer, exact_layer>       ? 'x'
         : std::is_same_v<Layer, turboquant_3bit> ? '3'
         : std::is_same_v<Layer, local>           ? 'l'
                                                  : '4';
}

template <class Plan>
std::string letters() {
  std::string s;
  for (int i = -1; i <= Plan::size; ++i)
    s += kvant::visit_layer(Plan{}, i, '.', []<class Layer>(std::type_identity<Layer>) { return letter<Layer>(); });
  return s;
}

/// How often a function was instantiated: each has a counter of its own.
template <class Layer>
int* instance() {
  static int count = 0;
  return &count;
}

}  // namespace

TEST_CASE("a layer's index meets its type", "[plan]") {
  CHECK(letters<model>() == ".xx" + std::string(28, '3') + "xx.");
  CHECK(letters<alternating>() == ".lllll4lllll4lllll4lllll4l.");
}

TEST_CASE("a visitor is called once, instantiated once for each distinct layer", "[plan]") {
  std::vector<int*> seen;
  for (int i = 0; i < model::size; ++i) {
    int* const at = kvant::visit_layer(
        model{}, i, static_cast<int*>(nullptr),
        []<class Layer>(std::type_identity<Layer>) { return ++*instance<Layer>(), instance<Layer>(); });
    if (std::find(seen.begin(), seen.end(), at) == seen.end()) seen.push_back(at);
  }
  CHECK(seen.size() == 2);
  CHECK(*instance<exact_layer>() == 4);
  CHECK(*instance<turboquant_3bit>() == 28);
}
