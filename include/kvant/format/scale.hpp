#pragma once

#include <cmath>
#include <concepts>
#include <type_traits>

#include <kvant/config.hpp>

namespace kvant::inline v0 {

/// Keys or values of a page.
enum class side { key, value };

/// Sums over one group of n values x coded as levels l: a value decodes to stored scalar * step * l. The host sums in
/// double, kernels in float.
template <class Real>
struct basic_moments {
  int n = 0;
  Real xx = 0, xl = 0, ll = 0;  // x^2, x * l, l^2
};
using moments = basic_moments<double>;

/// Which scalar a group of a codebook codec stores. Decoding is the same multiplication under every rule; `step` is the
/// codebook's. Relative squared errors and biases: TurboQuant, arXiv 2504.19874, 3.1; EDEN, arXiv 2604.18555.
template <class R>
concept scale_rule = std::is_empty_v<R> && requires(moments m, double step) {
  { R::scalar(m, step) } -> std::same_as<double>;
};

/// The root mean square of the group: the paper's norm / sqrt(d).
struct plain_norm {
  template <class Real>
  KVANT_HD static Real scalar(basic_moments<Real> m, std::type_identity_t<Real>) {
    using std::sqrt;
    return m.n > 0 ? sqrt(m.xx / static_cast<Real>(m.n)) : 0;
  }
};
/// The decoded group has the group's norm.
struct norm_corrected {
  template <class Real>
  KVANT_HD static Real scalar(basic_moments<Real> m, std::type_identity_t<Real> step) {
    using std::sqrt;
    return m.ll > 0 ? sqrt(m.xx / m.ll) / step : 0;
  }
};
/// Least squared error: <x, c> / <c, c>. The rule for keys.
struct least_squares {
  template <class Real>
  KVANT_HD static Real scalar(basic_moments<Real> m, std::type_identity_t<Real> step) {
    return m.ll > 0 ? m.xl / (m.ll * step) : 0;
  }
};
/// <x, decoded x> = <x, x>, so that inner products with random directions are unbiased: <x, x> / <x, c>. The rule for
/// values: attention averages noise away, but not a shrink.
struct unbiased {
  template <class Real>
  KVANT_HD static Real scalar(basic_moments<Real> m, std::type_identity_t<Real> step) {
    return m.xl > 0 ? m.xx / (m.xl * step) : 0;
  }
};
/// least_squares for keys, unbiased for values.
struct scale_by_side {};

/// The rule itself, or what scale_by_side stands for.
template <class Rule, side Side>
struct resolved_scale {
  using type = Rule;
};
template <>
struct resolved_scale<scale_by_side, side::key> {
  using type = least_squares;
};
template <>
struct resolved_scale<scale_by_side, side::value> {
  using type = unbiased;
};

}  // namespace kvant::inline v0
