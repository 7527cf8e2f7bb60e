#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include <kvant/attention/merge.hpp>
#include <kvant/merge.cuh>

#include "gpu/device.cuh"
#include "support/catch.hpp"

namespace {

using kvant::bfloat16;
using kvant::half;

bool const has_device = gpu::exit_without_device();  // before any test
constexpr float infinity = std::numeric_limits<float>::infinity();

std::uint64_t fresh_seed() {
  static std::uint64_t const seed = [] {
    std::uint64_t const s = std::random_device{}();
    std::printf("seed of the random inputs: %llu\n", static_cast<unsigned long long>(s));
    return s;
  }();
  return seed;
}

template <class T, class O>
struct types {
  using in = T;
  using out = O;
};

/// Half the distance to the next element, relative.
template <class O>
constexpr double rounding = std::is_same_v<O, half>       ? 0x1p-11
                            : std::is_same_v<O, bfloat16> ? 0x1p-8
                                                          : 0x1p-24;

template <class T>
bool same_bits(std::vector<T> const& a, std::vector<T> const& b) {
  using bits = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](T x, T y) { return kvant::detail::bit_cast<bits>(x) == kvant::detail::bit_cast<bits>(y); });
}

struct shape {
  int parts, rows, q_heads, value_dim;
};

/// States of random rows on the host and on the device: of each row and head some parts are empty and hold NaN.
template <class T>
struct parts {
  shape s;
  std::size_t states, elements;
  std::vector<std::vector<T>> out;
  std::vector<std::vector<float>> log_sum_exp;
  std::vector<std::unique_ptr<gpu::buffer<T>>> d_out;
  std::vector<std::unique_ptr<gpu::buffer<float>>> d_log_sum_exp;

  parts(shape const& of, std::uint64_t seed)
      : s(of),
        states(static_cast<std::size_t>(s.rows) * static_cast<std::size_t>(s.q_heads)),
        elements(states * static_cast<std::size_t>(s.value_dim)) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    auto const one_in = [&](int n) { return random() % static_cast<unsigned>(n) == 0; };
    std::vector<bool> no_part(states);
    std::vector<float> center(states);
    for (std::size_t i = 0; i < states; ++i)
      no_part[i] = one_in(5), center[i] = normal(random) * (one_in(4) ? 1e4f : 5.f);
    for (int p = 0; p < s.parts; ++p) {
      std::vector<T> x(elements);
      std::vector<float> lse(states);
      for (std::size_t i = 0; i < states; ++i) {
        bool const empty = no_part[i] || one_in(4);
        lse[i] = empty ? -infinity : center[i] + normal(random) * (one_in(4) ? 100.f : 2.f);
        auto const d = static_cast<std::size_t>(s.value_dim);
        for (std::size_t c = 0; c < d; ++c)
          x[i * d + c] = T{empty ? std::numeric_limits<float>::quiet_NaN() : normal(random)};
      }
      d_out.push_back(std::make_unique<gpu::buffer<T>>(x));
      d_log_sum_exp.push_back(std::make_unique<gpu::buffer<float>>(lse));
      out.push_back(std::move(x)), log_sum_exp.push_back(std::move(lse));
    }
  }

  kvant::attention_states<T> view() const {
    kvant::attention_states<T> v;
    for (std::size_t p = 0; p < out.size(); ++p) v.part[p] = {d_out[p]->get(), d_log_sum_exp[p]->get()};
    v.count = s.parts, v.rows = s.rows, v.q_heads = s.q_heads, v.value_dim = s.value_dim;
    return v;
  }

  /// The host's function in double, part after part; largest[i] is the largest magnitude that went into state i.
  void expect(std::vector<double>& joined, std::vector<double>& lse, std::vector<double>& largest) const {
    joined.assign(elements, std::nan("")), lse.assign(states, -HUGE_VAL), largest.assign(states, 0.);
    for (std::size_t p = 0; p < out.size(); ++p) {
      std::vector<double> x, l(log_sum_exp[p].begin(), log_sum_exp[p].end());
      for (T const e : out[p]) x.push_back(static_cast<double>(static_cast<float>(e)));
      for (std::size_t i = 0; i < elements; ++i)
        if (!std::isnan(x[i])) {
          double& most = largest[i / static_cast<std::size_t>(s.value_dim)];
          most = std::max(most, std::abs(x[i]));
        }
      kvant::merge_states(joined.data(), lse.data(), x.data(), l.data(), static_cast<std::int64_t>(states),
                          s.value_dim);
    }
  }

  template <class O>
  void compare(std::vector<O> const& got, std::vector<float> const& got_lse) const {
    std::vector<double> joined, lse, largest;
    expect(joined, lse, largest);
    double worst = 0, worst_lse = 0;  // in units of what is allowed
    for (std::size_t i = 0; i < elements; ++i) {
      double const y = static_cast<double>(static_cast<float>(got[i]));
      double const allowed =
          rounding<O> * std::abs(joined[i]) + 2e-6 * largest[i / static_cast<std::size_t>(s.value_dim)];
      double const error = y == joined[i] ? 0 : std::abs(y - joined[i]) / (allowed + 0x1p-25);  // subnormal halves
      worst = std::max(worst, std::isnan(error) ? 1e9 : error);
    }
    for (std::size_t i = 0; i < states; ++i) {
      double const l = static_cast<double>(got_lse[i]);
      double const error = l == lse[i] ? 0 : std::abs(l - lse[i]) / (1e-6 + 2e-7 * std::abs(lse[i]));
      worst_lse = std::max(worst_lse, std::isnan(error) ? 1e9 : error);
    }
    CHECK(worst <= 1);
    CHECK(worst_lse <= 1);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("joined states equal the host's", "[gpu][merge]", (types<half, half>), (types<bfloat16, bfloat16>),
                   (types<float, float>), (types<float, half>), (types<half, float>), (types<float, bfloat16>)) {
  using O = typename TestType::out;
  auto const captured = GENERATE(false, true);
  auto const s = GENERATE(shape{2, 5, 32, 128}, shape{1, 3, 1, 64}, shape{16, 7, 3, 72}, shape{3, 1, 5, 8},
                          shape{5, 2, 128, 512}, shape{8, 4, 2, 576});
  auto const seed = fresh_seed();
  CAPTURE(captured, s.parts, s.rows, s.q_heads, s.value_dim, seed);
  parts<typename TestType::in> p(s, seed);
  gpu::buffer<O> out(p.elements + 8);
  gpu::buffer<float> lse(p.states + 1);
  out.fill(0xff), lse.fill(0xff);
  auto const poison = out.host().back();
  gpu::launched once(captured, [&](cudaStream_t stream) {
    REQUIRE(kvant::merge_states_async(p.view(), kvant::merged_state<O>{out.get(), lse.get()}, stream) == cudaSuccess);
  });
  auto got = out.host();
  auto got_lse = lse.host();
  CHECK(same_bits(std::vector<O>(got.end() - 8, got.end()), std::vector<O>(8, poison)));
  CHECK(std::isnan(got_lse.back()));
  got.resize(p.elements), got_lse.resize(p.states);
  p.compare(got, got_lse);

  for (int i = 0; captured && i < 20; ++i) {
    out.fill(0xff), lse.fill(0xff);
    once.replay();
    auto again = out.host();
    auto again_lse = lse.host();
    again.resize(p.elements), again_lse.resize(p.states);
    REQUIRE(same_bits(again, got));
    REQUIRE(same_bits(again_lse, got_lse));
  }

  // Without a log-sum-exp: the same output.
  out.fill(0xff);
  gpu::launched without(captured, [&](cudaStream_t stream) {
    REQUIRE(kvant::merge_states_async(p.view(), kvant::merged_state<O>{out.get(), nullptr}, stream) == cudaSuccess);
  });
  auto plain = out.host();
  plain.resize(p.elements);
  CHECK(same_bits(plain, got));
}

TEMPLATE_TEST_CASE("states are joined where they lie", "[gpu][merge]", half, bfloat16, float) {
  auto const captured = GENERATE(false, true);
  auto const into = GENERATE(0, 2);
  auto const seed = fresh_seed();
  CAPTURE(captured, into, seed);
  parts<TestType> p({3, 9, 16, 200}, seed);
  auto const target = static_cast<std::size_t>(into);
  gpu::launched once(captured, [&](cudaStream_t stream) {
    REQUIRE(kvant::merge_states_async(
                p.view(), kvant::merged_state<TestType>{p.d_out[target]->get(), p.d_log_sum_exp[target]->get()},
                stream) == cudaSuccess);
  });
  p.compare(p.d_out[target]->host(), p.d_log_sum_exp[target]->host());
}

TEST_CASE("one state that is not empty is copied, none gives zeros", "[gpu][merge]") {
  parts<float> p({3, 2, 4, 128}, fresh_seed());
  std::vector<float> const none(p.states, -infinity), some(p.states, 12.5f);
  std::vector<float> const nan(p.elements, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> values(p.elements);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1.f / static_cast<float>(i + 3);
  for (std::size_t q = 0; q < 3; ++q) p.d_out[q]->upload(nan), p.d_log_sum_exp[q]->upload(none);
  gpu::buffer<float> out(p.elements), lse(p.states);
  auto const merge = [&] {
    out.fill(0xff), lse.fill(0xff);
    gpu::launched once(false, [&](cudaStream_t stream) {
      REQUIRE(kvant::merge_states_async(p.view(), kvant::merged_state<float>{out.get(), lse.get()}, stream) ==
              cudaSuccess);
    });
  };
  merge();
  CHECK(out.host() == std::vector<float>(p.elements, 0.f));
  CHECK(lse.host() == none);
  p.d_out[1]->upload(values), p.d_log_sum_exp[1]->upload(some);
  merge();
  CHECK(out.host() == values);
  CHECK(lse.host() == some);
}

TEST_CASE("merge refuses what it cannot do before it launches", "[gpu][merge]") {
  parts<half> p({3, 2, 4, 128}, 1);
  gpu::buffer<half> out(p.elements);
  gpu::buffer<float> lse(p.states);
  out.fill(0xff), lse.fill(0xff);
  using states = kvant::attention_states<half>;
  using merged = kvant::merged_state<half>;
  auto const result = [&](auto change) {
    states s = p.view();
    merged m{out.get(), lse.get()};
    change(s, m);
    return kvant::merge_states_async(s, m, nullptr);
  };
  auto const refused = [&](auto change) { return result(change) == cudaErrorInvalidValue; };
  auto const shifted = [](auto* x, int bytes) {
    return reinterpret_cast<decltype(x)>(reinterpret_cast<std::uint64_t>(x) + static_cast<std::uint64_t>(bytes));
  };
  CHECK(refused([](states& s, merged&) { s.part[0].out = nullptr; }));
  CHECK(refused([](states& s, merged&) { s.part[2].log_sum_exp = nullptr; }));
  CHECK(refused([&](states& s, merged&) { s.part[1].out = shifted(s.part[1].out, 8); }));
  CHECK(refused([&](states& s, merged&) { s.part[1].log_sum_exp = shifted(s.part[1].log_sum_exp, 2); }));
  CHECK(refused([](states&, merged& m) { m.out = nullptr; }));
  CHECK(refused([&](states&, merged& m) { m.out = shifted(m.out, 8); }));
  CHECK(refused([&](states&, merged& m) { m.log_sum_exp = shifted(m.log_sum_exp, 1); }));
  for (int const n : {-1, 0, 4, 17}) CHECK(refused([&](states& s, merged&) { s.count = n; }));
  for (int const n : {-1, 0}) CHECK(refused([&](states& s, merged&) { s.q_heads = n; }));
  for (int const n : {-8, 0, 4, 124}) CHECK(refused([&](states& s, merged&) { s.value_dim = n; }));
  CHECK(refused([](states& s, merged&) { s.rows = -1; }));
  CHECK(refused([](states& s, merged&) { s.rows = std::int64_t{1} << 60; }));
  CHECK(result([](states& s, merged&) { s.rows = 0; }) == cudaSuccess);
  gpu::check(cudaDeviceSynchronize());
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(std::isnan(static_cast<float>(out.host()[0])));
  CHECK(std::isnan(lse.host()[0]));
}
