#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <vector>

#include <kvant/attention/check.hpp>
#include <kvant/attention/executor.hpp>
#include <kvant/attention/merge.hpp>
#include <kvant/attention/options.hpp>
#include <kvant/attention/query_columns.hpp>
#include <kvant/attention/tile_reader.hpp>
#include <kvant/cache/views.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/layout/slot_order.hpp>
#include <kvant/simd/aligned.hpp>
#include <kvant/simd/rows.hpp>
#include <kvant/status.hpp>

namespace kvant::inline v0 {

/// Where cpu_attention writes. Rows are those of the queries, in their numbering.
struct attention_output {
  float* out = nullptr;          // [rows, q_heads, value_dim]
  float* log_sum_exp = nullptr;  // [rows, q_heads], natural logarithm; may be null
};

namespace detail {

/// What is in a call of cpu_attention, and one task of it: some rows of one kv head over some positions.
template <kv_format Key, kv_format Value, element T, element Q>
struct cpu_attention_call {
  page_layout<Key, Value> const& layout;
  layer_view<T> const& layer;
  queries_view<Q> const& queries;
  attention_options const& options;
  tile_reader<Key, Value, side::key> key_reader;  // tasks work with copies
  tile_reader<Key, Value, side::value> value_reader;
  std::vector<std::size_t> mean_slots;  // of the bytes of a page's mean

  struct work {
    std::int32_t sequence = 0, head = 0, first_column = 0, columns = 0;  // column: row * ratio + q head of the kv head
    std::int64_t begin = 0, end = 0;                                     // positions
    bool is_first = false;                                               // has the sink logit
  };

  [[nodiscard]] int ratio() const { return queries.q_heads / layout.shape.kv_heads; }
  [[nodiscard]] std::int64_t rows_of(std::int32_t i) const { return queries.first_row(i + 1) - queries.first_row(i); }
  [[nodiscard]] std::int64_t length_of(std::int32_t i) const {
    return layer.sequences.slot_of(i) < 0 ? 0 : layer.sequences.length[i];
  }
  [[nodiscard]] std::int64_t row_of(work const& w, int c) const { return (w.first_column + c) / ratio(); }
  [[nodiscard]] int q_head_of(work const& w, int c) const { return w.head * ratio() + (w.first_column + c) % ratio(); }
  /// Of a column's output: row * q_heads + q head.
  [[nodiscard]] std::int64_t place_of(work const& w, int c) const {
    return (queries.first_row(w.sequence) + row_of(w, c)) * queries.q_heads + q_head_of(w, c);
  }
  [[nodiscard]] std::int64_t position_of_row(work const& w, std::int64_t row) const {
    std::int64_t const length = length_of(w.sequence);
    return options.rows == query_rows::causal_tail ? length - rows_of(w.sequence) + row : length + row;
  }

  void prepare() {
    key_reader.prepare(layout), value_reader.prepare(layout);
    for (int i = 0; Key::is_centered && i < layout.shape.key_dim; ++i)
      mean_slots.push_back(static_cast<std::size_t>(slot_of(i, layout.shape.key_dim)));
  }

  void run(work const& w, query_columns& q) const {
    q.prepare(w.columns, layout.shape.key_dim, layout.shape.value_dim);
    auto const& s = layer.sequences;
    std::int64_t const length = length_of(w.sequence);
    bool const has_pages = length > 0 && s.history[w.sequence] > s.first_of(w.sequence);
    load_queries(w, has_pages, q);
    if (length == 0) return;
    std::int64_t const history = s.history[w.sequence], first = s.first_of(w.sequence), sinks = layer.side.sinks;
    for_each_chunk(w, 0, std::min(sinks, length), token_chunk::most, [&](token_chunk chunk) {
      attend_rows(w, chunk, q, [&](side which, std::int64_t p) {
        return layer.side.sink(s.record_of(w.sequence), which, w.head, p);
      });
    });
    if (has_pages) attend_pages(w, first, history, q);
    for_each_chunk(w, std::max(history, sinks), length, token_chunk::most, [&](token_chunk chunk) {
      attend_rows(w, chunk, q, [&](side which, std::int64_t p) {
        return layer.window.row(s.slot_of(w.sequence), which, w.head, p);
      });
    });
  }

  /// The state of column c as an output and its log-sum-exp.
  void finish(query_columns& q, int c, float* scratch, float* out, float* log_sum_exp) const {
    int const dim = layout.shape.value_dim;
    rotation_of<Value>::template inverse<1>(q.output(true, c), scratch, dim);
    auto const at = static_cast<std::size_t>(c);
    float const sum = q.sum[at], largest = q.largest[at];
    bool const none = sum == 0.f && largest == -std::numeric_limits<float>::infinity();
    for (int i = 0; i < dim; ++i) out[i] = none ? 0.f : (q.output(false, c)[i] + scratch[i]) / sum;
    constexpr double ln_2 = 0.69314718055994530942;
    *log_sum_exp = none ? largest : static_cast<float>(ln_2 * static_cast<double>(largest) + std::log(double{sum}));
  }

 private:
  void load_queries(work const& w, bool coded, query_columns& q) const {
    int const dim = layout.shape.key_dim;
    std::vector<float> balanced(static_cast<std::size_t>(coded ? dim : 0));
    half const* const factors =
        Key::is_balanced && coded ? layer.side.factor(layer.sequences.record_of(w.sequence), w.head) : nullptr;
    for (int c = 0; c < w.columns; ++c) {
      std::int64_t const row = row_of(w, c), position = position_of_row(w, row);
      float* const plain = q.query(false, c);
      simd::widen(queries.row(queries.first_row(w.sequence) + row, q_head_of(w, c)), plain, dim);
      if (coded) {
        for (int i = 0; i < dim; ++i)
          balanced[static_cast<std::size_t>(i)] =
              factors == nullptr ? plain[i] : plain[i] * effective_factor(factors[i]);
        rotation_of<Key>::template forward<1>(balanced.data(), q.query(true, c), dim);
      }
      auto const at = static_cast<std::size_t>(c);
      std::int64_t const length = length_of(w.sequence);
      q.first[at] = options.sliding_window > 0 ? position - options.sliding_window + 1 : 0;
      q.last[at] = options.rows == query_rows::causal_tail ? position : length - 1;
      if (w.is_first && options.sink_logits != nullptr) {
        float const logit = options.sink_logits[q_head_of(w, c)];
        if (logit == -std::numeric_limits<float>::infinity()) continue;
        q.largest[at] = logit * log2_e, q.sum[at] = 1.f;
      }
    }
  }

  /// fn(chunk) for the positions [begin, end) that are the task's, up to `most` at a time, chunks beginning at multiples
  /// of `most` from `begin` on.
  template <class Fn>
  static void for_each_chunk(work const& w, std::int64_t begin, std::int64_t end, int most, Fn fn) {
    end = std::min(end, w.end);
    for (std::int64_t p = std::max(begin, w.begin); p < end; p += most)
      fn(token_chunk{p, static_cast<int>(std::min<std::int64_t>(most, end - p))});
  }

  template <class Row>
  void attend_rows(work const& w, token_chunk chunk, query_columns& q, Row row) const {
    int const key_dim = layout.shape.key_dim, value_dim = layout.shape.value_dim;
    simd::aligned_vector<float> rows(static_cast<std::size_t>(key_dim) * token_chunk::block);
    auto const load = [&](side which, int b, int dim, float* to) {
      for (int t = 0; t < token_chunk::block; ++t) {
        int const token = token_chunk::block * b + t;
        if (token < chunk.count)
          simd::widen(row(which, chunk.begin + token), to + std::int64_t{t} * dim, dim);
        else
          std::fill_n(to + std::int64_t{t} * dim, dim, 0.f);
      }
    };
    q.attend(
        chunk, 0, false,
        [&](int b, float* to) {
          load(side::key, b, key_dim, rows.data());
          simd::transpose_16(rows.data(), to, key_dim);
        },
        [&](int b, float* to) { load(side::value, b, value_dim, to); },
        [&, logit = logits(w)](int c, int t, float dot) { return logit(c, chunk.begin + t, dot); });
  }

  void attend_pages(work const& w, std::int64_t first, std::int64_t history, query_columns& q) const {
    int const page_tokens = layout.shape.page_tokens, tile_tokens = layout.tile_tokens;
    tile_reader<Key, Value, side::key> keys = key_reader;
    tile_reader<Key, Value, side::value> values = value_reader;
    std::vector<float> of_mean(static_cast<std::size_t>(w.columns)),
        mean(static_cast<std::size_t>(layout.shape.key_dim));
    auto const logit = logits(w);
    for_each_chunk(w, first, history, page_tokens, [&](token_chunk page) {
      if (!is_seen(q, page.begin, page.begin + page_tokens)) return;
      std::int32_t const id = layer.table.page(w.sequence, page.begin / page_tokens);
      std::byte const* const unit = layer.pages.unit(id, w.head);
      if constexpr (Key::is_centered) dots_with_mean(unit, q, mean, of_mean);
      for (int tile = 0; tile < layout.tiles(); ++tile) {
        std::int64_t const begin = page.begin + std::int64_t{tile} * tile_tokens;
        if (!is_seen(q, begin, begin + tile_tokens)) continue;
        keys.open(unit, tile), values.open(unit, tile);
        for (int from = 0; from < tile_tokens; from += token_chunk::most) {
          token_chunk const chunk{begin + from, std::min(tile_tokens - from, token_chunk::most)};
          q.attend(
              chunk, layer.side.sinks, true, [&](int b, float* to) { keys.read(from + token_chunk::block * b, to); },
              [&](int b, float* to) { values.read(from + token_chunk::block * b, to); },
              [&](int c, int t, float dot) {
                if constexpr (Key::is_centered) dot += of_mean[static_cast<std::size_t>(c)];
                return logit(c, chunk.begin + t, dot);
              });
        }
      }
    });
  }

  static bool is_seen(query_columns const& q, std::int64_t begin, std::int64_t end) {
    for (std::size_t c = 0; c < static_cast<std::size_t>(q.columns()); ++c)
      if (q.first[c] < end && q.last[c] >= begin) return true;
    return false;
  }

  void dots_with_mean(std::byte const* unit, query_columns& q, std::vector<float>& mean,
                      std::vector<float>& of_mean) const {
    int const dim = layout.shape.key_dim;
    half scale;
    std::memcpy(&scale, unit + layout.mean_scale_byte(), 2);
    for (int i = 0; i < dim; ++i)
      mean[mean_slots[static_cast<std::size_t>(i)]] =
          static_cast<float>(std::to_integer<std::int8_t>(unit[i])) * static_cast<float>(scale);
    for (int c = 0; c < q.columns(); ++c) {
      float const* const query = q.query(true, c);
      float sum[16] = {};
      for (int i = 0; i < dim; i += 16)
        for (int j = 0; j < 16; ++j) sum[j] += query[i + j] * mean[static_cast<std::size_t>(i + j)];
      float& dot = of_mean[static_cast<std::size_t>(c)];
      dot = 0.f;
      for (float const x : sum) dot += x;
    }
  }

  /// (column, position, q . k) -> logit in units of log2.
  [[nodiscard]] auto logits(work const& w) const {
    double const scale =
        options.softmax_scale != 0 ? options.softmax_scale : 1 / std::sqrt(static_cast<double>(layout.shape.key_dim));
    bool const is_plain = options.soft_cap <= 0 && options.alibi_slopes == nullptr;
    return [this, &w, is_plain, raw = static_cast<float>(scale), log2_scale = static_cast<float>(scale * log2_e_double),
            cap = static_cast<float>(options.soft_cap)](int c, std::int64_t position, float dot) {
      if (is_plain) return dot * log2_scale;
      float logit = dot * raw;
      if (cap > 0) logit = cap * std::tanh(logit / cap);
      if (options.alibi_slopes != nullptr)
        logit +=
            options.alibi_slopes[q_head_of(w, c)] * static_cast<float>(position - position_of_row(w, row_of(w, c)));
      return logit * log2_e;
    };
  }

  static constexpr double log2_e_double = 1.44269504088896340736;
  static constexpr float log2_e = static_cast<float>(log2_e_double);
};

}  // namespace detail

/// Attention over the sinks, the pages and the window of every sequence of a batch, as reference_attention defines it
/// (which positions a row sees, rows without any, padding), in float. Reads packed tiles one at a time; no decoded copy
/// of the cache exists. Any head sizes, group ratio and number of rows; every attention option.
///
/// The work is cut by sequence, kv head, rows and positions (span_tokens at a time, so that one long sequence keeps all
/// cores busy) into tasks that `execute` runs (executor.hpp); the result does not depend on how. Takes scratch of one
/// page for each running task and (value_dim + 1) floats for each row, q head and span.
///
/// An error says what was expected and what came; nothing is written then. "out of memory" where an allocation failed:
/// then the output may be half done, and the cache is as it was.
template <kv_format Key, kv_format Value, element T, element Q, class Executor = calling_thread>
status cpu_attention(page_shape shape, layer_view<T> const& layer, queries_view<Q> const& queries,
                     attention_options const& options, attention_output output, Executor&& execute = {},
                     std::int64_t span_tokens = 4096) {
  using call_type = detail::cpu_attention_call<Key, Value, T, Q>;
  if (status s = page_layout<Key, Value>::check(shape); !s.ok()) return s;
  page_layout<Key, Value> const layout(shape);
  if (status s = detail::check_attention(layout, layer, queries, options); !s.ok()) return s;
  if (span_tokens < 1) return detail::unexpected("span_tokens", "at least 1", span_tokens);
  auto const& sequences = layer.sequences;
  if (sequences.count == 0 || queries.first_row(0) == queries.first_row(sequences.count)) return {};
  if (output.out == nullptr) return status::error("output: expected memory for out, got a null pointer");
  int const dim = layout.shape.value_dim, page_tokens = layout.shape.page_tokens;
  span_tokens = (span_tokens + page_tokens - 1) / page_tokens * page_tokens;

  std::int64_t const first_place = std::int64_t{queries.first_row(0)} * queries.q_heads;
  auto const places =
      static_cast<std::size_t>(std::int64_t{queries.first_row(sequences.count)} * queries.q_heads - first_place);
  try {
    call_type call{layout, layer, queries, options, {}, {}, {}};
    call.prepare();
    std::vector<typename call_type::work> tasks;
    std::vector<std::int64_t> states;  // [tasks]: where the task's columns lie in the partial results
    std::int64_t partial = 0;
    for (std::int32_t i = 0; i < sequences.count; ++i) {
      auto const columns = static_cast<std::int32_t>(call.rows_of(i) * call.ratio());
      std::int64_t const length = call.length_of(i);
      for (std::int32_t head = 0; head < layout.shape.kv_heads; ++head)
        for (std::int32_t c = 0; c < columns; c += detail::query_columns::most) {
          std::int32_t const n = std::min(columns - c, detail::query_columns::most);
          std::int64_t begin = 0;
          do {
            std::int64_t const end = std::min(begin + span_tokens, std::max<std::int64_t>(length, 1));
            tasks.push_back({i, head, c, n, begin, end, begin == 0});
            states.push_back(partial);
            if (begin != 0) partial += n;
            begin = end;
          } while (begin < length);
        }
    }
    std::vector<float> out(static_cast<std::size_t>(partial) * static_cast<std::size_t>(dim)),
        lse(places + static_cast<std::size_t>(partial));
    // The first span of a column writes where the result belongs, the others beside it.
    std::vector<std::exception_ptr> failed(tasks.size());
    auto const run = [&](std::int64_t task) {
      auto const at = static_cast<std::size_t>(task);
      try {
        auto const& w = tasks[at];
        detail::query_columns q;
        call.run(w, q);
        std::vector<float> scratch(static_cast<std::size_t>(dim));
        for (int c = 0; c < w.columns; ++c) {
          std::int64_t const place = call.place_of(w, c), state = states[at] + c;
          call.finish(q, c, scratch.data(), w.is_first ? output.out + place * dim : out.data() + state * dim,
                      lse.data() + (w.is_first ? place - first_place : static_cast<std::int64_t>(places) + state));
        }
      } catch (...) {
        failed[at] = std::current_exception();
      }
    };
    execute(static_cast<std::int64_t>(tasks.size()), run);
    for (std::exception_ptr const& e : failed)
      if (e) std::rethrow_exception(e);
    for (std::size_t task = 0; task < tasks.size(); ++task) {
      auto const& w = tasks[task];
      if (w.is_first) continue;
      for (int c = 0; c < w.columns; ++c) {
        std::int64_t const place = call.place_of(w, c), state = states[task] + c;
        merge_states(output.out + place * dim, lse.data() + (place - first_place), out.data() + state * dim,
                     lse.data() + static_cast<std::int64_t>(places) + state, 1, dim);
      }
    }
    if (output.log_sum_exp != nullptr) std::copy_n(lse.data(), places, output.log_sum_exp + first_place);
  } catch (std::bad_alloc const&) {
    return status::error("out of memory");
  }
  return {};
}

}  // namespace kvant::inline v0
