#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>

namespace kvant::inline v0 {

/// Joins attention over two disjoint sets of keys: a state is an output and the natural-log log-sum-exp of its logits,
/// and (out, log_sum_exp) <- both together. Associative and commutative up to rounding. A state with log-sum-exp minus
/// infinity is empty: its output is not read; two empty states make an empty one, with an output of zeros. A sink logit
/// belongs to one of the states that are joined, not to each.
template <std::floating_point Real>
void merge_states(Real* out, Real* log_sum_exp,                          // [states, value_dim], [states]
                  Real const* other_out, Real const* other_log_sum_exp,  // the same
                  std::int64_t states, std::int64_t value_dim) {
  constexpr Real empty = -std::numeric_limits<Real>::infinity();
  for (std::int64_t i = 0; i < states; ++i) {
    Real* const a = out + i * value_dim;
    Real const* const b = other_out + i * value_dim;
    Real const lse_a = log_sum_exp[i], lse_b = other_log_sum_exp[i];
    if (lse_b == empty) {
      if (lse_a == empty) std::fill_n(a, value_dim, Real{0});
      continue;
    }
    if (lse_a == empty) {
      std::copy_n(b, value_dim, a);
      log_sum_exp[i] = lse_b;
      continue;
    }
    Real const largest = std::max(lse_a, lse_b);
    Real const weight_a = std::exp(lse_a - largest), weight_b = std::exp(lse_b - largest), sum = weight_a + weight_b;
    for (std::int64_t c = 0; c < value_dim; ++c) a[c] = (weight_a * a[c] + weight_b * b[c]) / sum;
    log_sum_exp[i] = largest + std::log(sum);
  }
}

}  // namespace kvant::inline v0
