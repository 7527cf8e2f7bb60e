#pragma once

#include <concepts>
#include <type_traits>

#include <kvant/plan/layer.hpp>

namespace kvant::inline v0 {

/// A layer of a plan: layer<Key, Value, window<W>, sinks<S>>.
template <class L>
concept cache_layer = kv_format<typename L::key> && kv_format<typename L::value> && requires {
  { L::window } -> std::convertible_to<int>;
  { L::sinks } -> std::convertible_to<int>;
};

/// Parts one after the other, Times times: repeat<28, turboquant_3bit>, repeat<6, local, local, global>.
template <int Times, class... Parts>
struct repeat {
  static_assert(Times >= 1 && sizeof...(Parts) >= 1, "repeat<Times, Parts...>: expected at least one time, one part");
};

/// The layers of a model, first to last: layers and repeats of them.
template <class... Parts>
struct plan;

namespace detail {

template <class... Ts>
struct type_list {};

/// A layer, or a repeat or plan of parts.
template <class Part>
struct plan_part {
  static_assert(cache_layer<Part>, "plan<Parts...>: a part is a layer<...>, or a repeat<...> of parts");
  static constexpr int size = 1;
  template <class Answer, class Fn>
  static bool visit(int& i, Answer& answer, Fn& fn) {
    if (i-- != 0) return false;
    answer = fn(std::type_identity<Part>{});
    return true;
  }
};
template <int Times, class... Parts>
struct plan_part<repeat<Times, Parts...>> {
  static constexpr int period = (plan_part<Parts>::size + ...), size = Times * period;
  template <class Answer, class Fn>
  static bool visit(int& i, Answer& answer, Fn& fn) {
    if (i >= size) {
      i -= size;
      return false;
    }
    i %= period;
    return (plan_part<Parts>::visit(i, answer, fn) || ...);
  }
};
template <class... Parts>
struct plan_part<plan<Parts...>> : plan_part<repeat<1, Parts...>> {};

/// List with the layers of Parts behind it that it does not have yet.
template <class List, class... Parts>
struct distinct {
  using type = List;
};
template <class... Ls, class Part, class... Rest>
struct distinct<type_list<Ls...>, Part, Rest...>
    : distinct<std::conditional_t<(std::is_same_v<Ls, Part> || ...), type_list<Ls...>, type_list<Ls..., Part>>,
               Rest...> {};
template <class... Ls, int Times, class... Parts, class... Rest>
struct distinct<type_list<Ls...>, repeat<Times, Parts...>, Rest...>
    : distinct<typename distinct<type_list<Ls...>, Parts...>::type, Rest...> {};

}  // namespace detail

template <class... Parts>
struct plan {
  static_assert(sizeof...(Parts) >= 1, "plan<Parts...>: expected at least one layer");
  static constexpr int size = detail::plan_part<plan>::size;
  /// Each layer type once, as detail::type_list: what is instantiated.
  using distinct_layers = typename detail::distinct<detail::type_list<>, Parts...>::type;
};

/// fn(std::type_identity<layer i>), or `otherwise` where the plan has no layer i: how a run-time index meets a type. fn is
/// a generic lambda; it is instantiated once for each distinct layer, however often the plan repeats it.
template <class... Parts, class Answer, class Fn>
[[nodiscard]] Answer visit_layer(plan<Parts...>, int i, Answer otherwise, Fn&& fn) {
  if (i >= 0) (void)detail::plan_part<plan<Parts...>>::visit(i, otherwise, fn);
  return otherwise;
}

}  // namespace kvant::inline v0
