#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <kvant/cache/append.hpp>
#include <kvant/cache/page_writer.hpp>
#include <kvant/plan/layer.hpp>

#include "support/catch.hpp"

namespace {

using kvant::half;
using kvant::side;
constexpr int heads = 2, key_dim = 32, value_dim = 16, sinks = 4, window = 20, page = 64, ring = 112, pages = 12;
using key = kvant::turboquant_key<3>;
using value = kvant::turboquant<3>;

float noise(int position, int head, int channel) {
  auto state = static_cast<std::uint64_t>(position * 4096 + head * 512 + channel) * 6364136223846793005u + 99u;
  state ^= state >> 29, state *= 0xbf58476d1ce4e5b9u;
  return static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31f + (channel == 3 ? 4.f : 0.f);
}

/// Memory of three sequences as somebody might have it: everything with gaps, ids far apart, poisoned throughout.
template <kvant::element W>
struct memory {
  explicit memory(std::byte poison = std::byte{0xff}) {
    REQUIRE(writer.prepare({heads, key_dim, value_dim, page}).ok());
    kvant::page_layout<key, value> const layout({heads, key_dim, value_dim, page});
    std::int64_t const unit = layout.unit_bytes() + 32, row = 2 * key_dim + 16;
    page_bytes.assign(static_cast<std::size_t>(pages * heads * unit), poison);
    window_bytes.assign(static_cast<std::size_t>(4 * 2 * heads * ring * row), poison);
    record_bytes.assign(static_cast<std::size_t>(4 * (2 * heads * sinks * row + 2 * heads * key_dim)), poison);
    view.pages = {page_bytes.data(), heads * unit, unit, pages};
    view.window = {window_bytes.data(), 2 * heads * ring * row, heads * ring * row, ring * row, row, ring};
    view.side = {record_bytes.data(),
                 record_bytes.data() + 2 * heads * sinks * row,
                 2 * heads * sinks * row + 2 * heads * key_dim,
                 heads * sinks * row,
                 sinks * row,
                 row,
                 2 * key_dim,
                 sinks};
    view.table = {ids.data(), 6, 4};
    view.sequences = {length.data(), history.data(), nullptr, nullptr, slot.data(), record.data(), 3};
  }
  memory(memory const&) = delete;

  /// New rows as slices of one QKV buffer, tokens 3 rows apart.
  template <class T>
  kvant::status add(std::vector<int> counts, bool in_one) {
    std::vector<std::int32_t> offsets{0};
    for (int const n : counts) offsets.push_back(offsets.back() + n);
    int const width = heads * (key_dim + value_dim) + 8;
    std::vector<T> qkv(static_cast<std::size_t>(std::max(1, offsets.back()) * width),
                       T{std::numeric_limits<float>::quiet_NaN()});
    for (std::size_t i = 0; i < counts.size(); ++i)
      for (int j = 0; j < counts[i]; ++j)
        for (int h = 0; h < heads; ++h) {
          int const position = length[i] + j;
          T* const row = qkv.data() + (offsets[i] + j) * width + h * (key_dim + value_dim);
          for (int c = 0; c < key_dim; ++c) row[c] = T{noise(position, h, c)};
          for (int c = 0; c < value_dim; ++c) row[key_dim + c] = T{noise(position, h, 100 + c)};
        }
    kvant::new_rows_view<T> const rows{{qkv.data(), width, key_dim + value_dim},
                                       {qkv.data() + key_dim, width, key_dim + value_dim},
                                       offsets.data(),
                                       heads,
                                       key_dim,
                                       value_dim,
                                       *std::max_element(counts.begin(), counts.end())};
    kvant::step_view const step{length.data(), history.data(), slot.data(), offsets.data(), 3};
    if (auto s = kvant::begin_step(step); !s.ok()) return s;
    kvant::status done = in_one ? writer.prefill(view, rows, window) : kvant::append(view, rows);
    if (done.ok() && !in_one) done = writer.commit(view, window);
    if (!done.ok()) {
      for (std::size_t i = 0; i < counts.size(); ++i) length[i] -= slot[i] < 0 ? 0 : counts[i];
      return done;
    }
    return kvant::end_step(step, window, page);
  }

  kvant::page_writer<key, value, W> writer;
  std::vector<std::byte> page_bytes, window_bytes, record_bytes;
  std::vector<std::int32_t> ids{11, 3, 7, 1, -9, -9, 5, 2, 9, 4, -9, -9, 8, 6, 10, -1};
  std::vector<std::int32_t> length{0, 0, 0}, history{0, 0, 0}, slot{2, 0, 3}, record{1, 3, 0};
  kvant::layer_view<W> view;
};

}  // namespace

TEMPLATE_TEST_CASE("a step over somebody's memory is the same in any chunks", "[cache]", half, kvant::bfloat16, float) {
  memory<half> in_steps, at_once;
  for (int n = 0; n < 200; n += 25)
    REQUIRE(in_steps.template add<TestType>({25, n < 75 ? 25 : 0, 0}, false).message() == "");
  REQUIRE(at_once.template add<TestType>({200, 0, 0}, true).message() == "");
  REQUIRE(at_once.template add<TestType>({0, 75, 0}, true).message() == "");
  CHECK(in_steps.length == std::vector<std::int32_t>{200, 75, 0});
  CHECK(in_steps.history == std::vector<std::int32_t>{128, 0, 0});
  CHECK(at_once.history == in_steps.history);
  // Pages (gaps and unused ones still poisoned) and side records are equal byte for byte, windows where tokens live.
  CHECK((in_steps.page_bytes == at_once.page_bytes));
  CHECK((in_steps.record_bytes == at_once.record_bytes));
  for (int i = 0; i < 2; ++i)
    for (int p = in_steps.history[static_cast<std::size_t>(i)]; p < in_steps.length[static_cast<std::size_t>(i)]; ++p)
      for (int h = 0; h < heads; ++h)
        for (side const s : {side::key, side::value}) {
          auto const bytes = static_cast<std::size_t>(2 * (s == side::key ? key_dim : value_dim));
          REQUIRE(std::memcmp(in_steps.view.window.row(in_steps.slot[static_cast<std::size_t>(i)], s, h, p),
                              at_once.view.window.row(at_once.slot[static_cast<std::size_t>(i)], s, h, p), bytes) == 0);
        }
}

TEST_CASE("a step writes its own bytes and no others", "[cache]") {
  memory<half> a(std::byte{0xa5}), b(std::byte{0x5a});
  for (auto* m : {&a, &b}) {
    REQUIRE(m->add<half>({100, 0, 0}, true).ok());
    m->slot[2] = -1;  // padding
    REQUIRE(m->add<half>({0, 3, 40}, false).ok());
  }
  CHECK(a.length == std::vector<std::int32_t>{100, 3, 0});
  auto const untouched = [](std::vector<std::byte> const& x, std::vector<std::byte> const& y) {
    std::int64_t same = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] == y[i]) ++same;
      if (x[i] != y[i] && (x[i] != std::byte{0xa5} || y[i] != std::byte{0x5a})) return std::int64_t{-1};
    }
    return same;
  };
  kvant::page_layout<key, value> const layout({heads, key_dim, value_dim, page});
  CHECK(untouched(a.page_bytes, b.page_bytes) == heads * layout.unit_bytes());
  CHECK(untouched(a.window_bytes, b.window_bytes) == (100 - page + 3) * heads * 2 * (key_dim + value_dim));
  CHECK(untouched(a.record_bytes, b.record_bytes) ==
        (sinks + 3) * heads * 2 * (key_dim + value_dim) + 2 * heads * key_dim);
}

TEST_CASE("a page that is not kept is not made, and balance factors are", "[cache]") {
  memory<half> whole, tail;
  tail.ids[0] = tail.ids[1] = -1;
  REQUIRE(whole.add<half>({250, 0, 0}, true).ok());
  REQUIRE(tail.add<half>({250, 0, 0}, true).ok());
  CHECK((whole.record_bytes == tail.record_bytes));
  for (int h = 0; h < heads; ++h) {
    auto const unit =
        static_cast<std::size_t>(kvant::page_layout<key, value>({heads, key_dim, value_dim, page}).unit_bytes());
    CHECK(std::memcmp(whole.view.pages.unit(7, h), tail.view.pages.unit(7, h), unit) == 0);
    CHECK(*tail.view.pages.unit(11, h) == std::byte{0xff});
  }
}

TEST_CASE("a step over somebody's memory refuses before it writes", "[cache]") {
  memory<half> m;
  REQUIRE(m.add<half>({60, 0, 0}, false).ok());
  auto const pages_before = m.page_bytes, window_before = m.window_bytes, records_before = m.record_bytes;
  auto const refused = [&](std::vector<int> const& counts, bool in_one, std::vector<std::string> const& words) {
    auto const s = m.add<half>(counts, in_one);
    INFO(s.message());
    for (auto const& word : words) CHECK(s.message().find(word) != std::string::npos);
    CHECK_FALSE(s.ok());
    CHECK(m.length == std::vector<std::int32_t>{60, 0, 0});
    CHECK((m.page_bytes == pages_before));
    CHECK((m.window_bytes == window_before));
    CHECK((m.record_bytes == records_before));
  };
  refused({53, 0, 0}, false, {"sequence 0", "at most the 112 rows", "113"});
  m.ids[0] = 12;
  refused({100, 0, 0}, true, {"sequence 0", "page 0", "0 to 11", "12"});
  m.ids[0] = 11, m.ids[1] = 1000000;
  refused({140, 0, 0}, true, {"page 1", "1000000"});
  m.ids[1] = 3;
  auto const view = m.view;
  m.view.window.row_stride = 2 * key_dim - 2;
  refused({1, 0, 0}, false, {"row stride of the window", "64 bytes", "62"});
  m.view = view, m.view.window.base = nullptr;
  refused({1, 0, 0}, false, {"window", "null"});
  m.view = view, m.view.side.sink_rows = nullptr;
  refused({0, 1, 0}, true, {"sinks", "null"});
  m.view = view, m.view.side.factors = nullptr;
  refused({100, 0, 0}, true, {"balance factors", "none"});
  m.view = view, m.view.sequences.history = nullptr;
  refused({1, 0, 0}, false, {"history", "null"});
  m.view = view;
  // A committed page whose id is padding would be lost.
  m.ids[6] = -1;
  CHECK(m.add<half>({0, 100, 0}, false).message() == "sequence 1: page 0: expected an id from 0 to 11, got -1");
  CHECK((m.page_bytes == pages_before));
}
