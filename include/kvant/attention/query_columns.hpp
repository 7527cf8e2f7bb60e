#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <kvant/simd/aligned.hpp>
#include <kvant/simd/exponential.hpp>
#include <kvant/simd/vector.hpp>

namespace kvant::inline v0::detail {

/// Tokens whose scores are taken together: positions from `begin` on, in blocks of 16.
struct token_chunk {
  static constexpr int most = 64, block = 16;
  std::int64_t begin = 0;
  int count = 0;  // at most `most`
  [[nodiscard]] int blocks() const { return (count + block - 1) / block; }
};

/// Queries of one kv head side by side, with what a softmax over their keys has come to so far (one for all the chunks,
/// Milakov and Gimelshein 2018): logits in units of log2, largest logit, sum, weighted values.
class query_columns {
 public:
  static constexpr int most = 32;

  void prepare(int columns, int key_dim, int value_dim) {
    columns_ = columns, key_dim_ = key_dim, value_dim_ = value_dim;
    auto const n = index(columns);
    keys[0].resize(n * index(key_dim)), keys[1].resize(n * index(key_dim));
    out[0].assign(n * index(value_dim), 0.f), out[1].assign(n * index(value_dim), 0.f);
    largest.assign(n, -std::numeric_limits<float>::infinity());
    sum.assign(n, 0.f), first.assign(n, 0), last.assign(n, 0);
    scores_.resize(n * token_chunk::most);
    block_.resize(index(std::max(key_dim, value_dim)) * token_chunk::block);
  }
  [[nodiscard]] int columns() const { return columns_; }
  [[nodiscard]] float* query(bool coded, int column) {  // [key_dim]
    return keys[coded].data() + std::int64_t{column} * key_dim_;
  }
  [[nodiscard]] float* output(bool coded, int column) {  // [value_dim]
    return out[coded].data() + std::int64_t{column} * value_dim_;
  }

  /// A chunk in which columns see positions [lowest, ...) of their own first to last. read_keys(block, to) gives
  /// [channel, 16], read_values(block, to) [16, channel] of 16 tokens; those past the chunk's count are zeros.
  /// to_logit(column, token, dot) is the logit. `coded`: keys, values in the coordinates that are coded.
  template <class ReadKeys, class ReadValues, class ToLogit>
  void attend(token_chunk chunk, std::int64_t lowest, bool coded, ReadKeys read_keys, ReadValues read_values,
              ToLogit to_logit) {
    bool any = false, all = true;
    for (int c = 0; c < columns_; ++c) {
      auto const [from, to] = seen(chunk, lowest, c);
      any = any || from < to, all = all && from == 0 && to == chunk.count;
    }
    if (!any) return;
    all = all && chunk.count % token_chunk::block == 0;
    for (int b = 0; b < chunk.blocks(); ++b) {
      read_keys(b, block_.data());
      by_columns([&]<int N>(int c) { score<N>(c, coded, b); });
    }
    for (int c = 0; c < columns_; ++c) {
      auto const [from, to] = seen(chunk, lowest, c);
      weigh(c, from, to, chunk.blocks() * token_chunk::block, to_logit);
    }
    for (int b = 0; b < chunk.blocks(); ++b) {
      read_values(b, block_.data());
      if (all) {
        by_columns([&]<int N>(int c) { add<N>(c, coded, b, 0, token_chunk::block); });
        continue;
      }
      for (int c = 0; c < columns_; ++c) {  // what a column does not see must not matter, not even if it is NaN
        auto const [from, to] = seen(chunk, lowest, c);
        int const base = token_chunk::block * b;
        add<1>(c, coded, b, std::max(from - base, 0), std::min(to - base, token_chunk::block));
      }
    }
  }

  std::vector<float> largest, sum;        // [columns]
  std::vector<std::int64_t> first, last;  // [columns]: positions that the column sees

 private:
  struct interval {
    int from, to;
  };
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  [[nodiscard]] interval seen(token_chunk chunk, std::int64_t lowest, int c) const {
    std::int64_t const from = std::max(lowest, first[index(c)]) - chunk.begin, to = last[index(c)] + 1 - chunk.begin;
    return {static_cast<int>(std::clamp<std::int64_t>(from, 0, chunk.count)),
            static_cast<int>(std::clamp<std::int64_t>(to, 0, chunk.count))};
  }

  /// fn<N>(c) for N columns at a time, as many as registers hold the sums of.
  template <class Fn>
  void by_columns(Fn fn) {
    int c = 0;
    for (; c + 4 <= columns_; c += 4) fn.template operator()<4>(c);
    if (c + 2 <= columns_) fn.template operator()<2>(c), c += 2;
    if (c < columns_) fn.template operator()<1>(c);
  }

  template <int N>
  void score(int c, bool coded, int b) {
    simd::vec<float, 16> s[static_cast<std::size_t>(N)] = {}, k;
    float const* const q = query(coded, c);
    for (int i = 0; i < key_dim_; ++i) {
      k.load(block_.data() + 16 * i);
      for (int j = 0; j < N; ++j) s[j].add_product(q[j * key_dim_ + i], k);
    }
    for (int j = 0; j < N; ++j) s[j].store(scores_of(c + j) + 16 * b);
  }

  template <int N>
  void add(int c, bool coded, int b, int from, int to) {
    for (int i = 0; i < value_dim_; i += 16) {
      simd::vec<float, 16> sums[static_cast<std::size_t>(N)], v;
      for (int j = 0; j < N; ++j) sums[j].load(output(coded, c + j) + i);
      for (int t = from; t < to; ++t) {
        v.load(block_.data() + t * value_dim_ + i);
        for (int j = 0; j < N; ++j) sums[j].add_product(scores_of(c + j)[16 * b + t], v);
      }
      for (int j = 0; j < N; ++j) sums[j].store(output(coded, c + j) + i);
    }
  }

  /// scores <- dots to probabilities, those not in [from, to) to zero; joins them to the sum.
  template <class ToLogit>
  void weigh(int c, int from, int to, int padded, ToLogit to_logit) {
    float* const s = scores_of(c);
    if (from >= to) {
      std::fill_n(s, padded, 0.f);
      return;
    }
    float top = -std::numeric_limits<float>::infinity();
    for (int t = from; t < to; ++t) {
      s[t] = to_logit(c, t, s[t]);
      top = s[t] > top ? s[t] : top;
    }
    float& m = largest[index(c)];
    if (top > m) {
      float const kept = m - m == 0.f ? simd::exp2_negative(m - top) : 0.f;
      m = top;
      sum[index(c)] *= kept;
      for (auto& o : out)
        for (int i = 0; i < value_dim_; ++i) o[index(c * value_dim_ + i)] *= kept;
    }
    for (int t = 0; t < padded; ++t) s[t] = simd::exp2_negative(s[t] - m);
    std::fill_n(s, from, 0.f), std::fill(s + to, s + padded, 0.f);
    float lanes[16] = {};
    for (int t = 0; t < padded; ++t) lanes[t % 16] += s[t];
    for (float const x : lanes) sum[index(c)] += x;
  }

  [[nodiscard]] float* scores_of(int c) { return scores_.data() + std::int64_t{c} * token_chunk::most; }

  int columns_ = 0, key_dim_ = 0, value_dim_ = 0;
  simd::aligned_vector<float> keys[2], out[2];  // as they came, and in the coordinates that are coded: [columns, dim]
  simd::aligned_vector<float> scores_;          // [columns, most]
  simd::aligned_vector<float> block_;           // 16 tokens of keys or values
};

}  // namespace kvant::inline v0::detail
