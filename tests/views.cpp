#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <kvant/cache/views.hpp>

#include "support/catch.hpp"

namespace {

using kvant::bfloat16;
using kvant::half;
using kvant::side;

template <class... Views>
constexpr bool pass_by_value = ((std::is_trivially_copyable_v<Views> && std::is_aggregate_v<Views> &&
                                 std::is_standard_layout_v<Views> && std::is_trivially_destructible_v<Views>)&&...);
template <class T>
constexpr bool all_pass_by_value =
    pass_by_value<kvant::token_rows<T>, kvant::exact_pages_view<T>, kvant::window_view<T>, kvant::side_records_view<T>,
                  kvant::layer_view<T>, kvant::queries_view<T>>;
static_assert(all_pass_by_value<half> && all_pass_by_value<bfloat16> && all_pass_by_value<float>);
static_assert(pass_by_value<kvant::pages_view, kvant::block_table_view, kvant::sequences_view>);

// What multiplies a page, a slot or a record is 64 bits wide.
static_assert(std::is_same_v<decltype(kvant::pages_view::page_stride), std::int64_t>);
static_assert(std::is_same_v<decltype(kvant::exact_pages_view<half>::page_stride), std::int64_t>);
static_assert(std::is_same_v<decltype(kvant::window_view<half>::slot_stride), std::int64_t>);
static_assert(std::is_same_v<decltype(kvant::side_records_view<half>::record_stride), std::int64_t>);
static_assert(std::is_same_v<decltype(kvant::block_table_view::row_stride), std::int64_t>);

template <class... Views>
constexpr bool empty_by_default() {
  return ((Views{}.data == nullptr) && ...);
}
static_assert(empty_by_default<kvant::token_rows<half>, kvant::queries_view<float>>());
static_assert(kvant::pages_view{}.base == nullptr && kvant::pages_view{}.count == 0);
static_assert(kvant::layer_view<half>{}.window.base == nullptr && kvant::layer_view<half>{}.sequences.count == 0);

/// Where a pointer into one of these arrays points, in bytes from its start.
template <class T>
std::int64_t offset(T const* p, void const* start) {
  return reinterpret_cast<std::byte const*>(p) - static_cast<std::byte const*>(start);
}

}  // namespace

TEST_CASE("rows of elements lie by strides", "[views]") {
  std::array<half, 7 * 3 * 16> buffer{};
  kvant::token_rows<half> const by_token{buffer.data(), 3 * 16, 16}, by_head{buffer.data(), 16, 7 * 16};
  REQUIRE(by_token.row(0, 0) == buffer.data());
  REQUIRE(by_token.row(6, 2) == buffer.data() + 6 * 48 + 32);
  REQUIRE(by_head.row(6, 2) == buffer.data() + 6 * 16 + 224);
  static constexpr std::array<float, 4> four{1, 2, 3, 4};
  static_assert(*kvant::token_rows<float>{four.data(), 2, 1}.row(1, 1) == 4);
}

TEST_CASE("units and exact rows lie by strides", "[views]") {
  alignas(16) std::array<std::byte, 4096> keys{}, values{};
  kvant::pages_view const pages{keys.data(), 1024, 320, 4};
  REQUIRE(pages.unit(0, 0) == keys.data());
  REQUIRE(pages.unit(3, 2) == keys.data() + 3 * 1024 + 2 * 320);

  // [page, token, head, channel] and [page, head, token, channel] of 4 tokens, 2 heads, 16 channels
  kvant::exact_pages_view<bfloat16> const token_major{keys.data(), values.data(), 256, 64, 32, 16};
  kvant::exact_pages_view<bfloat16> const head_major{keys.data(), values.data(), 256, 32, 128, 16};
  REQUIRE(offset(token_major.row(side::key, 5, 3, 1), keys.data()) == 5 * 256 + 3 * 64 + 32);
  REQUIRE(offset(token_major.row(side::value, 5, 3, 1), values.data()) == 5 * 256 + 3 * 64 + 32);
  REQUIRE(offset(head_major.row(side::key, 5, 3, 1), keys.data()) == 5 * 256 + 3 * 32 + 128);
  REQUIRE(offset(head_major.row(side::value, 15, 0, 0), values.data()) == 15 * 256);

  // keys and values of a page side by side in one pool
  kvant::exact_pages_view<half> const interleaved{keys.data(), keys.data() + 256, 512, 64, 32, 8};
  REQUIRE(offset(interleaved.row(side::value, 2, 1, 1), keys.data()) == 2 * 512 + 256 + 64 + 32);
  token_major.row(side::key, 0, 0, 1)[3] = bfloat16{2.f};
  REQUIRE(keys[32 + 2 * 3 + 1] == std::byte{0x40});
}

TEST_CASE("a position lies in its row of the ring", "[views]") {
  constexpr int rows = 48, heads = 2, row = 32, head = rows * row, one_side = heads * head, slot = 2 * one_side;
  std::vector<std::byte> arena(3 * slot);
  kvant::window_view<half> const window{arena.data(), slot, one_side, head, row, rows};
  for (std::int64_t const position : {0, 1, 47, 48, 49, 95, 96, 1000}) {
    std::int64_t const expected = position % rows * row;
    CAPTURE(position);
    REQUIRE(offset(window.row(0, side::key, 0, position), arena.data()) == expected);
    REQUIRE(offset(window.row(0, side::value, 0, position), arena.data()) == one_side + expected);
    REQUIRE(offset(window.row(2, side::value, 1, position), arena.data()) == 2 * slot + one_side + head + expected);
  }
  for (int i = 0; i < 5; ++i)  // five tokens from row 46 on: 46, 47, 0, 1, 2
    REQUIRE(offset(window.row(0, side::key, 0, 46 + i), arena.data()) == (i < 2 ? 46 + i : i - 2) * row);
  REQUIRE(window.row(0, side::key, 0, (std::int64_t{1} << 31) + 5) ==
          window.row(0, side::key, 0, ((std::int64_t{1} << 31) + 5) % 48));
}

TEST_CASE("sinks and factors of a record lie by strides", "[views]") {
  constexpr int sinks = 4, heads = 2, row = 64, head = sinks * row, one_side = heads * head;
  constexpr int factor_head = 64, record = 2 * one_side + heads * factor_head;
  std::vector<std::byte> arena(3 * record);
  kvant::side_records_view<half> const side_records{.sink_rows = arena.data(),
                                                    .factors = arena.data() + 2 * one_side,
                                                    .record_stride = record,
                                                    .sink_side_stride = one_side,
                                                    .sink_head_stride = head,
                                                    .sink_row_stride = row,
                                                    .factor_head_stride = factor_head,
                                                    .sinks = sinks};
  REQUIRE(offset(side_records.sink(0, side::key, 0, 0), arena.data()) == 0);
  REQUIRE(offset(side_records.sink(2, side::key, 1, 3), arena.data()) == 2 * record + head + 3 * row);
  REQUIRE(offset(side_records.sink(1, side::value, 1, 2), arena.data()) == record + one_side + head + 2 * row);
  REQUIRE(offset(side_records.factor(0, 0), arena.data()) == 2 * one_side);
  REQUIRE(offset(side_records.factor(2, 1), arena.data()) == 2 * record + 2 * one_side + factor_head);
  static_assert(std::is_same_v<decltype(side_records.factor(0, 0)), half*>);
  static_assert(std::is_same_v<decltype(kvant::side_records_view<float>{}.factor(0, 0)), half*>);
  auto without_factors = side_records;
  without_factors.factors = nullptr;
  REQUIRE(without_factors.factor(2, 1) == nullptr);
}

TEST_CASE("a row of the block table is a ring", "[views]") {
  static constexpr std::array<std::int32_t, 12> ids{7, 3, 11, 0, -1, -1, 9, 2, 8, 4, 5, -1};
  constexpr kvant::block_table_view table{ids.data(), 6, 4};  // rows of 6 entries, 4 of them used
  static_assert(table.page(0, 0) == 7 && table.page(0, 3) == 0 && table.page(1, 1) == 2);
  static_assert(table.page(0, 4) == 7 && table.page(1, 4 * 1000 + 3) == 4);
  static_assert(std::is_same_v<decltype(table.page(0, 0)), std::int32_t>);
  constexpr kvant::block_table_view whole{ids.data(), 6, 6};
  static_assert(whole.page(0, 4) == -1 && whole.page(1, 4) == 5);
  REQUIRE(table.page(1, (std::int64_t{1} << 33) + 2) == 8);
}

TEST_CASE("sequences without arrays have defaults", "[views]") {
  static constexpr std::array<std::int32_t, 3> numbers{64, 0, 128}, slots{4, -1, 0};
  constexpr kvant::sequences_view plain{.length = numbers.data(), .history = numbers.data(), .count = 3};
  static_assert(plain.first_of(2) == 0 && plain.base_of(2) == 0 && plain.slot_of(2) == 2 && plain.record_of(2) == 2);
  constexpr kvant::sequences_view full{.length = numbers.data(),
                                       .history = numbers.data(),
                                       .first = numbers.data(),
                                       .position_base = numbers.data() + 1,
                                       .slot = slots.data(),
                                       .record = slots.data() + 1,
                                       .count = 2};
  REQUIRE((full.first_of(0) == 64 && full.first_of(1) == 0 && full.base_of(1) == 128));
  REQUIRE((full.slot_of(0) == 4 && full.slot_of(1) == -1 && full.record_of(0) == -1 && full.record_of(1) == 0));
}

TEST_CASE("queries lie by strides", "[views]") {
  std::array<float, 5 * 4 * 8> buffer{};
  std::array<std::int32_t, 3> const offsets{0, 2, 5};
  kvant::queries_view<float> const queries{buffer.data(), 4 * 8, 8, offsets.data(), 4};
  REQUIRE(queries.row(0, 0) == buffer.data());
  REQUIRE(queries.row(4, 3) == buffer.data() + 4 * 32 + 24);
  REQUIRE(queries.row(queries.first_row(1), 1) == buffer.data() + 2 * 32 + 8);
}
