#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <kvant/half.hpp>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define KVANT_TEST_F16C 1
#endif
#if __has_include(<cuda_fp16.h>) && __has_include(<cuda_bf16.h>)
#define CUDA_NO_HALF 1  // no ::half beside ours
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define KVANT_TEST_CUDA_TYPES 1
#endif

#include "support/catch.hpp"
#include "support/statistics.hpp"

namespace {

using kvant::bfloat16;
using kvant::half;

constexpr float infinity = std::numeric_limits<float>::infinity(),
                not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint32_t sign_bit = 0x80000000u;

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// What the bits of a finite binary16 say, by its definition; the bits of infinity read as 65536.
double half_by_definition(std::uint32_t bits) {
  int const exponent = static_cast<int>(bits >> 10 & 0x1f);
  double const fraction = bits & 0x3ffu;
  double const magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

/// The same of the upper 16 bits of a float; the bits of infinity read as 2^128.
double bfloat16_by_definition(std::uint32_t bits) {
  int const exponent = static_cast<int>(bits >> 7 & 0xff);
  double const fraction = bits & 0x7fu;
  double const magnitude = exponent == 0 ? std::ldexp(fraction, -133) : std::ldexp(128 + fraction, exponent - 134);
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

/// The nearest value, of two the one with the even bits, by search over all magnitudes. Not for NaN.
class slow_rounding {
 public:
  slow_rounding(double (*value_of)(std::uint32_t), std::uint32_t infinity_bits) {
    for (std::uint32_t bits = 0; bits <= infinity_bits; ++bits) values_.push_back(value_of(bits));
  }
  std::uint16_t operator()(float x) const {
    double const magnitude = std::abs(static_cast<double>(x));
    auto const sign = static_cast<std::uint32_t>(std::signbit(x) ? 0x8000 : 0);
    auto const above =
        static_cast<std::uint32_t>(std::upper_bound(values_.begin(), values_.end(), magnitude) - values_.begin());
    if (above == values_.size()) return static_cast<std::uint16_t>(sign | (above - 1));
    double const up = values_[above] - magnitude, down = magnitude - values_[above - 1];  // exact
    bool const round_up = up < down || (up == down && above % 2 == 0);
    return static_cast<std::uint16_t>(sign | (round_up ? above : above - 1));
  }

 private:
  std::vector<double> values_;
};

/// 2^20 random floats but NaN, half of them with an exponent that a half has; every value and tie of `value_of`, with
/// its neighbours.
std::vector<float> inputs(double (*value_of)(std::uint32_t), std::uint32_t infinity_bits) {
  std::vector<float> all{
      0.f, -0.f, infinity, -infinity, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()};
  support::generator random{1};
  while (all.size() < (1u << 20)) {
    auto const bits = static_cast<std::uint32_t>(random.bits() >> 32);
    auto const exponent = static_cast<std::uint32_t>(99 + random.bits() % 46) << 23;  // 2^-28 to 2^17
    float const x = all.size() % 2 == 0 ? float_of(bits) : float_of((bits & ~0x7f800000u) | exponent);
    if (!std::isnan(x)) all.push_back(x);
  }
  for (std::uint32_t bits = 0; bits < infinity_bits; ++bits) {
    double const value = value_of(bits), tie = (value + value_of(bits + 1)) / 2;
    for (double const center : {value, tie}) {
      auto const x = static_cast<float>(center);
      if (static_cast<double>(x) != center) FAIL("a tie is no float");
      for (float const near : {std::nextafter(x, 0.f), x, std::nextafter(x, infinity)}) {
        all.push_back(near);
        all.push_back(-near);
      }
    }
  }
  return all;
}

/// How many of `all` differ in `a` and `b`, and the bits of the last that does.
struct difference {
  int count = 0;
  std::uint32_t last = 0;
};
template <class A, class B>
difference compare(std::vector<float> const& all, A a, B b) {
  difference d;
  for (float const x : all)
    if (a(x) != b(x)) ++d.count, d.last = std::bit_cast<std::uint32_t>(x);
  return d;
}

static_assert(sizeof(half) == 2 && alignof(half) == 2 && sizeof(bfloat16) == 2 && alignof(bfloat16) == 2);
static_assert(std::is_trivially_copyable_v<half> && std::is_trivially_default_constructible_v<half>);
static_assert(std::is_trivially_copyable_v<bfloat16> && std::is_trivially_default_constructible_v<bfloat16>);
static_assert(!std::is_convertible_v<float, half> && !std::is_convertible_v<half, float>);
static_assert(!std::is_convertible_v<float, bfloat16> && !std::is_convertible_v<bfloat16, float>);
static_assert(kvant::element<half> && kvant::element<bfloat16> && kvant::element<float>);
static_assert(!kvant::element<double> && !kvant::element<int>);

static_assert(half{1.f}.bits == 0x3c00 && half{-2.f}.bits == 0xc000 && half{65504.f}.bits == 0x7bff);
static_assert(half{65519.996f}.bits == 0x7bff && half{65520.f}.bits == 0x7c00 && half{-1e30f}.bits == 0xfc00);
static_assert(half{0.f}.bits == 0 && half{-0.f}.bits == 0x8000 && half{not_a_number}.bits == 0x7fff);
static_assert(half{0x1p-24f}.bits == 1 && half{0x1p-25f}.bits == 0 && half{0x1.8p-24f}.bits == 2);
static_assert(half{0x1p-14f}.bits == 0x400 && half{0x1.ff8p-15f}.bits == 0x3ff && half{0x1.ffcp-15f}.bits == 0x400);
static_assert(static_cast<float>(half::from_bits(0x3555)) == 0x1.554p-2f);
static_assert(bfloat16{1.f}.bits == 0x3f80 && bfloat16{-0.f}.bits == 0x8000 && bfloat16{not_a_number}.bits == 0x7fff);
static_assert(bfloat16{0x1.01p0f}.bits == 0x3f80 && bfloat16{0x1.03p0f}.bits == 0x3f82);  // ties, to even
static_assert(bfloat16{std::numeric_limits<float>::max()}.bits == 0x7f80);
static_assert(static_cast<float>(bfloat16::from_bits(0xc049)) == -3.140625f);
static_assert(half::from_bits(0) == half{0.f} && !(half{0.f} == half{-0.f}));

}  // namespace

TEST_CASE("every half is what its bits say and survives the way through float", "[half]") {
  int wrong = 0, not_kept = 0, wrong_nan = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    half const h = half::from_bits(static_cast<std::uint16_t>(bits));
    auto const x = static_cast<float>(h);
    bool const negative = (bits & 0x8000u) != 0;
    if ((bits & 0x7fffu) > 0x7c00) {
      wrong_nan += !std::isnan(x) || half{x}.bits != 0x7fff;
      continue;
    }
    if ((bits & 0x7fffu) == 0x7c00)
      wrong += x != (negative ? -infinity : infinity);
    else
      wrong += static_cast<double>(x) != half_by_definition(bits) || std::signbit(x) != negative;
    not_kept += half{x}.bits != bits;
  }
  REQUIRE(wrong == 0);
  REQUIRE(not_kept == 0);
  REQUIRE(wrong_nan == 0);
}

TEST_CASE("every bfloat16 is what its bits say and survives the way through float", "[half]") {
  int wrong = 0, not_kept = 0, wrong_nan = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    bfloat16 const h = bfloat16::from_bits(static_cast<std::uint16_t>(bits));
    auto const x = static_cast<float>(h);
    bool const negative = (bits & 0x8000u) != 0;
    if ((bits & 0x7fffu) > 0x7f80) {
      wrong_nan += !std::isnan(x) || bfloat16{x}.bits != 0x7fff;
      continue;
    }
    if ((bits & 0x7fffu) == 0x7f80)
      wrong += x != (negative ? -infinity : infinity);
    else
      wrong += static_cast<double>(x) != bfloat16_by_definition(bits) || std::signbit(x) != negative;
    not_kept += bfloat16{x}.bits != bits;
  }
  REQUIRE(wrong == 0);
  REQUIRE(not_kept == 0);
  REQUIRE(wrong_nan == 0);
}

TEST_CASE("a float becomes the nearest half, ties to even", "[half]") {
  slow_rounding const nearest{half_by_definition, 0x7c00};
  auto const all = inputs(half_by_definition, 0x7c00);
  auto const wrong = compare(
      all, [](float x) { return half{x}.bits; }, nearest);
  CAPTURE(wrong.last);
  REQUIRE(wrong.count == 0);
}

TEST_CASE("a float becomes the nearest bfloat16, ties to even", "[half]") {
  slow_rounding const nearest{bfloat16_by_definition, 0x7f80};
  auto const all = inputs(bfloat16_by_definition, 0x7f80);
  auto const wrong = compare(
      all, [](float x) { return bfloat16{x}.bits; }, nearest);
  CAPTURE(wrong.last);
  REQUIRE(wrong.count == 0);
}

TEST_CASE("every NaN becomes 0x7fff", "[half]") {
  int wrong = 0;
  auto const check = [&](std::uint32_t payload) {
    for (std::uint32_t const sign : {0u, sign_bit}) {
      float const x = float_of(sign | 0x7f800000u | payload);
      wrong += half{x}.bits != 0x7fff || bfloat16{x}.bits != 0x7fff || kvant::detail::half_bits_portable(x) != 0x7fff;
    }
  };
  for (std::uint32_t payload = 1; payload < 0x800000u; payload = payload < 0x4000u ? payload + 1 : payload + 4093)
    check(payload);
  check(0x7fffffu), check(0x400000u);
  REQUIRE(wrong == 0);
}

TEST_CASE("what a translation unit converts with equals the portable way", "[half]") {
  // With F16C among the compiler's flags one side is an instruction; the other is what constant expressions use.
  auto const all = inputs(half_by_definition, 0x7c00);
  auto const wrong = compare(all, kvant::detail::half_bits, kvant::detail::half_bits_portable);
  CAPTURE(wrong.last);
  REQUIRE(wrong.count == 0);
  int wrong_values = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    auto const b = static_cast<std::uint16_t>(bits);
    float const x = kvant::detail::half_value(b), y = kvant::detail::half_value_portable(b);
    wrong_values += std::isnan(x) ? !std::isnan(y) : std::bit_cast<std::uint32_t>(x) != std::bit_cast<std::uint32_t>(y);
  }
  REQUIRE(wrong_values == 0);
}

#if defined(KVANT_TEST_F16C)
namespace {
__attribute__((target("f16c"))) std::uint16_t hardware_bits(float x) {
  return static_cast<std::uint16_t>(_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(x), 0)));
}
__attribute__((target("f16c"))) float hardware_value(std::uint16_t bits) { return _cvtsh_ss(bits); }
}  // namespace

TEST_CASE("the portable conversions equal the processor's", "[half]") {
  if (!__builtin_cpu_supports("avx2")) {  // every processor with AVX2 has F16C
    SUCCEED("no F16C here");
    return;
  }
  auto const all = inputs(half_by_definition, 0x7c00);
  auto const wrong = compare(all, hardware_bits, kvant::detail::half_bits_portable);
  CAPTURE(wrong.last);
  REQUIRE(wrong.count == 0);
  int wrong_values = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    auto const b = static_cast<std::uint16_t>(bits);
    float const x = hardware_value(b), y = kvant::detail::half_value_portable(b);
    wrong_values += std::isnan(x) ? !std::isnan(y) : std::bit_cast<std::uint32_t>(x) != std::bit_cast<std::uint32_t>(y);
  }
  REQUIRE(wrong_values == 0);
}
#endif

#if defined(KVANT_TEST_CUDA_TYPES)
TEST_CASE("half and bfloat16 have the bits of CUDA's types", "[half]") {
  auto all = inputs(half_by_definition, 0x7c00);
  auto const more = inputs(bfloat16_by_definition, 0x7f80);
  all.insert(all.end(), more.begin(), more.end());
  all.insert(all.end(), {not_a_number, -not_a_number, float_of(0x7f800001u), float_of(0xff812345u)});
  auto const wrong = compare(
      all, [](float x) { return half{x}.bits; },
      [](float x) { return std::bit_cast<std::uint16_t>(__float2half_rn(x)); });
  auto const wrong_brain = compare(
      all, [](float x) { return bfloat16{x}.bits; },
      [](float x) { return std::bit_cast<std::uint16_t>(__float2bfloat16_rn(x)); });
  CAPTURE(wrong.last, wrong_brain.last);
  REQUIRE(wrong.count == 0);
  REQUIRE(wrong_brain.count == 0);
  int wrong_values = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    auto const b = static_cast<std::uint16_t>(bits);
    auto const differ = [](float x, float y) {
      return std::isnan(x) ? !std::isnan(y) : std::bit_cast<std::uint32_t>(x) != std::bit_cast<std::uint32_t>(y);
    };
    wrong_values += differ(__half2float(std::bit_cast<__half>(b)), static_cast<float>(half::from_bits(b)));
    wrong_values +=
        differ(__bfloat162float(std::bit_cast<__nv_bfloat16>(b)), static_cast<float>(bfloat16::from_bits(b)));
  }
  REQUIRE(wrong_values == 0);
}
#endif

TEST_CASE("a stored scalar saturates and is never NaN", "[half]") {
  struct pair {
    float from;
    std::uint16_t to;
  };
  float const largest = std::numeric_limits<float>::max();
  auto const p = GENERATE_COPY(
      pair{0.f, 0}, pair{-0.f, 0x8000}, pair{1.f, 0x3c00}, pair{65504.f, 0x7bff}, pair{65519.f, 0x7bff},
      pair{65520.f, 0x7bff}, pair{1e10f, 0x7bff}, pair{largest, 0x7bff}, pair{infinity, 0x7bff}, pair{-65504.f, 0xfbff},
      pair{-65520.f, 0xfbff}, pair{-largest, 0xfbff}, pair{-infinity, 0xfbff}, pair{not_a_number, 0},
      pair{-not_a_number, 0}, pair{0x1p-24f, 1}, pair{0x1p-25f, 0}, pair{-0x1.8p-25f, 0x8001}, pair{1e-40f, 0});
  CAPTURE(p.from);
  REQUIRE(kvant::saturate_to_half(p.from).bits == p.to);
  STATIC_REQUIRE(kvant::saturate_to_half(1e9f).bits == 0x7bff);
  STATIC_REQUIRE(kvant::saturate_to_half(not_a_number).bits == 0);
}

TEST_CASE("a stored scalar below 65520 is the nearest half", "[half]") {
  int wrong = 0;
  for (float const x : inputs(half_by_definition, 0x7c00)) {
    auto const stored = static_cast<float>(kvant::saturate_to_half(x));
    float const expected = std::abs(x) < 65520.f ? static_cast<float>(half{x}) : std::copysign(65504.f, x);
    wrong += std::bit_cast<std::uint32_t>(stored) != std::bit_cast<std::uint32_t>(expected);
  }
  REQUIRE(wrong == 0);
}
