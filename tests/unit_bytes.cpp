#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <kvant/format/rotation.hpp>

#include "support/all_formats.hpp"
#include "support/catch.hpp"
#include "support/define_all_formats.hpp"
#include "support/statistics.hpp"
#include "support/unit_fixture.hpp"

using namespace support;
using kvant::half;

// ---- bytes ----

TEST_CASE("a codec writes every byte of a unit and none beside it", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(support::all_head_dims));
  auto const page_tokens = dim % 48 == 0 ? 256 : dim % 5 == 0 ? 128 : 0;
  CAPTURE(codec->name, dim, page_tokens);
  unit_of<float> unit{*codec, {1, dim, dim, page_tokens}};
  unit.fill_normal(13);
  std::vector<std::vector<std::byte>> written;
  for (std::byte const poison : {std::byte{0}, std::byte{0xff}, std::byte{0x5a}}) {
    unit.encode(0, poison);  // checks the guards
    written.push_back(unit.bytes());
  }
  REQUIRE(written[1] == written[0]);
  REQUIRE(written[2] == written[0]);
}

TEST_CASE("keys and values of unlike size share a unit", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const [key_dim, value_dim] =
      GENERATE(std::pair{192, 128}, std::pair{576, 512}, std::pair{64, 320}, std::pair{80, 96}, std::pair{128, 64});
  CAPTURE(codec->name, key_dim, value_dim);
  unit_of<float> unit{*codec, {1, key_dim, value_dim, 0}};
  unit.fill_normal(14);
  unit.encode(4, std::byte{0});
  auto const bytes = unit.bytes();
  unit.encode(4, std::byte{0xff});
  REQUIRE(unit.bytes() == bytes);
  unit.encode_and_decode();
  REQUIRE(unit.worst_error(side::key) <= 1.3 * ordinary_error(*codec, {1, key_dim, key_dim, 0}, side::key));
  REQUIRE(unit.worst_error(side::value) <= 1.3 * ordinary_error(*codec, {1, value_dim, value_dim, 0}, side::value));
}

TEST_CASE("the same tokens make the same bytes and values, whatever came before", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(support::all_head_dims));
  CAPTURE(codec->name, dim);
  auto const other = codec->another();
  unit_of<half> unit{*codec, {1, dim, dim, 0}}, elsewhere{*other, {1, dim, dim, 0}};
  unit.fill_normal(15);
  unit.encode_and_decode(4);
  auto const bytes = unit.bytes();
  auto const keys = unit.decoded_keys, values = unit.decoded_values;

  unit_of<float> before{*codec, {1, 128, 64, 256}};  // another shape through the same object
  before.fill_normal(16, 1e4);
  before.encode_and_decode(17);
  unit.encode_and_decode(4);
  REQUIRE(unit.bytes() == bytes);
  REQUIRE(unit.decoded_keys == keys);
  REQUIRE(unit.decoded_values == values);

  elsewhere.keys = unit.keys, elsewhere.values = unit.values;
  elsewhere.encode_and_decode(4);
  REQUIRE(elsewhere.bytes() == bytes);
  REQUIRE(elsewhere.decoded_keys == keys);
  REQUIRE(elsewhere.decoded_values == values);
}

// ---- sinks ----

TEST_CASE("masked tokens have no bit in a page and no part in its groups", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(some_head_dims));
  auto const masked = GENERATE(1, 4, 32, 37, 63);
  CAPTURE(codec->name, dim, masked);
  unit_of<float> unit{*codec, {1, dim, dim, 0}};
  unit.fill_normal(17);
  REQUIRE(unit.encode(masked) == 0);
  auto const bytes = unit.bytes();
  for (side const s : sides) {
    side_facts const& f = unit.facts(s);
    int set = 0, set_scalars = 0;
    for (int t = 0; t < masked; ++t)
      for (int c = 0; c < dim; ++c) {
        set += unit.code(s, t, c) != 0;
        bool const group_is_masked = !f.along_tokens || (t / f.group_tokens + 1) * f.group_tokens <= masked;
        for (half const h : unit.scalars(s, t, c)) set_scalars += group_is_masked && h.bits != 0;
      }
    REQUIRE(set == 0);
    REQUIRE(set_scalars == 0);
  }
  for (float const garbage : {1e6f, not_a_number, infinity}) {
    for (side const s : sides)
      for (int t = 0; t < masked; ++t)
        for (int c = 0; c < dim; ++c) unit.at(s, t, c) = c % 2 == 0 ? garbage : -garbage;
    unit.factors.clear();
    REQUIRE(unit.encode(masked) == 0);
    REQUIRE(unit.bytes() == bytes);
  }
}

TEST_CASE("tokens beside masked ones are coded as without them", "[special]") {
  auto const codec = GENERATE(from_range(all_formats()));
  auto const dim = GENERATE(from_range(some_head_dims));
  auto const masked = GENERATE(4, 37);
  CAPTURE(codec->name, dim, masked);
  unit_of<float> unit{*codec, {1, dim, dim, 0}}, whole{*codec, {1, dim, dim, 0}};
  support::generator random{18};
  unit.fill(
      [&](side, int, int) { return 4 + random.normal(); });  // far from the zeros that masked tokens might count as
  whole.keys = unit.keys, whole.values = unit.values;
  unit.encode_and_decode(masked);
  whole.encode_and_decode(0);
  for (side const s : sides) {
    side_facts const& f = unit.facts(s);
    if (token_alone(f)) {
      int differing = 0;
      for (int t = masked; t < unit.tokens(); ++t)
        for (int c = 0; c < dim; ++c)
          differing += unit.code(s, t, c) != whole.code(s, t, c) || unit.scalars(s, t, c) != whole.scalars(s, t, c);
      REQUIRE(differing == 0);
    } else if (!f.centered) {  // affine along tokens: the range of those that are not masked
      int wrong = 0;
      for (int begin = 0; begin < unit.tokens(); begin += f.group_tokens)
        for (int c = 0; c < dim; ++c) {
          float lo = infinity, hi = -infinity;
          for (int t = std::max(begin, masked); t < begin + f.group_tokens; ++t)
            lo = std::min(lo, unit.input(s, t, c)), hi = std::max(hi, unit.input(s, t, c));
          if (lo > hi) lo = hi = 0;
          auto const scalars = unit.scalars(s, begin, c);
          wrong += scalars[0] != half{(hi - lo) / static_cast<float>((1 << f.bits) - 1)} || scalars[1] != half{lo};
        }
      REQUIRE(wrong == 0);
    } else {  // the mean of those that are not masked
      std::vector<double> mean(static_cast<std::size_t>(dim)), rotated(mean.size());
      for (int c = 0; c < dim; ++c) {
        for (int t = masked; t < unit.tokens(); ++t)
          mean[static_cast<std::size_t>(c)] += static_cast<double>(unit.input(s, t, c));
        mean[static_cast<std::size_t>(c)] /=
            (unit.tokens() - masked) *
            (f.balanced ? static_cast<double>(static_cast<float>(unit.factors[static_cast<std::size_t>(c)])) : 1);
      }
      if (f.rotates)
        kvant::randomized_hadamard<>::forward(mean.data(), rotated.data(), dim);
      else
        rotated = mean;
      auto const scale = static_cast<double>(static_cast<float>(unit.half_at(codec->mean_scale_byte())));
      double worst = 0;  // in steps of the stored mean
      for (int c = 0; c < dim; ++c) {
        auto const stored = static_cast<double>(
            std::to_integer<std::int8_t>(unit.bytes()[static_cast<std::size_t>(codec->mean_byte(c))]));
        worst = std::max(worst, std::abs(stored - rotated[static_cast<std::size_t>(c)] / scale));
      }
      REQUIRE(scale > 0);
      REQUIRE(worst <= 0.6);  // half a step, and the scale's own rounding at 127
      REQUIRE(unit.worst_error(s, masked) <= 1.3 * whole.worst_error(s));
    }
  }
}
