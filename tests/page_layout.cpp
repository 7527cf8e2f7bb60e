#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <kvant/cache/views.hpp>
#include <kvant/format/policies.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/plan/layer.hpp>

#include "support/catch.hpp"
#include "support/claims.hpp"

namespace {

using kvant::page_layout;
using kvant::page_shape;
using kvant::side;
using support::owner;

template <kvant::kv_format Key, kvant::kv_format Value>
struct formats {
  using key = Key;
  using value = Value;
  using layout = page_layout<Key, Value>;
};
template <int Bits>
using key_of = kvant::turboquant_key<Bits>;
template <int Bits>
using tq = kvant::turboquant<Bits>;
using exact_half = kvant::exact<kvant::half>;
using exact_bfloat16 = kvant::exact<kvant::bfloat16>;
using exact_float = kvant::exact<float>;
using rotated_exact =
    kvant::format<kvant::term<kvant::randomized_hadamard<>, kvant::per_token<>, kvant::exact_codec<float>>>;

constexpr page_shape square(int heads, int dim, int page_tokens = 0) { return {heads, dim, dim, page_tokens}; }
template <class Key, class Value>
constexpr int tile_of(page_shape s) {
  return page_layout<Key, Value>::tile_tokens_for(s);
}
template <class Key, class Value>
constexpr int tile_bytes_of(page_shape s) {
  return page_layout<Key, Value>(s).tile_bytes();
}

// ---- sizes by name ----

static_assert(tile_of<tq<3>, tq<3>>(square(1, 128)) == 32 && tile_bytes_of<tq<3>, tq<3>>(square(1, 128)) == 3200);
static_assert(tile_of<tq<4>, tq<4>>(square(1, 128)) == 32 && tile_bytes_of<tq<4>, tq<4>>(square(1, 128)) == 4224);
static_assert(tile_of<tq<1>, tq<1>>(square(1, 128)) == 64 && tile_bytes_of<tq<1>, tq<1>>(square(1, 128)) == 2304);
static_assert(tile_of<tq<2>, tq<2>>(square(1, 128)) == 64 && tile_bytes_of<tq<2>, tq<2>>(square(1, 128)) == 4352);
static_assert(tile_bytes_of<kvant::kivi_key<2, 64>, kvant::kivi_value<2, 128>>(square(1, 128)) == 4864);
static_assert(page_layout<key_of<4>, tq<4>>(square(1, 128)).header_bytes() == 144);
static_assert(page_layout<key_of<4>, tq<4>>(square(1, 128)).unit_bytes() == 144 + 2 * 4224);
static_assert(page_layout<key_of<4>, tq<4>>(square(1, 64)).header_bytes() == 80);
static_assert(page_layout<key_of<4>, tq<4>>({1, 576, 512, 0}).header_bytes() == 592);
static_assert(page_layout<tq<4>, tq<4>>(square(1, 128)).header_bytes() == 0);

// ---- tokens of a tile ----

static_assert(tile_of<tq<3>, tq<3>>(square(1, 80)) == 64);   // 5 KB
static_assert(tile_of<tq<3>, tq<3>>(square(1, 112)) == 64);  // above 5.5 KB, but 32 tokens do not fill 3-bit words
static_assert(tile_of<tq<4>, tq<4>>(square(1, 80)) == 64);   // 5,376 bytes
static_assert(tile_of<tq<4>, tq<4>>(square(1, 96)) == 32);
static_assert(tile_of<tq<2>, tq<2>>(square(1, 160)) == 64);
static_assert(tile_of<tq<2>, tq<2>>(square(1, 192)) == 32);
static_assert(tile_of<tq<1>, tq<1>>(square(1, 320)) == 64);  // 5,376 bytes
static_assert(tile_of<tq<1>, tq<1>>(square(1, 512)) == 32);
static_assert(tile_of<tq<4>, tq<2>>({1, 112, 80, 0}) == 64 && tile_of<tq<4>, tq<2>>({1, 256, 240, 0}) == 64);
static_assert(tile_of<kvant::kivi_key<2, 32>, kvant::kivi_value<2, 32>>(square(1, 128)) == 32);
static_assert(tile_of<kvant::kivi_key<2, 64>, kvant::kivi_value<2, 64>>(square(1, 512)) == 64);  // a group is never cut
static_assert(tile_of<kvant::kivi_key<4, 128>, tq<4>>(square(1, 128)) == 128);
static_assert(tile_of<tq<4>, kvant::kivi_key<4, 128>>(square(1, 128, 256)) == 128);
static_assert(tile_of<exact_half, exact_half>(square(1, 128)) == 64);
static_assert(tile_of<exact_half, exact_bfloat16>(square(1, 128, 256)) == 256);
static_assert(tile_of<exact_half, tq<2>>(square(1, 128, 256)) == 32);
static_assert(tile_of<rotated_exact, rotated_exact>(square(1, 128, 256)) == 32);

static_assert(page_layout<tq<4>, tq<4>>::least_page_tokens == 64);
static_assert(page_layout<tq<4>, tq<4>>(square(1, 128)).shape.page_tokens == 64);
static_assert(page_layout<kvant::kivi_key<4, 128>, tq<4>>(square(1, 128)).shape.page_tokens == 128);
static_assert(page_layout<tq<4>, kvant::kivi_key<2, 128>>(square(1, 128)).shape.page_tokens == 128);

// ---- bytes and bits ----

static_assert(kvant::page_bytes<tq<4>, tq<4>>(square(8, 128)) == 8 * 2 * 4224);
static_assert(kvant::page_bytes<tq<4>, tq<4>>(square(8, 128, 192)) == 3 * 8 * 2 * 4224);
static_assert(kvant::page_bytes<exact_half, exact_half>(square(8, 128)) == 8 * 64 * 128 * 2 * 2);
static_assert(kvant::page_bytes<exact_half, exact_float>({3, 192, 128, 64}) == 3 * 64 * (192 * 2 + 128 * 4));
static_assert(kvant::bits_per_value<tq<4>, tq<4>>(square(8, 128)) == 4.125);
static_assert(kvant::bits_per_value<tq<3>, tq<3>>(square(1, 128)) == 3.125);
static_assert(kvant::bits_per_value<tq<2>, tq<2>>(square(2, 128, 256)) == 2.125);
static_assert(kvant::bits_per_value<tq<1>, tq<1>>(square(2, 128)) == 1.125);
static_assert(kvant::bits_per_value<tq<4>, tq<2>>({2, 192, 64, 64}) == (4 * 192 + 2 * 64 + 32) / 256.0);
static_assert(kvant::bits_per_value<key_of<4>, tq<4>>(square(1, 128)) == 4.125 + 144 * 8 / (64 * 256.0));
static_assert(kvant::bits_per_value<kvant::kivi_key<2, 32>, kvant::kivi_value<2, 32>>(square(1, 128)) == 3.0);
static_assert(kvant::bits_per_value<kvant::kivi_key<2, 64>, kvant::kivi_value<2, 64>>(square(1, 128)) == 2.5);
static_assert(kvant::bits_per_value<kvant::kivi_key<2, 64>, kvant::kivi_value<2, 128>>(square(1, 128)) == 2.375);
static_assert(kvant::bits_per_value<kvant::kivi_key<4, 128>, kvant::kivi_value<4, 128>>(square(1, 128)) == 4.25);
static_assert(kvant::bits_per_value<kvant::q1_0<128>, kvant::q1_0_rotated<128>>(square(1, 128)) == 1.125);
static_assert(kvant::bits_per_value<exact_half, exact_half>(square(1, 80)) == 16);

// ---- every byte has one owner ----

template <side S, class F, class Layout>
void claim_side(support::claims& all, Layout const& layout, int dim) {
  using codec = kvant::codec_of<F>;
  using grouping = kvant::grouping_of<F>;
  bool const keys = S == side::key;
  for (int token = 0; token < layout.shape.page_tokens; ++token) {
    for (int channel = 0; channel < dim; ++channel)
      for (int k = 0; k < codec::bits; ++k) {
        auto const at = layout.template code_bit<S>(token, channel, k);
        all.claim(at.byte, at.bit, 1, keys ? owner::k_codes : owner::v_codes);
      }
    if constexpr (grouping::along_tokens) {
      if (token % grouping::group_tokens != 0) continue;
      for (int channel = 0; channel < dim; ++channel)
        for (int s = 0; s < codec::scalars; ++s)
          all.claim(layout.template channel_scalar_byte<S>(token, channel, s), 0, 16,
                    keys ? owner::k_channels : owner::v_channels);
    } else {
      for (int i = 0; i < codec::scalars * grouping::groups(dim); ++i)
        all.claim(layout.template token_scalar_byte<S>(token, i), 0, 16, keys ? owner::k_tokens : owner::v_tokens);
    }
  }
}

template <class Formats>
void check_every_byte(page_shape shape) {
  REQUIRE(Formats::layout::check(shape).message() == "");
  typename Formats::layout const layout(shape);
  int const header = layout.header_bytes(), unit = layout.unit_bytes(), dim = shape.key_dim;
  CAPTURE(shape.kv_heads, shape.key_dim, shape.value_dim, layout.shape.page_tokens, layout.tile_tokens, unit);
  REQUIRE(unit % 16 == 0);
  REQUIRE(header % 16 == 0);
  REQUIRE(layout.tile_bytes() % 16 == 0);
  REQUIRE(layout.tiles() * layout.tile_tokens == layout.shape.page_tokens);
  REQUIRE(layout.page_bytes() == std::int64_t{shape.kv_heads} * unit);
  REQUIRE((kvant::page_bytes<typename Formats::key, typename Formats::value>(shape) == layout.page_bytes()));

  support::claims all(unit);
  int used = 0;  // of the header
  if (Formats::key::is_centered) {
    for (int c = 0; c < dim; ++c) all.claim(layout.mean_byte(c), 0, 8, owner::mean);
    all.claim(layout.mean_scale_byte(), 0, 16, owner::mean_scale);
    used = dim + 2;
  }
  REQUIRE(header == (used + 15) / 16 * 16);
  claim_side<side::key, typename Formats::key>(all, layout, shape.key_dim);
  claim_side<side::value, typename Formats::value>(all, layout, shape.value_dim);
  REQUIRE(all.outside == 0);
  REQUIRE(all.shared == 0);
  int unused = 0, padding = 0;
  for (int byte = 0; byte < unit; ++byte) {
    bool const pad = byte >= used && byte < header;
    unused += pad || all.full(byte) ? 0 : 1;
    padding += pad && !all.untouched(byte) ? 1 : 0;
  }
  REQUIRE(unused == 0);
  REQUIRE(padding == 0);
  REQUIRE(all.ascending(0, used));
  for (int tile = 0; tile < layout.tiles(); ++tile)
    REQUIRE(all.ascending(layout.tile_offset(tile), layout.tile_offset(tile) + layout.tile_bytes()));
}

/// A shape is served exactly if no reason is given why not.
template <class Formats>
void check_refusals() {
  using layout = typename Formats::layout;
  int served = 0, refused = 0, disagree = 0;
  auto const ask = [&](page_shape s) {
    bool const ok = layout::check(s).ok();
    (ok ? served : refused) += 1;
    disagree += ok == layout::serves(s) ? 0 : 1;
  };
  for (int heads : {-1, 0, 1, 3})
    for (int page : {-128, -64, 0, 1, 16, 32, 63, 64, 65, 96, 100, 128, 192, 256, 320, 4096}) {
      for (int dim = -32; dim <= 1100; dim += 4) {
        ask({heads, dim, 64, page});
        ask({heads, 64, dim, page});
      }
      ask({heads, 1 << 20, 64, page});
      ask({heads, 64, 1 << 20, page});
    }
  REQUIRE(disagree == 0);
  REQUIRE(served > 100);
  REQUIRE(refused > served);
}

}  // namespace

#define KVANT_FORMAT_PAIRS                                                                                         \
  (formats<tq<4>, tq<4>>), (formats<key_of<3>, tq<3>>), (formats<tq<2>, tq<2>>), (formats<key_of<1>, tq<1>>),      \
      (formats<key_of<4>, kvant::kivi_value<2, 32>>), (formats<kvant::kivi_key<2, 32>, kvant::kivi_value<2, 32>>), \
      (formats<kvant::kivi_key<2, 64>, kvant::kivi_value<2, 128>>),                                                \
      (formats<kvant::kivi_key<4, 128>, kvant::kivi_value<4, 128>>),                                               \
      (formats<kvant::centered<kvant::kivi_key<3, 64>>, kvant::q1_0<128>>),                                        \
      (formats<kvant::kivi_key<8, 64>, kvant::kivi_key<4, 128>>),                                                  \
      (formats<kvant::q1_0_rotated<64>, kvant::kivi_value<8, 16>>), (formats<exact_half, exact_half>),             \
      (formats<exact_bfloat16, tq<3>>), (formats<key_of<2>, exact_half>), (formats<exact_half, exact_float>),      \
      (formats<kvant::centered<rotated_exact>, rotated_exact>)

TEMPLATE_TEST_CASE("codes, parameters and means own every byte of a unit", "[layout]", KVANT_FORMAT_PAIRS) {
  for (int const dim : {64, 80, 96, 112, 128, 160, 192, 256, 320, 512}) check_every_byte<TestType>(square(3, dim));
  for (int const pages : {2, 3, 4}) {
    check_every_byte<TestType>(square(1, 80, pages * TestType::layout::least_page_tokens));
    check_every_byte<TestType>({2, 192, 128, pages * TestType::layout::least_page_tokens});
  }
  check_every_byte<TestType>({1, 576, 512, 0});
  check_every_byte<TestType>({8, 64, 576, 0});
  check_every_byte<TestType>({1, 112, 16, 0});
  check_every_byte<TestType>({1, 16, 1024, 0});
}

TEMPLATE_TEST_CASE("a shape is served or the reason is given", "[layout]", (formats<tq<4>, tq<4>>),
                   (formats<kvant::kivi_key<4, 128>, tq<2>>),
                   (formats<kvant::kivi_key<2, 32>, kvant::kivi_value<2, 32>>), (formats<exact_half, exact_half>),
                   (formats<exact_half, kvant::kivi_key<2, 64>>)) {
  check_refusals<TestType>();
}

TEST_CASE("what a layout cannot serve it names, with what came", "[layout]") {
  auto const plain = [](page_shape s) { return page_layout<kvant::kivi_key<2, 32>, tq<2>>::check(s).message(); };
  auto const rotated = [](page_shape s) { return page_layout<tq<4>, kvant::kivi_value<2, 32>>::check(s).message(); };
  auto const wide = [](page_shape s) { return page_layout<kvant::kivi_key<4, 128>, tq<4>>::check(s).message(); };
  std::string const sizes = "expected a multiple of 16 up to 1024";
  std::string const orders = sizes + " that is 1, 12, 20, 28 or 36 times a power of two (the format rotates)";
  REQUIRE(plain({0, 64, 64, 64}) == "kv_heads: expected at least 1, got 0");
  REQUIRE(plain({-3, 64, 64, 64}) == "kv_heads: expected at least 1, got -3");
  for (int const dim : {-16, 0, 8, 72, 100, 208, 1040}) {
    std::string const got = ", got " + std::to_string(dim);
    CAPTURE(dim);
    REQUIRE(plain({1, dim, 64, 64}) == (dim == 208 ? "" : "key_dim: " + sizes + got));
    REQUIRE(plain({1, 64, dim, 64}) == "value_dim: " + orders + got);
    REQUIRE(rotated({1, dim, 64, 64}) == "key_dim: " + orders + got);
    REQUIRE(rotated({1, 64, dim, 64}) == (dim == 208 ? "" : "value_dim: " + sizes + got));
  }
  for (int const tokens : {-64, 1, 32, 63, 96, 100}) {
    std::string const got = ", got " + std::to_string(tokens);
    CAPTURE(tokens);
    REQUIRE(plain({1, 64, 64, tokens}) == "page_tokens: expected a multiple of 64 (token groups of 32)" + got);
    REQUIRE(rotated({1, 64, 64, tokens}) == "page_tokens: expected a multiple of 64 (token groups of 1)" + got);
  }
  for (int const tokens : {32, 64, 96, 192, 320})
    REQUIRE(wide({1, 64, 64, tokens}) ==
            "page_tokens: expected a multiple of 128 (token groups of 128), got " + std::to_string(tokens));
  for (int const tokens : {0, 128, 256}) REQUIRE(wide({1, 64, 64, tokens}) == "");
  for (int const tokens : {0, 64, 128, 192, 1024}) REQUIRE(plain({1, 64, 64, tokens}) == "");
  REQUIRE(plain({1, 64, 64, 1 << 22}) == "page_tokens: expected at most 1024, got 4194304");
  REQUIRE_FALSE(page_layout<tq<4>, tq<4>>::serves({1, 64, 64, 1 << 22}));
  using partly = kvant::format<
      kvant::term<kvant::first_channels<512, kvant::randomized_hadamard<>>, kvant::per_token<>, kvant::lloyd_max<4>>>;
  REQUIRE(page_layout<partly, tq<4>>::check({1, 64, 64, 64}).message() ==
          "key_dim: " + sizes + " that is at least 512 (the channels that are rotated), got 64");
  // the first fault is named, in the order of the shape
  REQUIRE(plain({0, 72, 72, 1}).starts_with("kv_heads"));
  REQUIRE(plain({1, 72, 72, 1}).starts_with("key_dim"));
  REQUIRE(plain({1, 64, 72, 1}).starts_with("value_dim"));
}

TEST_CASE("one 8-byte load brings the scalars of a lane's rows", "[layout]") {
  page_layout<key_of<4>, kvant::kivi_value<2, 32>> const layout(square(1, 128, 128));
  int faults = 0;
  for (int block = 0; block < 128 / 32; ++block)
    for (int index = 0; index < 8; ++index) {  // four groups of scale and zero
      int const first = layout.token_scalar_byte<side::value>(32 * block, index);
      faults += first % 8 == 0 ? 0 : 1;
      for (int g = 0; g < 8; ++g)
        for (int r = 0; r < 4; ++r)
          faults +=
              layout.token_scalar_byte<side::value>(32 * block + g + 8 * r, index) == first + 2 * (4 * g + r) ? 0 : 1;
    }
  REQUIRE(faults == 0);
}

TEST_CASE("parameters of channels and means lie in the order of loads", "[layout]") {
  page_layout<kvant::centered<kvant::kivi_key<2, 64>>, kvant::kivi_key<4, 32>> const layout({1, 80, 112, 64});
  int faults = 0;
  for (int p = 0; p < 80; ++p) {
    int const slot = kvant::slot_of(p, 80);
    faults += layout.mean_byte(slot) == p ? 0 : 1;
    for (int s = 0; s < 2; ++s)
      faults += layout.channel_scalar_byte<side::key>(63, slot, s) ==
                        layout.channel_scalar_byte<side::key>(0, kvant::slot_of(0, 80), s) + 2 * p
                    ? 0
                    : 1;
  }
  REQUIRE(faults == 0);
  REQUIRE(layout.mean_scale_byte() == 80);
  int const first = layout.channel_scalar_byte<side::value>(0, 0, 0);
  REQUIRE(layout.channel_scalar_byte<side::value>(31, 0, 1) == first + 2 * 112);      // zeros after scales
  REQUIRE(layout.channel_scalar_byte<side::value>(32, 0, 0) == first + 2 * 2 * 112);  // the next group after both
  REQUIRE(layout.channel_scalar_byte<side::value>(32, 111, 1) + 2 == layout.unit_bytes());
}

TEST_CASE("page addresses do not wrap at 2^31", "[layout][views]") {
  std::int64_t const start = std::int64_t{1} << 40;
  auto* const base = reinterpret_cast<std::byte*>(start);  // never read
  kvant::pages_view const pages{.base = base, .page_stride = 276'480, .head_stride = 34'560, .count = 8'000};
  auto const address = [](std::byte const* p) { return reinterpret_cast<std::intptr_t>(p); };
  REQUIRE(address(pages.unit(7'768, 0)) - start == 2'147'696'640);
  REQUIRE(address(pages.unit(7'768, 7)) - start == 2'147'696'640 + 7 * 34'560);
  REQUIRE(address(pages.unit(7'999, 7)) - start == std::int64_t{7'999} * 276'480 + 7 * 34'560);
  static_assert(kvant::page_bytes<exact_half, exact_half>({1 << 16, 1024, 1024, 64}) == std::int64_t{1} << 34);
}
