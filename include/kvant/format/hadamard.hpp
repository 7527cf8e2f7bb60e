#pragma once

#include <cstddef>
#include <cstdint>

#include <kvant/config.hpp>
#include <kvant/simd/vector.hpp>

namespace kvant::inline v0 {

/// The order m of the dense factor of H_d = H_m x H_(d / m), d / m a power of two: 1, 12, 20, 28 or 36, 0 where there is
/// none. Orders 12 and 20 are Paley I, 28 and 36 Paley II (Paley 1933); no padding.
[[nodiscard]] KVANT_HD constexpr int hadamard_factor(int dim) {
  if (dim < 1) return 0;
  int odd = dim;
  while (odd % 2 == 0) odd /= 2;
  if (odd == 1) return 1;
  int const m = 4 * odd;
  return (odd == 3 || odd == 5 || odd == 7 || odd == 9) && dim % m == 0 ? m : 0;
}

namespace detail {

/// The quadratic character of x modulo the prime q: 0, 1 or -1.
KVANT_HD constexpr int quadratic_character(int x, int q) {
  int const r = (x % q + q) % q;
  if (r == 0) return 0;
  for (int i = 1; i < q; ++i)
    if (i * i % q == r) return 1;
  return -1;
}

/// True where entry (row, column) of the dense factor of order m (12, 20, 28, 36) is -1.
KVANT_HD constexpr bool hadamard_factor_negative(int m, int row, int column) {
  if (m == 12 || m == 20) {  // I + S, S skew: [0 1; -1 Q], q = m - 1 = 3 mod 4
    if (row == column || row == 0) return false;
    if (column == 0) return true;
    return quadratic_character(row - column, m - 1) < 0;
  }
  // C x [1 1; 1 -1] + I x [1 -1; -1 -1], C symmetric: [0 1; 1 Q], q = m / 2 - 1 = 1 mod 4
  int const i = row / 2, j = column / 2, a = row % 2, b = column % 2;
  if (i == j) return a == 1 || b == 1;
  bool const c = i != 0 && j != 0 && quadratic_character(i - j, m / 2 - 1) < 0;
  return c != (a == 1 && b == 1);
}

/// Row r has bit c set where the entry is -1.
template <int M>
struct sign_rows {
  std::uint64_t row[static_cast<std::size_t>(M)] = {};
  constexpr sign_rows() {
    for (int r = 0; r < M; ++r)
      for (int c = 0; c < M; ++c)
        if (hadamard_factor_negative(M, r, c)) row[r] |= std::uint64_t{1} << c;
  }
};
template <int M>
inline constexpr sign_rows<M> hadamard_rows{};

}  // namespace detail

/// True where entry (row, column) of H_dim is -1; row and column are slots. hadamard_factor(dim) is not 0.
[[nodiscard]] KVANT_HD constexpr bool hadamard_negative(int dim, int row, int column) {
  int const m = hadamard_factor(dim), n = dim / m;
  bool low = false;
  for (int bits = row % n & column % n; bits != 0; bits &= bits - 1) low = !low;
  return m == 1 ? low : low != detail::hadamard_factor_negative(m, row / n, column / n);
}

namespace detail {

/// Rows at a, b, c, d <- two butterfly stages over them.
template <int Lanes, class Real>
inline void butterfly_4(Real* a, Real* b, Real* c, Real* d) {
  simd::vec<Real, Lanes> x, y, sum_ab, difference_ab, sum_cd, difference_cd;
  x.load(a), y.load(b), sum_ab.set_sum(x, y), difference_ab.set_difference(x, y);
  x.load(c), y.load(d), sum_cd.set_sum(x, y), difference_cd.set_difference(x, y);
  x.set_sum(sum_ab, sum_cd), x.store(a);
  x.set_sum(difference_ab, difference_cd), x.store(b);
  x.set_difference(sum_ab, sum_cd), x.store(c);
  x.set_difference(difference_ab, difference_cd), x.store(d);
}
template <int Lanes, class Real>
inline void butterfly_2(Real* a, Real* b) {
  simd::vec<Real, Lanes> x, y, z;
  x.load(a), y.load(b);
  z.set_sum(x, y), z.store(a);
  z.set_difference(x, y), z.store(b);
}

/// In-place butterflies: x <- H_n x for each of Lanes vectors side by side, x[slot * Lanes + lane]; n a power of two.
template <int Lanes, class Real>
inline void hadamard_butterflies(Real* x, int n) {
  auto const row = [x](int i) { return x + std::int64_t{i} * Lanes; };
  int half = 1;
  for (; half * 4 <= n; half *= 4)  // two stages at once
    for (int base = 0; base < n; base += 4 * half)
      for (int i = base; i < base + half; ++i)
        butterfly_4<Lanes>(row(i), row(i + half), row(i + 2 * half), row(i + 3 * half));
  for (; half < n; half *= 2)
    for (int base = 0; base < n; base += 2 * half)
      for (int i = base; i < base + half; ++i) butterfly_2<Lanes>(row(i), row(i + half));
}

/// x <- (H_m x I_n) x, or its transpose, by the dense factor; x[(block * n + i) * Lanes + lane].
template <int M, bool Transpose, int Lanes, class Real>
inline void hadamard_dense(Real* x, int n) {
  using row = simd::vec<Real, Lanes>;
  row column[static_cast<std::size_t>(M)];
  for (int i = 0; i < n; ++i) {
    for (int r = 0; r < M; ++r) column[r].load(x + (std::int64_t{r} * n + i) * Lanes);
    for (int r = 0; r < M; ++r) {
      row sum = column[0];
      if (((Transpose ? hadamard_rows<M>.row[0] >> r : hadamard_rows<M>.row[r]) & 1u) != 0) sum.scale(Real{-1});
      for (int c = 1; c < M; ++c) {
        std::uint64_t const bit = Transpose ? hadamard_rows<M>.row[c] >> r : hadamard_rows<M>.row[r] >> c;
        if ((bit & 1u) != 0)
          sum.set_difference(sum, column[c]);
        else
          sum.set_sum(sum, column[c]);
      }
      sum.store(x + (std::int64_t{r} * n + i) * Lanes);
    }
  }
}

}  // namespace detail

/// x <- H_dim x without the factor 1 / sqrt(dim), for each of Lanes vectors side by side: x[slot * Lanes + lane].
/// With Transpose, H_dim^T. hadamard_factor(dim) is not 0. Additions only, in an order that depends on dim alone.
template <int Lanes = 1, bool Transpose = false, class Real>
inline void hadamard_transform(Real* x, int dim) {  // [dim, Lanes]
  int const m = hadamard_factor(dim), n = dim / m;
  for (int block = 0; block < m; ++block) detail::hadamard_butterflies<Lanes>(x + std::int64_t{block} * n * Lanes, n);
  if (m == 12) detail::hadamard_dense<12, Transpose, Lanes>(x, n);
  if (m == 20) detail::hadamard_dense<20, Transpose, Lanes>(x, n);
  if (m == 28) detail::hadamard_dense<28, Transpose, Lanes>(x, n);
  if (m == 36) detail::hadamard_dense<36, Transpose, Lanes>(x, n);
}

}  // namespace kvant::inline v0
