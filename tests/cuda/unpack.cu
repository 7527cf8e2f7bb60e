// The unpack recipes of the kernels, on the host: every fragment of random words against the page's own maps.
#include <cstdint>
#include <random>

#include <kvant/format/codec.hpp>
#include <kvant/format/lloyd_max.hpp>
#include <kvant/layout/code_order.hpp>
#include <kvant/warp/unpack.cuh>

#include "support/catch.hpp"

namespace {

constexpr std::uint32_t one = 0x3c003c00u;

/// The integer that an fp16 subnormal stands for, in units of 2^-24.
int subnormal(std::uint32_t bits) {
  REQUIRE((bits & 0x7c00u) == 0);
  auto const magnitude = static_cast<int>(bits & 0x3ffu);
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

/// What unpack_unit calls; a lambda would be for the host alone.
struct put_code {
  std::uint32_t* codes;
  KVANT_HD void operator()(int n, std::uint32_t code) const { codes[n] = code; }
};

template <int Bits>
int level(std::uint32_t code) {
  using table = typename kvant::lloyd_max<Bits>::table;
  return table::level(static_cast<int>(code));
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("fragments hold the levels of their codes", "[cuda]", ((int Bits), Bits), 3, 4) {
  using unpack = kvant::fragment_unpack<kvant::lloyd_max<Bits>>;
  using order = kvant::code_order<Bits, kvant::side::value>;
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::uint32_t words[unpack::words_per_unit];
    for (std::uint32_t& w : words) w = static_cast<std::uint32_t>(random());
    std::uint32_t codes[order::codes];
    kvant::unpack_unit<Bits, kvant::side::value>(words, put_code{codes});
    for (int f = 0; f < unpack::fragments_per_unit; ++f) {
      std::uint32_t a[4];
      unpack::unpack(words, f, one, a);
      for (int n = 0; n < 8; ++n) {  // register i, half j is code n = 4(i & 1) + 2(i >> 1) + j
        int const i = (n >> 2) + 2 * ((n >> 1) & 1), j = n & 1;
        int const entry = subnormal(a[i] >> (16 * j) & 0xffffu);
        REQUIRE(entry == level<Bits>(codes[8 * f + n]) + static_cast<int>(unpack::offset * 16777216.f));
      }
    }
  }
  using table = typename kvant::lloyd_max<Bits>::table;
  CHECK(unpack::scale == table::step * 16777216.f);
}

TEST_CASE("bytes hold the levels of their codes", "[cuda]") {
  using unpack = kvant::byte_unpack<kvant::lloyd_max<3>>;
  std::mt19937 random(6);
  for (int round = 0; round < 2000; ++round) {
    std::uint32_t words[3];
    for (std::uint32_t& w : words) w = static_cast<std::uint32_t>(random());
    std::uint32_t codes[32];
    kvant::unpack_unit<3, kvant::side::key>(words, put_code{codes});
    for (int f = 0; f < 4; ++f) {
      std::uint32_t row[2];
      unpack::unpack(words, f, one, row[0], row[1]);
      for (int n = 0; n < 8; ++n)
        REQUIRE(static_cast<std::int8_t>(row[n >> 2] >> (8 * (n & 3))) == level<3>(codes[8 * f + n]));
    }
  }
}
