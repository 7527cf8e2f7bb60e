#include <concepts>
#include <cstdint>
#include <type_traits>

#include <kvant/layout/page_layout.hpp>
#include <kvant/plan/layer.hpp>

#include "support/catch.hpp"
#include "support/statistics.hpp"
#include "support/unit_fixture.hpp"

// Most of this file is checked by the compiler: what a format costs is known before a line runs.

namespace {

using kvant::bfloat16;
using kvant::half;
using kvant::page_shape;

constexpr page_shape llama{8, 128, 128, 0};  // Llama-3.1-8B: 8 kv heads, head size 128, 32 layers

template <class Key, class Value>
constexpr double bits = kvant::bits_per_value<Key, Value>(llama);
/// MiB of Llama-3.1-8B at 32,768 tokens: 2^31 values.
template <class Layer>
constexpr double mib = 256 * kvant::bits_per_value<typename Layer::key, typename Layer::value>(llama);
template <class Format>
using both = kvant::layer<Format, Format>;

// ---- the whole model ----

static_assert(mib<kvant::exact_layer> == 4096 && mib<both<kvant::exact<bfloat16>>> == 4096);
static_assert(mib<kvant::plain_turboquant_4bit> == 1056 && mib<kvant::plain_turboquant_3bit> == 800 &&
              mib<kvant::plain_turboquant_2bit> == 544 && mib<kvant::plain_turboquant_1bit> == 288);
static_assert(mib<kvant::turboquant_4bit> == 1074 && mib<kvant::turboquant_3bit> == 818 &&
              mib<kvant::turboquant_2bit> == 562 && mib<kvant::turboquant_1bit> == 306);
static_assert(mib<kvant::k4v2> == 818 && mib<kvant::k3v2> == 690);
static_assert(mib<kvant::layer<kvant::turboquant<4>, kvant::turboquant<2>>> == 800 &&
              mib<kvant::layer<kvant::turboquant<4>, kvant::turboquant<3>>> == 928 &&
              mib<kvant::layer<kvant::turboquant<3>, kvant::turboquant<2>>> == 672);
static_assert(mib<kvant::kivi_2bit> == 768 && mib<kvant::kivi_2bit_g64> == 640 && mib<kvant::kivi_4bit> == 1088);
static_assert(mib<kvant::layer<kvant::kivi_key<2, 64>, kvant::kivi_value<2, 128>>> == 608);
static_assert(mib<kvant::layer<kvant::kivi_key<2, 128>, kvant::kivi_value<2, 128>>> == 576);
static_assert(mib<kvant::bonsai_1bit> == 288 && mib<kvant::bonsai_1bit_rotated> == 288);

// ---- bits a value, parameters counted ----

template <int Bits>
constexpr bool turboquant_bits =
    bits<kvant::turboquant<Bits>, kvant::turboquant<Bits>> == Bits + 0.125 &&
    bits<kvant::centered<kvant::turboquant<Bits>>, kvant::turboquant<Bits>> == Bits + 0.125 + 0.140625 / 2 &&
    bits<kvant::turboquant_key<Bits>, kvant::turboquant<Bits>> == Bits + 0.125 + 0.140625 / 2;
static_assert(turboquant_bits<1> && turboquant_bits<2> && turboquant_bits<3> && turboquant_bits<4>);
template <int Bits>
constexpr bool kivi_bits = bits<kvant::kivi_key<Bits, 32>, kvant::kivi_value<Bits, 32>> == Bits + 1. &&
                           bits<kvant::kivi_key<Bits, 64>, kvant::kivi_value<Bits, 64>> == Bits + 0.5 &&
                           bits<kvant::kivi_key<Bits, 128>, kvant::kivi_value<Bits, 128>> == Bits + 0.25;
static_assert(kivi_bits<2> && kivi_bits<3> && kivi_bits<4> && kivi_bits<8>);
static_assert(bits<kvant::q1_0<128>, kvant::q1_0<128>> == 1.125 &&
              bits<kvant::q1_0_rotated<64>, kvant::q1_0_rotated<64>> == 1.25);
static_assert(bits<kvant::exact<half>, kvant::exact<half>> == 16 &&
              bits<kvant::exact<float>, kvant::exact<float>> == 32);
static_assert(bits<kvant::exact<half>, kvant::turboquant<2>> == (16 + 2.125) / 2);
// The scale rule and the pairs of channels cost nothing.
static_assert(bits<kvant::turboquant<3, kvant::plain_norm>, kvant::turboquant<3, kvant::unbiased>> == 3.125);
static_assert(mib<kvant::turboquant_layer<4, 4, kvant::adjacent_pairs>> == 1074);

// Longer pages share the header of centered keys; other parts keep their share.
static_assert(kvant::bits_per_value<kvant::turboquant<4>, kvant::turboquant<4>>({1, 128, 128, 256}) == 4.125);
static_assert(kvant::bits_per_value<kvant::turboquant_key<4>, kvant::turboquant<4>>({1, 128, 128, 256}) ==
              4.125 + 0.140625 / 8);

// ---- bytes ----

static_assert(kvant::page_bytes<kvant::exact<half>, kvant::exact<half>>(llama) == 64 * 8 * 256 * 2);
static_assert(kvant::page_bytes<kvant::turboquant<4>, kvant::turboquant<4>>(llama) == 8 * 2 * 4224);
static_assert(kvant::page_bytes<kvant::turboquant_key<4>, kvant::turboquant<4>>(llama) == 8 * (144 + 2 * 4224));
static_assert(kvant::page_bytes<kvant::kivi_key<4, 128>, kvant::kivi_value<4, 128>>(llama) == 8 * 128 * 256 * 17 / 32);

template <class Key, class Value = Key>
constexpr bool tile_is(int bytes, int tiles, int key_dim = 128, int value_dim = 128) {
  kvant::page_layout<Key, Value> const layout({1, key_dim, value_dim, 0});
  return layout.tile_bytes() == bytes && layout.tiles() == tiles &&
         layout.unit_bytes() == layout.header_bytes() + tiles * bytes;
}
static_assert(tile_is<kvant::turboquant<3>>(3200, 2) && tile_is<kvant::turboquant<4>>(4224, 2));
static_assert(tile_is<kvant::turboquant<1>>(2304, 1) && tile_is<kvant::turboquant<2>>(4352, 1));
static_assert(tile_is<kvant::kivi_key<2, 64>, kvant::kivi_value<2, 128>>(4864, 1));
static_assert(tile_is<kvant::turboquant_key<3>, kvant::turboquant<3>>(3200, 2) && tile_is<kvant::q1_0<128>>(2304, 1));
static_assert(tile_is<kvant::exact<half>>(64 * 256 * 2, 1));
static_assert(kvant::page_layout<kvant::turboquant_key<4>, kvant::turboquant<4>>(llama).header_bytes() == 144 &&
              kvant::page_layout<kvant::turboquant_key<4>, kvant::turboquant<4>>({1, 80, 64, 0}).header_bytes() == 96 &&
              kvant::page_layout<kvant::turboquant<4>, kvant::turboquant_key<4>>(llama).header_bytes() == 0);

/// Codes, scalars and header of a token of each side, summed by hand.
template <class Layer>
constexpr bool adds_up(double key_bits, double value_bits, bool centered) {
  for (int const key_dim : support::all_head_dims)
    for (int const value_dim : {key_dim, 64, 128, 576}) {
      page_shape const shape{3, key_dim, value_dim, 0};
      if (!kvant::page_layout<typename Layer::key, typename Layer::value>::serves(shape)) return false;
      kvant::page_layout<typename Layer::key, typename Layer::value> const layout(shape);
      int const tokens = layout.shape.page_tokens, header = centered ? (key_dim + 2 + 15) / 16 * 16 : 0;
      double const codes = (key_bits * key_dim + value_bits * value_dim) * tokens / 8;
      int const scalars = tokens * 2 * 2;  // one half a token and side
      if (layout.unit_bytes() != static_cast<int>(codes) + scalars + header || layout.unit_bytes() % 16 != 0)
        return false;
      if (kvant::page_bytes<typename Layer::key, typename Layer::value>(shape) != 3 * std::int64_t{layout.unit_bytes()})
        return false;
    }
  return true;
}
static_assert(adds_up<kvant::plain_turboquant_1bit>(1, 1, false) && adds_up<kvant::plain_turboquant_2bit>(2, 2, false));
static_assert(adds_up<kvant::plain_turboquant_3bit>(3, 3, false) && adds_up<kvant::plain_turboquant_4bit>(4, 4, false));
static_assert(adds_up<kvant::turboquant_4bit>(4, 4, true) && adds_up<kvant::turboquant_3bit>(3, 3, true));
static_assert(adds_up<kvant::turboquant_2bit>(2, 2, true) && adds_up<kvant::turboquant_1bit>(1, 1, true));
static_assert(adds_up<kvant::k4v2>(4, 2, true) && adds_up<kvant::k3v2>(3, 2, true));

// A head that is no multiple of the group: the last group is shorter and has its own scalars.
static_assert(kvant::bits_per_value<kvant::q1_0<128>, kvant::q1_0<128>>({1, 192, 192, 0}) == 1 + 2 * 16 / 192.);
static_assert(kvant::bits_per_value<kvant::q1_0<128>, kvant::q1_0<128>>({1, 80, 80, 0}) == 1 + 16 / 80.);
static_assert(kvant::page_bytes<kvant::kivi_key<2, 32>, kvant::kivi_value<2, 32>>({1, 80, 80, 0}) ==
              64 * (20 + 20) + 2 * 80 * 4 + 64 * 3 * 4);

// ---- the named layers ----

template <class Layer>
constexpr bool has_defaults = Layer::window == 128 && Layer::sinks == 4 &&
                              kvant::kv_format<typename Layer::key>&& kvant::kv_format<typename Layer::value>;
static_assert(has_defaults<kvant::turboquant_4bit> && has_defaults<kvant::turboquant_3bit> &&
              has_defaults<kvant::turboquant_2bit> && has_defaults<kvant::turboquant_1bit> &&
              has_defaults<kvant::k4v2> && has_defaults<kvant::k3v2>);
static_assert(has_defaults<kvant::plain_turboquant_4bit> && has_defaults<kvant::plain_turboquant_3bit> &&
              has_defaults<kvant::plain_turboquant_2bit> && has_defaults<kvant::plain_turboquant_1bit>);
static_assert(has_defaults<kvant::kivi_2bit> && has_defaults<kvant::kivi_2bit_g64> && has_defaults<kvant::kivi_4bit> &&
              has_defaults<kvant::bonsai_1bit> && has_defaults<kvant::bonsai_1bit_rotated>);
static_assert(kvant::exact_layer::window == 0 && kvant::exact_layer::sinks == 0);
using own_layer = kvant::layer<kvant::turboquant<4>, kvant::turboquant<3>, kvant::window<256>, kvant::sinks<1>>;
static_assert(own_layer::window == 256 && own_layer::sinks == 1);

static_assert(std::same_as<kvant::turboquant_4bit::key,
                           kvant::balanced<kvant::centered<kvant::turboquant<4>>, kvant::half_split_pairs>> &&
              std::same_as<kvant::turboquant_4bit::value, kvant::turboquant<4>>);
static_assert(std::same_as<kvant::k3v2::key, kvant::turboquant_key<3>> &&
              std::same_as<kvant::k3v2::value, kvant::turboquant<2>>);
static_assert(std::same_as<kvant::plain_turboquant_2bit::key, kvant::turboquant<2>>);
static_assert(std::same_as<kvant::turboquant_layer<4, 3, kvant::adjacent_pairs>::key::pairs, kvant::adjacent_pairs>);
static_assert(kvant::turboquant_4bit::key::is_centered && kvant::turboquant_4bit::key::is_balanced &&
              !kvant::turboquant_4bit::value::is_centered && !kvant::plain_turboquant_4bit::key::is_centered);
static_assert(kvant::rotation_of<kvant::turboquant_1bit::key>::rotates &&
              kvant::rotation_of<kvant::bonsai_1bit_rotated::key>::rotates &&
              !kvant::rotation_of<kvant::bonsai_1bit::key>::rotates &&
              !kvant::rotation_of<kvant::kivi_2bit::key>::rotates);

template <class Layer>
constexpr int page_tokens = kvant::page_layout<typename Layer::key, typename Layer::value>(llama).shape.page_tokens;
static_assert(page_tokens<kvant::turboquant_4bit> == 64 && page_tokens<kvant::kivi_2bit> == 64 &&
              page_tokens<kvant::kivi_2bit_g64> == 64 && page_tokens<kvant::kivi_4bit> == 128 &&
              page_tokens<kvant::bonsai_1bit> == 64 && page_tokens<kvant::exact_layer> == 64);

// ---- pairs of RoPE channels ----

template <class Pairs>
constexpr bool are_pairs(int dim) {
  for (int c = 0; c < dim; ++c) {
    int const partner = Pairs::partner(c, dim);
    if (partner < 0 || partner >= dim || Pairs::partner(partner, dim) != c) return false;
  }
  return true;
}
static_assert(are_pairs<kvant::half_split_pairs>(80) && are_pairs<kvant::adjacent_pairs>(80) &&
              are_pairs<kvant::single_channels>(80) && are_pairs<kvant::first_pairs<32, kvant::half_split_pairs>>(80) &&
              are_pairs<kvant::first_pairs<64, kvant::adjacent_pairs>>(64));
static_assert(kvant::half_split_pairs::partner(3, 128) == 67 && kvant::adjacent_pairs::partner(3, 128) == 2 &&
              kvant::single_channels::partner(3, 128) == 3 &&
              kvant::first_pairs<32, kvant::half_split_pairs>::partner(3, 128) == 19 &&
              kvant::first_pairs<32, kvant::half_split_pairs>::partner(32, 128) == 32);

}  // namespace

TEST_CASE("a codec's unit is as long as the layout says at compile time", "[policies]") {
  auto const dim = GENERATE(from_range(support::all_head_dims));
  CAPTURE(dim);
  page_shape const shape{2, dim, dim, 0};
  auto const bytes_of = []<class Layer>(Layer, page_shape s) {
    kvant::page_codec<typename Layer::key, typename Layer::value> codec;
    REQUIRE(codec.prepare(s).ok());
    REQUIRE(codec.layout().page_bytes() == kvant::page_bytes<typename Layer::key, typename Layer::value>(s));
    return 2 * std::int64_t{codec.layout().unit_bytes()};
  };
  REQUIRE(bytes_of(kvant::turboquant_4bit{}, shape) ==
          kvant::page_bytes<kvant::turboquant_4bit::key, kvant::turboquant_4bit::value>(shape));
  REQUIRE(bytes_of(kvant::turboquant_3bit{}, shape) ==
          kvant::page_bytes<kvant::turboquant_3bit::key, kvant::turboquant_3bit::value>(shape));
  REQUIRE(bytes_of(kvant::kivi_2bit{}, shape) ==
          kvant::page_bytes<kvant::kivi_2bit::key, kvant::kivi_2bit::value>(shape));
  REQUIRE(bytes_of(kvant::bonsai_1bit{}, shape) ==
          kvant::page_bytes<kvant::bonsai_1bit::key, kvant::bonsai_1bit::value>(shape));
}
