#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <kvant/attention/reference.hpp>

namespace support {

using kvant::side;

/// A sequence as a test asks for it: tokens [first, history) lie in pages, the rest in the window. `content` seeds its
/// keys and values.
struct request {
  int length = 0, history = 0, first = 0, rows = 1;
  std::uint64_t content = 1;
};

/// The newest `window` tokens exact, whole pages before them, as commit() leaves it.
inline int history_of(int length, int window, int page_tokens = 64) {
  return std::max(0, length - window) / page_tokens * page_tokens;
}

/// A number in [-1, 1) for each argument list.
inline float noise(std::uint64_t seed, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t z = seed * 0x9e3779b97f4a7c15u + (a << 42) + (b << 21) + c;
  for (int round = 0; round < 3; ++round) z = (z ^ (z >> 29)) * 0xbf58476d1ce4e5b9u + 1;
  return static_cast<float>(z >> 40) * 0x1p-23f - 1.f;
}

struct cache_options {
  kvant::page_shape shape;
  int sinks = 0;
  int ring_rows = 0;     // 0: as many as the batch needs
  std::byte fill{0xff};  // every byte that nothing is written to
  std::uint64_t key_seed = 1, value_seed = 2;
  int table_capacity = 0;  // 0: as many as the batch needs
  float key_bias = 0;      // norm of a fixed vector that all keys of a head have on top
  float value_scale = 1;
};

/// The memory of one layer as an engine would own it: page ids scattered, slots and records in other orders than the
/// batch, whatever is not written filled with `fill`. `keys` and `values` are what the tokens are, in plain arrays.
template <kvant::kv_format Key, kvant::kv_format Value, kvant::element T>
class attention_cache {
 public:
  attention_cache(cache_options given, std::vector<request> batch) : options(given), requests(std::move(batch)) {
    if (!codec.prepare(options.shape).ok()) std::abort();
    options.shape = codec.layout().shape;
    int const n = count(), page_tokens = options.shape.page_tokens;
    std::int64_t pages = 3, capacity = 1;
    std::int64_t rows = 16;
    for (request const& r : requests) {
      pages += r.history / page_tokens, capacity = std::max<std::int64_t>(capacity, r.history / page_tokens);
      rows = std::max<std::int64_t>(rows, (r.length - r.history + 15) / 16 * 16);
    }
    if (options.ring_rows != 0) rows = options.ring_rows;
    if (options.table_capacity != 0) capacity = options.table_capacity;
    auto const [heads, key_dim, value_dim, p] = options.shape;
    std::int64_t const element = sizeof(T), dim = std::max(key_dim, value_dim);

    page_bytes.assign(at(pages * (codec.layout().page_bytes() + 32)), options.fill);
    view.pages = {page_bytes.data(), codec.layout().page_bytes() + 32, codec.layout().unit_bytes(), pages};
    std::int64_t const ring = rows * dim * element;  // of one head
    window_bytes.assign(at(2 * ring * heads * n), options.fill);
    view.window = {window_bytes.data(), 2 * ring * heads, ring * heads, ring, dim * element, static_cast<int>(rows)};
    std::int64_t const sink = options.sinks * dim * element, factor = 2 * key_dim;
    std::int64_t const record = 2 * sink * heads + factor * heads;
    side_bytes.assign(at(record * n), options.fill);
    std::byte* const factors = Key::is_balanced ? side_bytes.data() + 2 * sink * heads : nullptr;
    view.side = {side_bytes.data(), factors, record, sink * heads, sink, dim * element, factor, options.sinks};
    ids.assign(at((capacity + 2) * n), -1000);
    view.table = {ids.data(), capacity + 2, static_cast<int>(capacity)};
    for (int i = 0; i < n; ++i) {
      length.push_back(requests[at(i)].length), history.push_back(requests[at(i)].history);
      first.push_back(requests[at(i)].first), slot.push_back(n - 1 - i), records.push_back((i + 1) % n);
    }
    view.sequences = {length.data(), history.data(), first.data(), nullptr, slot.data(), records.data(), n};
    for (std::int32_t id = 0; id < pages; ++id) scattered_.push_back(id);
    std::sort(scattered_.begin(), scattered_.end(), [](auto a, auto b) {
      return noise(77, static_cast<std::uint64_t>(a), 0, 0) < noise(77, static_cast<std::uint64_t>(b), 0, 0);
    });
    for (int i = 0; i < n; ++i) write_sequence(i);
  }
  attention_cache(attention_cache const&) = delete;

  [[nodiscard]] int count() const { return static_cast<int>(requests.size()); }
  [[nodiscard]] bool present(int i, int position) const {
    request const& r = requests[at(i)];
    return position < r.length && (position < options.sinks || position >= r.first);
  }
  [[nodiscard]] double key(int i, int position, int head, int channel) const {
    return keys[at(i)][at((position * options.shape.kv_heads + head) * options.shape.key_dim + channel)];
  }
  [[nodiscard]] double value(int i, int position, int head, int channel) const {
    return values[at(i)][at((position * options.shape.kv_heads + head) * options.shape.value_dim + channel)];
  }

  cache_options options;
  std::vector<request> requests;
  kvant::page_codec<Key, Value> codec;
  std::vector<std::vector<double>> keys, values;  // [sequence][position, head, channel]
  std::vector<std::byte> page_bytes, window_bytes, side_bytes;
  std::vector<std::int32_t> ids, length, history, first, slot, records;
  kvant::layer_view<T> view;

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  void write_sequence(int i) {
    request const& r = requests[at(i)];
    int const heads = options.shape.kv_heads, key_dim = options.shape.key_dim, value_dim = options.shape.value_dim;
    std::vector<T> k(at(r.length * heads * key_dim)), v(at(r.length * heads * value_dim));  // [position, head, channel]
    for (int p = 0; p < r.length; ++p)
      for (int h = 0; h < heads; ++h) {  // heads of unlike magnitude: keys 0.5, 1, ..., values 8, 4, ...
        auto const token = static_cast<std::uint64_t>(p), head = static_cast<std::uint64_t>(h);
        for (int c = 0; c < key_dim; ++c) {
          float const bias =
              options.key_bias * noise(options.key_seed, 0, head, at(c)) * std::sqrt(3.f / static_cast<float>(key_dim));
          float const x = noise(options.key_seed + 100 * r.content, token, head, at(c)) * 0.5f;
          k[at((p * heads + h) * key_dim + c)] = T{bias + x * static_cast<float>(h + 1)};
        }
        for (int c = 0; c < value_dim; ++c) {
          float const x = noise(options.value_seed + 100 * r.content, token, head, at(c)) * 8.f;
          v[at((p * heads + h) * value_dim + c)] = T{options.value_scale * x / static_cast<float>(h + 1)};
        }
      }
    auto const plain = [](std::vector<T> const& x) {
      std::vector<double> y;
      for (T const e : x) y.push_back(static_cast<double>(static_cast<float>(e)));
      return y;
    };
    keys.push_back(plain(k)), values.push_back(plain(v));

    for (int h = 0; h < heads; ++h) {
      T const* const head_keys = k.data() + h * key_dim;
      T const* const head_values = v.data() + h * value_dim;
      auto const copy = [&](int p, T* key_row, T* value_row) {
        std::memcpy(key_row, head_keys + p * heads * key_dim, sizeof(T) * at(key_dim));
        std::memcpy(value_row, head_values + p * heads * value_dim, sizeof(T) * at(value_dim));
      };
      for (int p = 0; p < std::min(options.sinks, r.length); ++p)
        copy(p, view.side.sink(records[at(i)], side::key, h, p), view.side.sink(records[at(i)], side::value, h, p));
      for (int p = std::max(r.history, options.sinks); p < r.length; ++p)
        copy(p, view.window.row(slot[at(i)], side::key, h, p), view.window.row(slot[at(i)], side::value, h, p));
      if constexpr (Key::is_balanced)
        if (r.history > 0)
          codec.make_factors(head_keys, heads * key_dim, options.sinks, view.side.factor(records[at(i)], h));
    }
    for (int page = r.first / options.shape.page_tokens; page < r.history / options.shape.page_tokens; ++page)
      write_page(i, page, k, v);
  }

  /// Encodes a page into the next of the scattered ids. What attention shall see of a quantized page is decoded here,
  /// from units in a buffer of their own.
  void write_page(int i, int page, std::vector<T> const& k, std::vector<T> const& v) {
    auto const [heads, key_dim, value_dim, page_tokens] = options.shape;
    std::int64_t const id = scattered_[written_++];
    ids[at(i * view.table.row_stride + page % view.table.capacity)] = static_cast<std::int32_t>(id);
    int const masked = page == 0 ? options.sinks : 0;
    std::vector<std::byte> unit(at(codec.layout().unit_bytes()));
    std::vector<double> page_keys(at(page_tokens * key_dim)), page_values(at(page_tokens * value_dim));
    for (int h = 0; h < heads; ++h) {
      std::int64_t const row = std::int64_t{page} * page_tokens * heads + h;
      kvant::half const* const factors = view.side.factor(records[at(i)], h);
      codec.encode_unit(k.data() + row * key_dim, heads * key_dim, v.data() + row * value_dim, heads * value_dim,
                        masked, factors, unit.data());
      std::memcpy(view.pages.unit(id, h), unit.data(), unit.size());
      if (kvant::is_exact<Key> && kvant::is_exact<Value>) continue;
      codec.decode_unit(unit.data(), factors, page_keys.data(), page_values.data());
      for (int t = masked; t < page_tokens; ++t) {
        int const token = (page * page_tokens + t) * heads + h;
        std::copy_n(page_keys.data() + t * key_dim, key_dim, keys[at(i)].data() + token * key_dim);
        std::copy_n(page_values.data() + t * value_dim, value_dim, values[at(i)].data() + token * value_dim);
      }
    }
  }

  std::vector<std::int32_t> scattered_;
  std::size_t written_ = 0;
};

/// Queries of a batch, [rows, q_heads, key_dim], with gaps of NaN between heads and rows.
template <kvant::element Q>
class query_rows_of {
 public:
  query_rows_of(std::vector<request> const& requests, int q_heads, int key_dim, std::uint64_t seed = 9) {
    offsets_.push_back(0);
    for (request const& r : requests) offsets_.push_back(offsets_.back() + r.rows);
    std::int64_t const head_stride = key_dim + 8, row_stride = q_heads * head_stride + 8;
    data_.assign(static_cast<std::size_t>(rows() * row_stride), Q{std::numeric_limits<float>::quiet_NaN()});
    view = {data_.data(), row_stride, head_stride, offsets_.data(), q_heads};
    for (std::size_t i = 0; i < requests.size(); ++i)
      for (int r = 0; r < requests[i].rows; ++r)
        for (int h = 0; h < q_heads; ++h)
          for (int c = 0; c < key_dim; ++c)  // the same content asks the same queries, wherever it lies in the batch
            data_[static_cast<std::size_t>((offsets_[i] + r) * row_stride + h * head_stride + c)] =
                Q{4.f * noise(seed + 100 * requests[i].content, static_cast<std::uint64_t>(r),
                              static_cast<std::uint64_t>(h), static_cast<std::uint64_t>(c))};
  }
  query_rows_of(query_rows_of const&) = delete;
  [[nodiscard]] std::int64_t rows() const { return offsets_.back(); }

  kvant::queries_view<Q> view;

 private:
  std::vector<Q> data_;
  std::vector<std::int32_t> offsets_;
};

/// What a call of reference_attention gave; every number was NaN before it.
struct outcome {
  kvant::status status;
  std::vector<double> out, log_sum_exp, weights;
  std::int64_t weight_stride = 0;
};

template <class Key, class Value, class T, class Q>
outcome attend(attention_cache<Key, Value, T> const& cache, query_rows_of<Q> const& queries,
               kvant::attention_options const& options = {}) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  outcome result;
  for (request const& r : cache.requests)
    result.weight_stride = std::max<std::int64_t>(result.weight_stride, r.length + 2);
  auto const places = static_cast<std::size_t>(queries.rows() * queries.view.q_heads);
  result.out.assign(places * static_cast<std::size_t>(cache.options.shape.value_dim), nan);
  result.log_sum_exp.assign(places, nan);
  result.weights.assign(places * static_cast<std::size_t>(result.weight_stride), nan);
  result.status = kvant::reference_attention<Key, Value>(
      cache.options.shape, cache.view, queries.view, options,
      {result.out.data(), result.log_sum_exp.data(), result.weights.data(), result.weight_stride});
  return result;
}

}  // namespace support
