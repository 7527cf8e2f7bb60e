#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <kvant/cache/page_codec.hpp>
#include <kvant/plan/layer.hpp>

#include "support/catch.hpp"
#include "support/page_input.hpp"
#include "support/unit_reference.hpp"

namespace {

using kvant::bfloat16;
using kvant::half;
using kvant::page_shape;
using kvant::side;
using kvant::token_rows;
using support::as;
using support::head_rows;
using support::make_input;
using support::page_input;
using support::token_major;

template <kvant::kv_format Key, kvant::kv_format Value>
struct formats {
  using key = Key;
  using value = Value;
  using codec = kvant::page_codec<Key, Value>;
};
template <int Bits>
using key_of = kvant::turboquant_key<Bits>;
template <int Bits, class Scale = kvant::scale_by_side>
using tq = kvant::turboquant<Bits, Scale>;
template <class Rotation, class Codec>
using rotated = kvant::format<kvant::term<Rotation, kvant::per_token<>, Codec>>;
using partly_rotated = rotated<kvant::first_channels<512, kvant::randomized_hadamard<7>>, kvant::lloyd_max<4>>;

/// The bytes of the page, from arrays [tokens, heads, dim] of T.
template <class T, class Codec>
std::vector<std::byte> encode(Codec& codec, page_input const& in, int masked, std::byte before = std::byte{0xa5}) {
  auto const keys = as<T>(in.keys), values = as<T>(in.values);
  auto const& layout = codec.layout();
  std::vector<std::byte> page(static_cast<std::size_t>(layout.page_bytes()), before);
  kvant::pages_view const view{page.data(), layout.page_bytes(), layout.unit_bytes(), 1};
  auto const done =
      codec.encode_page(token_major(keys, in.shape, in.shape.key_dim),
                        token_major(values, in.shape, in.shape.value_dim), masked, in.factors.data(), view, 0);
  REQUIRE(done.message() == "");
  return page;
}

template <class Codec>
page_shape prepared(Codec& codec, page_shape shape) {
  REQUIRE(codec.prepare(shape).message() == "");
  return codec.layout().shape;
}

double largest(std::vector<double> const& x) {
  double m = 0;
  for (double const v : x) m = std::max(m, std::abs(v));
  return m;
}
template <class A, class B>
double distance(std::vector<A> const& a, std::vector<B> const& b) {
  double m = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    m = std::max(m, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return m;
}

/// Whether each code of a width of up to 4 bits stands somewhere in the tokens from `masked` on.
template <class UnitSide>
bool every_code_appears(UnitSide const& unit, int masked, int tokens, int dim) {
  using codec = typename UnitSide::codec;
  if constexpr (codec::bits <= 4) {
    std::vector<int> count(std::size_t{1} << codec::bits);
    for (int token = masked; token < tokens; ++token)
      for (int c = 0; c < dim; ++c) ++count[unit.code(token, c)];
    return std::count(count.begin(), count.end(), 0) == 0;
  }
  return true;
}

/// Encodes a page and holds every byte and every decoded value against the definitions.
template <class Formats>
void check_page(page_shape shape, int masked) {
  using K = typename Formats::key;
  using V = typename Formats::value;
  typename Formats::codec codec;
  page_shape const s = prepared(codec, shape);
  CAPTURE(s.kv_heads, s.key_dim, s.value_dim, s.page_tokens, codec.layout().tile_tokens, masked);
  page_input const in = make_input(s, 11 * static_cast<unsigned>(s.key_dim) + static_cast<unsigned>(masked));
  auto const page = encode<float>(codec, in, masked);
  for (int head = 0; head < s.kv_heads; ++head) {
    CAPTURE(head);
    std::byte const* const unit = page.data() + std::int64_t{head} * codec.layout().unit_bytes();
    half const* const factors = in.factors.data() + std::int64_t{head} * s.key_dim;
    support::unit_side<K, V, side::key> const keys(codec.layout(), unit);
    support::unit_side<K, V, side::value> const values(codec.layout(), unit);
    REQUIRE(keys.faults(head_rows(in.keys, s, s.key_dim, head), masked, factors) == 0);
    REQUIRE(values.faults(head_rows(in.values, s, s.value_dim, head), masked, nullptr) == 0);
    REQUIRE(every_code_appears(keys, masked, s.page_tokens, s.key_dim));
    REQUIRE(every_code_appears(values, masked, s.page_tokens, s.value_dim));

    std::vector<double> k(static_cast<std::size_t>(s.page_tokens * s.key_dim));
    std::vector<double> v(static_cast<std::size_t>(s.page_tokens * s.value_dim));
    std::vector<float> k_float(k.size()), v_float(v.size());
    codec.decode_unit(unit, factors, k.data(), v.data());
    codec.decode_unit(unit, factors, k_float.data(), v_float.data());
    REQUIRE(largest(k) > 0);
    REQUIRE(largest(v) > 0);
    REQUIRE(distance(k, keys.decode(factors)) <= 1e-6 * largest(k));
    REQUIRE(distance(v, values.decode(nullptr)) <= 1e-6 * largest(v));
    REQUIRE(distance(k, k_float) <= 2e-6 * largest(k));
    REQUIRE(distance(v, v_float) <= 2e-6 * largest(v));
  }
}

static_assert(std::is_same_v<kvant::scale_of<tq<4>, side::key>, kvant::least_squares>);
static_assert(std::is_same_v<kvant::scale_of<key_of<2>, side::key>, kvant::least_squares>);
static_assert(std::is_same_v<kvant::scale_of<tq<1>, side::value>, kvant::unbiased>);
static_assert(std::is_same_v<kvant::scale_of<tq<3, kvant::plain_norm>, side::value>, kvant::plain_norm>);

}  // namespace

#define KVANT_FORMAT_PAIRS                                                                                     \
  (formats<key_of<4>, tq<4>>), (formats<kvant::centered<tq<3>>, tq<2>>), (formats<tq<2>, kvant::exact<half>>), \
      (formats<kvant::exact<bfloat16>, tq<3>>), (formats<kvant::kivi_key<2, 32>, kvant::kivi_value<2, 32>>),   \
      (formats<kvant::kivi_key<4, 128>, kvant::kivi_value<3, 64>>), (formats<kvant::kivi_key<3, 64>, tq<1>>),  \
      (formats<kvant::q1_0<128>, kvant::q1_0_rotated<64>>), (formats<key_of<1>, kvant::kivi_value<8, 128>>),   \
      (formats<kvant::exact<half>, kvant::exact<float>>),                                                      \
      (formats<tq<4, kvant::plain_norm>, tq<3, kvant::norm_corrected>>),                                       \
      (formats<kvant::centered<kvant::kivi_key<2, 64>>, kvant::kivi_key<4, 32>>),                              \
      (formats<rotated<kvant::randomized_hadamard<3>, kvant::affine<8>>, kvant::exact<bfloat16>>),             \
      (formats<kvant::balanced<kvant::centered<kvant::q1_0_rotated<0>>, kvant::adjacent_pairs>,                \
               rotated<kvant::randomized_hadamard<>, kvant::exact_codec<float>>>)

TEMPLATE_TEST_CASE("pages hold what the definitions say", "[page_codec]", KVANT_FORMAT_PAIRS) {
  check_page<TestType>({3, 64, 96, 0}, 4);
  check_page<TestType>({2, 128, 80, 128}, 100);  // a key group of 64 without tokens
  check_page<TestType>({1, 576, 512, 0}, 1);
  check_page<TestType>({1, 192, 256, 256}, 63);
  check_page<TestType>({1, 112, 320, 128}, 33);  // a key group of 32 without tokens
  check_page<TestType>({2, 160, 64, 0}, 0);
}

TEST_CASE("rotations may end before the head does", "[page_codec]") {
  using pairs = kvant::first_pairs<64, kvant::half_split_pairs>;
  check_page<formats<kvant::balanced<kvant::centered<partly_rotated>, pairs>, partly_rotated>>({1, 576, 512, 64}, 3);
}

TEMPLATE_TEST_CASE("bytes do not depend on where rows lie or what they are made of", "[page_codec]",
                   (formats<key_of<4>, tq<4>>), (formats<kvant::kivi_key<2, 32>, kvant::kivi_value<2, 32>>),
                   (formats<tq<2>, kvant::exact<half>>)) {
  typename TestType::codec codec;
  page_shape const s = prepared(codec, {3, 128, 96, 128});
  auto const in = make_input(s, 9);
  auto const expected = encode<float>(codec, in, 4);
  REQUIRE(encode<half>(codec, in, 4) == expected);
  REQUIRE(encode<bfloat16>(codec, in, 4) == expected);

  // [head, token, channel]; and K and V as slices of one buffer of projections, six q heads before them
  std::vector<half> by_head_k, by_head_v, fused;
  for (int head = 0; head < 3; ++head) {
    for (float const x : head_rows(in.keys, s, 128, head)) by_head_k.push_back(half{x});
    for (float const x : head_rows(in.values, s, 96, head)) by_head_v.push_back(half{x});
  }
  for (int token = 0; token < 128; ++token) {
    fused.insert(fused.end(), 6 * 128, half::from_bits(0x7e00));
    for (int i = 0; i < 3 * 128; ++i) fused.push_back(half{in.keys[static_cast<std::size_t>(token * 3 * 128 + i)]});
    for (int i = 0; i < 3 * 96; ++i) fused.push_back(half{in.values[static_cast<std::size_t>(token * 3 * 96 + i)]});
  }
  std::int64_t const row = 6 * 128 + 3 * 128 + 3 * 96;
  auto const& layout = codec.layout();
  auto const page_of = [&](token_rows<half> keys, token_rows<half> values) {
    std::vector<std::byte> page(static_cast<std::size_t>(layout.page_bytes()));
    kvant::pages_view const view{page.data(), layout.page_bytes(), layout.unit_bytes(), 1};
    REQUIRE(codec.encode_page(keys, values, 4, in.factors.data(), view, 0).ok());
    return page;
  };
  REQUIRE(page_of({by_head_k.data(), 128, 128 * 128}, {by_head_v.data(), 96, 128 * 96}) == expected);
  REQUIRE(page_of({fused.data() + 6 * 128, row, 128}, {fused.data() + 9 * 128, row, 96}) == expected);
}

TEMPLATE_TEST_CASE("a page's units are written whole and nothing else is", "[page_codec]", (formats<key_of<4>, tq<4>>),
                   (formats<kvant::kivi_key<2, 32>, kvant::kivi_value<2, 32>>),
                   (formats<kvant::kivi_key<3, 64>, tq<1>>), (formats<key_of<1>, kvant::kivi_value<8, 128>>),
                   (formats<kvant::exact<half>, kvant::exact<float>>)) {
  for (int const dim : {80, 96, 192, 320}) {
    typename TestType::codec codec;
    page_shape const s = prepared(codec, {2, dim, dim, 64});
    auto const in = make_input(s, 21);
    auto const expected = encode<float>(codec, in, 2);
    REQUIRE(encode<float>(codec, in, 2, std::byte{0x5a}) == expected);  // no byte is what it was before

    std::int64_t const unit = codec.layout().unit_bytes(), head = unit + 48, page = 2 * head + 112, guard = 256;
    std::vector<std::byte> pool(static_cast<std::size_t>(2 * guard + 9 * page), std::byte{0xc3});
    kvant::pages_view const view{pool.data() + guard, page, head, 9};
    for (std::int64_t const id : {7, 0, 4, 8})
      REQUIRE(
          codec
              .encode_page(token_major(in.keys, s, dim), token_major(in.values, s, dim), 2, in.factors.data(), view, id)
              .ok());
    int wrong = 0, disturbed = 0;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(pool.size()); ++i) {
      std::int64_t const id = (i - guard) / page, h = (i - guard) % page / head, byte = (i - guard) % page % head;
      bool const owned = i >= guard && h < 2 && byte < unit && (id == 7 || id == 0 || id == 4 || id == 8);
      std::byte const got = pool[static_cast<std::size_t>(i)];
      if (owned)
        wrong += got == expected[static_cast<std::size_t>(h * unit + byte)] ? 0 : 1;
      else
        disturbed += got == std::byte{0xc3} ? 0 : 1;
    }
    CAPTURE(dim);
    REQUIRE(wrong == 0);
    REQUIRE(disturbed == 0);
  }
}

TEMPLATE_TEST_CASE("bytes do not depend on what a codec did before", "[page_codec]", (formats<key_of<4>, tq<4>>),
                   (formats<kvant::kivi_key<4, 128>, kvant::kivi_value<3, 64>>), (formats<tq<2>, kvant::exact<half>>)) {
  typename TestType::codec used, fresh;
  page_shape const s = prepared(used, {2, 192, 128, 128});
  prepared(fresh, s);
  auto const in = make_input(s, 1), other = make_input(s, 2);
  auto const expected = encode<float>(fresh, in, 4);
  REQUIRE(encode<float>(fresh, in, 4) == expected);

  auto const other_page = encode<half>(used, other, 77);
  std::vector<float> k(128 * 192), v(128 * 128);
  used.decode_unit(other_page.data(), other.factors.data(), k.data(), v.data());
  REQUIRE(encode<float>(used, in, 4) == expected);
  REQUIRE_FALSE(used.prepare({2, 192, 100, 128}).ok());  // leaves the object as it was
  REQUIRE(used.layout().shape == s);
  REQUIRE(encode<float>(used, in, 4) == expected);
  prepared(used, {1, 576, 64, 256});
  prepared(used, s);
  REQUIRE(encode<float>(used, in, 4) == expected);

  auto values_changed = in;  // keys and values do not know of each other
  values_changed.values = other.values;
  auto const changed = encode<float>(used, values_changed, 4);
  std::vector<float> k_changed(k.size()), v_changed(v.size());
  used.decode_unit(expected.data(), in.factors.data(), k.data(), v.data());
  used.decode_unit(changed.data(), in.factors.data(), k_changed.data(), v_changed.data());
  REQUIRE(k == k_changed);
  REQUIRE(v != v_changed);
}

TEST_CASE("exact elements keep every bit", "[page_codec]") {
  kvant::page_codec<kvant::exact<half>, kvant::exact<bfloat16>> codec;
  prepared(codec, {1, 1024, 1024, 64});
  std::vector<half> keys;
  std::vector<bfloat16> values;
  for (std::uint32_t i = 0; i < 65'536; ++i) {  // NaN, infinities and subnormals among them
    keys.push_back(half::from_bits(static_cast<std::uint16_t>(i)));
    values.push_back(bfloat16::from_bits(static_cast<std::uint16_t>(65'535 - i)));
  }
  std::vector<std::byte> page(static_cast<std::size_t>(codec.layout().page_bytes()));
  kvant::page_codec<kvant::exact<half>, kvant::exact<half>> halves;
  prepared(halves, {1, 1024, 1024, 64});
  REQUIRE(codec.layout().page_bytes() == 4 * 65'536);
  REQUIRE(halves.encode_unit(keys.data(), 1024, keys.data(), 1024, 0, nullptr, page.data()) == 0);
  REQUIRE(std::memcmp(page.data(), keys.data(), 2 * 65'536) == 0);
  REQUIRE(std::memcmp(page.data() + 2 * 65'536, keys.data(), 2 * 65'536) == 0);
  REQUIRE(codec.encode_unit(values.data(), 1024, values.data(), 1024, 3, nullptr, page.data()) == 0);
  REQUIRE(std::memcmp(page.data() + 2 * 65'536 + 3 * 2'048, values.data() + 3 * 1'024, 61 * 2'048) == 0);
  REQUIRE(std::count(page.begin() + 2 * 65'536, page.begin() + 2 * 65'536 + 3 * 2'048, std::byte{0}) == 3 * 2'048);
}

TEST_CASE("values that are not finite are counted and coded as zeros", "[page_codec]") {
  kvant::page_codec<key_of<1>, kvant::kivi_value<8, 128>> codec;
  page_shape const s = prepared(codec, {2, 64, 64, 64});
  auto in = make_input(s, 4), zeros = in;
  for (std::size_t const i : {700u, 701u, 4'000u})
    in.keys[i] = std::numeric_limits<float>::quiet_NaN(), zeros.keys[i] = 0;
  in.values[5'000] = -std::numeric_limits<float>::infinity(), zeros.values[5'000] = 0;
  in.keys[5] = in.values[6] = std::numeric_limits<float>::infinity();  // of a sink
  REQUIRE(encode<float>(codec, in, 1) == encode<float>(codec, zeros, 1));

  std::vector<std::byte> page(static_cast<std::size_t>(codec.layout().page_bytes()));
  kvant::pages_view const view{page.data(), codec.layout().page_bytes(), codec.layout().unit_bytes(), 1};
  std::int64_t count = -1;
  REQUIRE(codec
              .encode_page(token_major(in.keys, s, 64), token_major(in.values, s, 64), 1, in.factors.data(), view, 0,
                           &count)
              .ok());
  REQUIRE(count == 4);
}

TEST_CASE("a call that cannot be served says why and writes nothing", "[page_codec]") {
  kvant::page_codec<key_of<4>, tq<4>> codec;
  std::vector<std::byte> pool(100'000, std::byte{0x77});
  page_shape const s{2, 128, 128, 64};
  auto const in = make_input(s, 3);
  token_rows<float> const keys = token_major(in.keys, s, 128), values = token_major(in.values, s, 128), none;
  kvant::pages_view const pages{pool.data(), 2 * 8'592, 8'592, 5};
  std::int64_t count = -7;
  auto const message = [&](token_rows<float> k, token_rows<float> v, int masked, half const* factors,
                           kvant::pages_view view, std::int64_t page) {
    return codec.encode_page(k, v, masked, factors, view, page, &count).message();
  };
  half const* const f = in.factors.data();
  REQUIRE(message(keys, values, 0, f, pages, 0) == "page codec: expected prepare() before use");
  prepared(codec, s);
  auto without_memory = pages, narrow = pages;
  without_memory.base = nullptr;
  narrow.head_stride = 8'591;
  REQUIRE(message(keys, values, 0, f, without_memory, 0) == "pages: expected memory, got a null pointer");
  REQUIRE(message(keys, values, 0, f, pages, 5) == "page id: expected 0 to 4, got 5");
  REQUIRE(message(keys, values, 0, f, pages, -1) == "page id: expected 0 to 4, got -1");
  REQUIRE(message(keys, values, 0, f, narrow, 0) == "head stride: expected at least 8592 bytes (a unit), got 8591");
  auto overlapping = pages, empty = pages;
  overlapping.page_stride = 2 * 8'592 - 16;
  empty.count = 0;
  REQUIRE(message(keys, values, 0, f, overlapping, 1) ==
          "page stride: expected at least 17184 bytes (2 units 8592 apart), got 17168");
  REQUIRE(message(keys, values, 0, f, empty, 0) == "pages: expected at least one, got 0");
  REQUIRE(message(keys, values, 0, nullptr, pages, 0) ==
          "balance factors: expected [kv_heads, key_dim] halves for balanced keys, got a null pointer");
  REQUIRE(message(keys, values, -1, f, pages, 0) == "masked tokens: expected 0 to 63, got -1");
  REQUIRE(message(keys, values, 64, f, pages, 0) == "masked tokens: expected 0 to 63, got 64");
  REQUIRE(message(none, values, 0, f, pages, 0) == "rows: expected keys and values, got a null pointer");
  REQUIRE(message(keys, none, 0, f, pages, 0) == "rows: expected keys and values, got a null pointer");
  REQUIRE(count == -7);
  REQUIRE(std::count(pool.begin(), pool.end(), std::byte{0x77}) == 100'000);
  REQUIRE(
      codec.prepare({2, 128, 130, 64}).message() ==
      "value_dim: expected a multiple of 16 up to 1024 that is 1, 12, 20, 28 or 36 times a power of two (the format "
      "rotates), got 130");
  REQUIRE(message(keys, values, 63, f, pages, 4) == "");
  REQUIRE(count == 0);
  kvant::pages_view const heads_outermost{pool.data(), 8'592, 5 * 8'592, 5};
  REQUIRE(message(keys, values, 0, f, heads_outermost, 4) == "");
}
