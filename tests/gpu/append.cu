#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include <kvant/append.cuh>
#include <kvant/step.cuh>

#include "gpu/device.cuh"
#include "support/catch.hpp"

namespace {

using kvant::bfloat16;
using kvant::half;
using kvant::side;

bool const has_device = gpu::exit_without_device();  // before any test

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Another one in each run; printed, so that a failure can be seen again.
std::uint64_t fresh_seed() {
  static std::uint64_t const seed = [] {
    std::uint64_t const s = std::random_device{}();
    std::printf("seed of the random inputs: %llu\n", static_cast<unsigned long long>(s));
    return s;
  }();
  return seed;
}

template <class In, class Window>
struct types {
  using in = In;
  using window = Window;
};

/// Written apart from the library's window_element.
template <class W, class T>
std::uint16_t rounded_bits(std::uint16_t bits) {
  if (std::is_same_v<T, W>) return bits;
  float const x = static_cast<float>(T::from_bits(bits));
  if (std::isnan(x)) return 0x7fff;
  if (std::is_same_v<W, half> && std::abs(x) >= 65504.f) return x < 0 ? 0xfbff : 0x7bff;
  return W{x}.bits;
}

struct shape {
  int kv_heads, key_dim, value_dim, ring_rows, sinks;
  bool head_major = false;  // new rows [head, token, channel] instead of [token, head, channel]
  bool null_ids = false;    // no arrays of slots and records
};

/// Windows, side records and new rows of a batch, on the host and on the device, with bytes between all rows that
/// nobody may touch; the loop that the device is compared with.
template <class Types>
class batch {
  using T = typename Types::in;
  using W = typename Types::window;

 public:
  shape const s;
  int const count, capacity;  // sequences; new rows there is room for
  std::vector<std::int32_t> length, history, slot, record, offsets;
  std::vector<std::byte> window, sinks;
  std::array<std::vector<std::uint16_t>, 2> rows;

  batch(shape const& of, int sequences, int row_capacity, std::uint64_t seed)
      : s(of),
        count(sequences),
        capacity(row_capacity),
        length(at(count)),
        history(at(count)),
        slot(at(count)),
        record(at(count)),
        offsets(at(count + 1)),
        window(at(base_bytes + (count + 1) * slot_stride()), std::byte{0xa5}),
        sinks(at(base_bytes + (count + 1) * record_stride()), std::byte{0xa5}),
        rows{std::vector<std::uint16_t>(row_elements(0)), std::vector<std::uint16_t>(row_elements(1))},
        random_(seed) {
    for (auto* ids : {&slot, &record}) {
      std::iota(ids->begin(), ids->end(), 0);
      if (s.null_ids) continue;
      std::shuffle(ids->begin(), ids->end(), random_);
      (*ids)[at(uniform(0, count - 1))] = count;  // one more than there are sequences
    }
    new_rows();
    d_window_.upload(window), d_sinks_.upload(sinks);
    upload();
  }

  /// Random bits: NaN, infinities and subnormals among them.
  void new_rows() {
    for (auto& r : rows)
      for (auto& x : r) x = static_cast<std::uint16_t>(random_());
  }
  int uniform(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  void upload() {
    d_length_.upload(length), d_history_.upload(history), d_slot_.upload(slot), d_record_.upload(record);
    d_offsets_.upload(offsets), d_keys_.upload(rows[0]), d_values_.upload(rows[1]);
  }

  kvant::layer_view<W> layer() const {
    kvant::layer_view<W> view;
    view.window = {
        d_window_.get() + base_bytes, slot_stride(), side_stride(), head_stride(), row_stride(), s.ring_rows};
    if (s.sinks > 0)
      view.side = {d_sinks_.get() + base_bytes, nullptr, record_stride(), sink_side_stride(), sink_head_stride(),
                   sink_row_stride(),           0,       s.sinks};
    view.sequences.length = d_length_.get(), view.sequences.count = count;
    if (!s.null_ids) view.sequences.slot = d_slot_.get(), view.sequences.record = d_record_.get();
    return view;
  }
  kvant::new_rows_view<T> new_rows_view(int max_rows) const {
    return {token_rows(d_keys_, 0),
            token_rows(d_values_, 1),
            d_offsets_.get(),
            s.kv_heads,
            s.key_dim,
            s.value_dim,
            max_rows};
  }
  kvant::step_view step() const {
    return {d_length_.get(), d_history_.get(), s.null_ids ? nullptr : d_slot_.get(), d_offsets_.get(), count};
  }

  // ---- the model ----

  void begin() {
    for (int i = 0; i < count; ++i)
      if (slot[at(i)] >= 0) length[at(i)] += offsets[at(i) + 1] - offsets[at(i)];
  }
  void append() {
    for (int i = 0; i < count; ++i) {
      if (slot[at(i)] < 0) continue;
      for (int row = offsets[at(i)]; row < offsets[at(i) + 1]; ++row) {
        std::int64_t const position = length[at(i)] - (offsets[at(i) + 1] - row);
        if (position < 0) continue;
        for (int k : {0, 1})
          for (int h = 0; h < s.kv_heads; ++h)
            for (int c = 0; c < dim(k); ++c) {
              auto const in = base_elements + row * token_stride(k) + h * in_head_stride(k) + c;
              auto const bits = rounded_bits<W, T>(rows[at(k)][at(in)]);
              auto const ring = base_bytes + slot[at(i)] * slot_stride() + k * side_stride() + h * head_stride() +
                                position % s.ring_rows * row_stride() + 2 * c;
              std::memcpy(&window[at(ring)], &bits, 2);
              if (position >= s.sinks || record[at(i)] < 0) continue;
              auto const sink = base_bytes + record[at(i)] * record_stride() + k * sink_side_stride() +
                                h * sink_head_stride() + position * sink_row_stride() + 2 * c;
              std::memcpy(&sinks[at(sink)], &bits, 2);
            }
      }
    }
  }
  void end(int window_tokens, int page_tokens) {
    for (int i = 0; i < count; ++i)
      if (slot[at(i)] >= 0)
        history[at(i)] =
            std::max(history[at(i)], std::max(0, length[at(i)] - window_tokens) / page_tokens * page_tokens);
  }

  [[nodiscard]] bool bytes_agree() const { return d_window_.host() == window && d_sinks_.host() == sinks; }
  [[nodiscard]] bool lengths_agree() const { return d_length_.host() == length && d_history_.host() == history; }

 private:
  static constexpr std::int64_t base_bytes = 64, base_elements = 16;
  int dim(int k) const { return k == 0 ? s.key_dim : s.value_dim; }
  std::int64_t row_stride() const { return 2 * std::max(s.key_dim, s.value_dim) + 32; }
  std::int64_t head_stride() const { return s.ring_rows * row_stride() + 48; }
  std::int64_t side_stride() const { return s.kv_heads * head_stride() + 16; }
  std::int64_t slot_stride() const { return 2 * side_stride() + 64; }
  std::int64_t sink_row_stride() const { return 2 * std::max(s.key_dim, s.value_dim) + 16; }
  std::int64_t sink_head_stride() const { return s.sinks * sink_row_stride() + 16; }
  std::int64_t sink_side_stride() const { return s.kv_heads * sink_head_stride() + 32; }
  std::int64_t record_stride() const { return 2 * sink_side_stride() + 16; }
  std::int64_t token_stride(int k) const { return s.head_major ? dim(k) + 8 : s.kv_heads * (dim(k) + 8); }
  std::int64_t in_head_stride(int k) const { return s.head_major ? std::int64_t{capacity} * (dim(k) + 8) : dim(k) + 8; }
  std::size_t row_elements(int k) const {
    return at(base_elements + std::int64_t{capacity} * s.kv_heads * (dim(k) + 8) + 64);
  }
  kvant::token_rows<T> token_rows(gpu::buffer<std::uint16_t> const& b, int k) const {
    return {reinterpret_cast<T const*>(b.get() + base_elements), token_stride(k), in_head_stride(k)};
  }

  std::mt19937_64 random_;
  gpu::buffer<std::byte> d_window_{window.size()}, d_sinks_{sinks.size()};
  gpu::buffer<std::int32_t> d_length_{length.size()}, d_history_{history.size()}, d_slot_{slot.size()},
      d_record_{record.size()}, d_offsets_{offsets.size()};
  gpu::buffer<std::uint16_t> d_keys_{rows[0].size()}, d_values_{rows[1].size()};
};

}  // namespace

TEMPLATE_TEST_CASE("append writes what a plain loop writes, and nothing else", "[gpu][append]", (types<half, half>),
                   (types<bfloat16, bfloat16>), (types<bfloat16, half>), (types<half, bfloat16>)) {
  auto const captured = GENERATE(false, true);
  auto const s = GENERATE(shape{8, 128, 128, 208, 4}, shape{1, 64, 8, 16, 0}, shape{3, 72, 200, 48, 17, true},
                          shape{2, 576, 512, 32, 63, false, true}, shape{5, 8, 16, 33, 1, true, true});
  auto const max_rows = GENERATE_COPY(1, 3, s.ring_rows);
  auto const seed = fresh_seed();
  CAPTURE(captured, s.kv_heads, s.key_dim, s.value_dim, s.ring_rows, s.sinks, s.head_major, s.null_ids, max_rows, seed);

  std::vector<int> const m{max_rows, 0, 1, max_rows, 1, 0, max_rows / 2, max_rows, max_rows, 1, 1, 0};
  int const total = std::accumulate(m.begin(), m.end(), 0);
  batch<TestType> b(s, static_cast<int>(m.size()), total + 3, seed);
  for (std::size_t i = 0; i < m.size(); ++i) {
    b.offsets[i + 1] = b.offsets[i] + m[i];
    b.length[i] = m[i] + b.uniform(0, 3 * s.ring_rows);
  }
  b.length[0] = max_rows;                  // from the first position on
  b.length[3] = max_rows + s.sinks / 2;    // from among the sinks
  b.length[4] = 1;                         // a first token
  b.length[2] = b.length[7] = 2147483647;  // far away
  b.length[8] = max_rows / 2;              // shorter than its new rows: those before position 0 are nowhere
  b.length[9] = 2 * s.ring_rows;           // the last row of the ring
  b.length[10] = 2 * s.ring_rows + 1;      // and the first
  if (!s.null_ids) b.slot[6] = b.slot[7] = -1, b.record[3] = -1;
  b.upload();
  b.append();

  gpu::launched once(captured, [&](cudaStream_t stream) {
    REQUIRE(kvant::append_async(b.layer(), b.new_rows_view(max_rows), stream) == cudaSuccess);
  });
  CHECK(b.bytes_agree());
  if (captured) {
    once.replay();
    CHECK(b.bytes_agree());
    b.new_rows(), b.upload(), b.append();
    once.replay();
    CHECK(b.bytes_agree());
  }
}

TEMPLATE_TEST_CASE("every element is rounded as the host rounds it", "[gpu][append]", (types<half, half>),
                   (types<bfloat16, bfloat16>), (types<bfloat16, half>), (types<half, bfloat16>)) {
  using T = typename TestType::in;
  using W = typename TestType::window;
  batch<TestType> b({1, 128, 128, 512, 0}, 1, 512, 1);
  b.offsets[1] = b.length[0] = 512;
  for (int row = 0; row < 512; ++row)
    for (int c = 0; c < 128; ++c) {
      std::uint16_t const x = static_cast<std::uint16_t>(128 * row + c);
      b.rows[0][at(16 + 136 * row + c)] = b.rows[1][at(16 + 136 * row + c)] = x;
      REQUIRE(kvant::window_element<W>(T::from_bits(x)).bits == rounded_bits<W, T>(x));
    }
  b.upload(), b.append();
  gpu::launched once(false, [&](cudaStream_t stream) {
    REQUIRE(kvant::append_async(b.layer(), b.new_rows_view(512), stream) == cudaSuccess);
  });
  CHECK(b.bytes_agree());
}

TEMPLATE_TEST_CASE("steps follow a host's model", "[gpu][append][step]", (types<half, half>), (types<bfloat16, half>)) {
  auto const captured = GENERATE(false, true);
  auto const max_rows = GENERATE(1, 4);
  auto const window_tokens = GENERATE(32, 0);
  auto const seed = fresh_seed();
  constexpr int page_tokens = 64, count = 7;
  shape const s{2, 64, 72, (window_tokens + page_tokens - 1 + max_rows + 15) / 16 * 16, 4};
  CAPTURE(captured, max_rows, window_tokens, seed);
  batch<TestType> b(s, count, count * max_rows, seed);
  auto const slots = b.slot;
  auto const launch = [&](cudaStream_t stream) {
    REQUIRE(kvant::begin_step_async(b.step(), stream) == cudaSuccess);
    REQUIRE(kvant::append_async(b.layer(), b.new_rows_view(max_rows), stream) == cudaSuccess);
    REQUIRE(kvant::end_step_async(b.step(), window_tokens, page_tokens, stream) == cudaSuccess);
  };
  auto const model = [&] { b.begin(), b.append(), b.end(window_tokens, page_tokens); };
  model();
  gpu::launched graph(captured, launch);
  for (int step = 0; step < (captured ? 300 : 40); ++step) {
    for (int i = 0; i < count; ++i) {
      int const m = max_rows == 1 && i < 4 ? 1 : b.uniform(0, max_rows);
      b.offsets[at(i) + 1] = b.offsets[at(i)] + m;
      b.slot[at(i)] = b.uniform(0, 9) == 0 ? -1 : slots[at(i)];
      // A draft was rejected: tokens since the last commit are taken back.
      if (b.uniform(0, 9) == 0) b.length[at(i)] = std::max(b.history[at(i)], b.length[at(i)] - max_rows);
    }
    if (step % 100 == 99) b.length[1] = b.history[1] = 0;  // a new sequence in an old slot
    b.new_rows(), b.upload();
    model();
    if (captured)
      graph.replay();
    else
      gpu::launched again(false, launch);
    CAPTURE(step);
    REQUIRE(b.lengths_agree());
    REQUIRE(b.bytes_agree());
  }
  CHECK(*std::max_element(b.history.begin(), b.history.end()) > (captured ? page_tokens : -1));
}

TEST_CASE("a step over many sequences, and one that history is ahead of", "[gpu][step]") {
  auto const captured = GENERATE(false, true);
  auto const null_ids = GENERATE(false, true);
  constexpr int count = 1000;
  batch<types<half, half>> b({1, 8, 8, 16, 0, false, null_ids}, count, 1, fresh_seed());
  for (int i = 0; i < count; ++i) {
    b.offsets[at(i) + 1] = b.offsets[at(i)] + b.uniform(0, 700);
    b.length[at(i)] = b.uniform(0, 5000), b.history[at(i)] = b.uniform(0, 90) * 64;
    if (!null_ids && i % 3 == 0) b.slot[at(i)] = -1;
  }
  b.upload();
  gpu::launched once(captured, [&](cudaStream_t stream) {
    REQUIRE(kvant::begin_step_async(b.step(), stream) == cudaSuccess);
    REQUIRE(kvant::end_step_async(b.step(), 128, 64, stream) == cudaSuccess);
  });
  b.begin(), b.end(128, 64);
  CHECK(b.lengths_agree());
}

TEST_CASE("launchers refuse what they cannot do before they launch", "[gpu][append][step]") {
  batch<types<half, half>> b({2, 64, 72, 48, 4}, 3, 3, 1);
  b.offsets = {0, 1, 2, 3}, b.length = {1, 1, 1};
  b.upload();
  auto const length = b.length;
  cudaStream_t const stream = nullptr;
  using layer_view = kvant::layer_view<half>;
  using rows_view = kvant::new_rows_view<half>;
  auto const refused = [&](auto change, int max_rows = 1) {
    layer_view layer = b.layer();
    rows_view rows = b.new_rows_view(max_rows);
    change(layer, rows);
    return kvant::append_async(layer, rows, stream) == cudaErrorInvalidValue;
  };
  auto const shifted = [](auto* p, int bytes) {
    return reinterpret_cast<decltype(p)>(reinterpret_cast<std::uint64_t>(p) + static_cast<std::uint64_t>(bytes));
  };
  CHECK(refused([](layer_view&, rows_view& r) { r.keys.data = nullptr; }));
  CHECK(refused([](layer_view&, rows_view& r) { r.values.data = nullptr; }));
  CHECK(refused([](layer_view&, rows_view& r) { r.row_offsets = nullptr; }));
  CHECK(refused([](layer_view& l, rows_view&) { l.window.base = nullptr; }));
  CHECK(refused([](layer_view& l, rows_view&) { l.sequences.length = nullptr; }));
  CHECK(refused([](layer_view& l, rows_view&) { l.side.sink_rows = nullptr; }));
  CHECK(refused([&](layer_view&, rows_view& r) { r.keys.data = shifted(r.keys.data, 8); }));
  CHECK(refused([&](layer_view&, rows_view& r) { r.values.data = shifted(r.values.data, 2); }));
  CHECK(refused([](layer_view&, rows_view& r) { r.keys.token_stride += 4; }));
  CHECK(refused([](layer_view&, rows_view& r) { r.keys.head_stride += 1; }));
  CHECK(refused([](layer_view&, rows_view& r) { r.values.token_stride += 2; }));
  CHECK(refused([](layer_view&, rows_view& r) { r.values.head_stride += 4; }));
  CHECK(refused([&](layer_view& l, rows_view&) { l.window.base = shifted(l.window.base, 8); }));
  CHECK(refused([](layer_view& l, rows_view&) { l.window.slot_stride += 8; }));
  CHECK(refused([](layer_view& l, rows_view&) { l.window.side_stride += 8; }));
  CHECK(refused([](layer_view& l, rows_view&) { l.window.head_stride += 2; }));
  CHECK(refused([](layer_view& l, rows_view&) { l.window.row_stride += 8; }));
  CHECK(refused([](layer_view& l, rows_view&) { l.window.row_stride = 128; }));  // a value has 144 bytes
  CHECK(refused([](layer_view& l, rows_view&) { l.window.rows = 0; }, 0));
  CHECK(refused([](layer_view& l, rows_view&) { l.window.rows = -48; }));
  CHECK(refused([&](layer_view& l, rows_view&) { l.side.sink_rows = shifted(l.side.sink_rows, 8); }));
  CHECK(refused([](layer_view& l, rows_view&) { l.side.record_stride += 8; }));
  CHECK(refused([](layer_view& l, rows_view&) { l.side.sink_side_stride += 8; }));
  CHECK(refused([](layer_view& l, rows_view&) { l.side.sink_head_stride += 8; }));
  CHECK(refused([](layer_view& l, rows_view&) { l.side.sink_row_stride += 8; }));
  CHECK(refused([](layer_view& l, rows_view&) { l.side.sink_row_stride = 128; }));
  CHECK(refused([](layer_view& l, rows_view&) { l.side.sinks = -1; }));
  CHECK(refused([](layer_view& l, rows_view&) { l.sequences.count = -1; }));
  CHECK(refused([](layer_view&, rows_view& r) { r.kv_heads = 0; }));
  for (int const d : {0, -8, 4, 60, 68}) {
    CHECK(refused([&](layer_view&, rows_view& r) { r.key_dim = d; }));
    CHECK(refused([&](layer_view&, rows_view& r) { r.value_dim = d; }));
  }
  CHECK(refused([](layer_view&, rows_view& r) { r.kv_heads = 1 << 24; }));
  CHECK(refused([](layer_view&, rows_view&) {}, -1));
  CHECK(refused([](layer_view&, rows_view&) {}, 49));  // the ring has 48 rows
  CHECK(refused([](layer_view& l, rows_view&) { l.window.rows = 1 << 20; }, 65536));

  auto const step_refused = [&](auto change, auto launch) {
    kvant::step_view step = b.step();
    change(step);
    return launch(step) == cudaErrorInvalidValue;
  };
  auto const begin = [&](kvant::step_view s) { return kvant::begin_step_async(s, stream); };
  auto const end = [&](kvant::step_view s) { return kvant::end_step_async(s, 32, 64, stream); };
  CHECK(step_refused([](kvant::step_view& s) { s.length = nullptr; }, begin));
  CHECK(step_refused([](kvant::step_view& s) { s.row_offsets = nullptr; }, begin));
  CHECK(step_refused([](kvant::step_view& s) { s.count = -1; }, begin));
  CHECK(step_refused([](kvant::step_view& s) { s.length = nullptr; }, end));
  CHECK(step_refused([](kvant::step_view& s) { s.history = nullptr; }, end));
  CHECK(step_refused([](kvant::step_view& s) { s.count = -1; }, end));
  CHECK(kvant::end_step_async(b.step(), -1, 64, stream) == cudaErrorInvalidValue);
  CHECK(kvant::end_step_async(b.step(), 32, 0, stream) == cudaErrorInvalidValue);

  // What a launch does not need may be missing; no sequences and no rows are no launch.
  kvant::step_view none = b.step();
  none.count = 0;
  CHECK(kvant::begin_step_async(none, stream) == cudaSuccess);
  CHECK(kvant::end_step_async(none, 32, 64, stream) == cudaSuccess);
  layer_view empty = b.layer();
  empty.sequences.count = 0;
  CHECK(kvant::append_async(empty, b.new_rows_view(1), stream) == cudaSuccess);
  CHECK(kvant::append_async(b.layer(), b.new_rows_view(0), stream) == cudaSuccess);
  gpu::check(cudaDeviceSynchronize());
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(b.bytes_agree());
  CHECK(b.lengths_agree());
  CHECK(b.length == length);
}
