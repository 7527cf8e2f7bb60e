#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include <kvant/append.cuh>
#include <kvant/cache/page_codec.hpp>
#include <kvant/commit.cuh>
#include <kvant/plan/layer.hpp>
#include <kvant/prefill.cuh>
#include <kvant/step.cuh>

#include "gpu/device.cuh"
#include "support/catch.hpp"

namespace gpu {

using kvant::half;
using kvant::side;

/// What tokens look like.
enum class content { normal, norms, biased, zeros, spoiled, constant };

struct written_options {
  int heads = 2, layers = 1, sinks = 4, window = 128, most_rows = 64;
  content keys = content::normal;
  int ring_rows = 0;  // 0: W + P - 1 + most_rows rounded up
};

/// How the device's bytes differ from the host encoder's.
struct differences {
  std::int64_t codes = 0, moved = 0, far = 0;  // of units whose headers agree
  std::int64_t mean_bytes = 0, mean_moved = 0, mean_far = 0, mean_units = 0;
  std::int64_t factors = 0, factors_moved = 0;  // moved: by more than one unit in the last place
  std::int64_t masked_bits = 0;                 // bytes of masked tokens that are not zero
  double scale = 0;                 // largest relative difference of scalars, where all codes of the token agree
  double rule = 0;                  // and, of any token, from what the scale rule gives for the device's own codes
  double device_d = 0, host_d = 0;  // squared errors of decoded keys and values, each over its power
  [[nodiscard]] double share() const {
    return codes == 0 ? 0 : static_cast<double>(moved) / static_cast<double>(codes);
  }
  [[nodiscard]] double cost() const { return host_d == 0 ? 0 : device_d / host_d - 1; }
};

/// The memory of layers that the device writes, and the tokens it is given. Everything is poisoned first; ids, slots
/// and records are in no order; ids of pages that the lengths do not call for are out of range.
template <class Key, class Value>
class written_cache {
 public:
  static constexpr int dim = 128, page_tokens = 64;
  static constexpr kvant::page_shape shape_of(int heads) { return {heads, dim, dim, page_tokens}; }

  /// tokens[i]: how many sequence i will have at most.
  written_cache(written_options given, std::vector<int> most_tokens, std::uint64_t seed)
      : options(given), tokens(std::move(most_tokens)), layout(shape_of(given.heads)) {
    int const n = count();
    std::mt19937_64 random(seed);
    int pages = 5;
    for (int const t : tokens) pages += t / page_tokens, capacity_ = std::max(capacity_, t / page_tokens + 1);
    rows_ = options.ring_rows != 0 ? options.ring_rows
                                   : (options.window + page_tokens - 1 + options.most_rows + 15) / 16 * 16;
    std::int64_t const row = dim * 2, ring = rows_ * row, slot = 2 * ring * options.heads;
    std::int64_t const sink = std::max(1, options.sinks) * row, record = 2 * sink * options.heads + row * options.heads;
    page_bytes = layout.page_bytes() + 48;
    for (int i = 0; i < pages; ++i) free_.push_back(i);
    std::shuffle(free_.begin(), free_.end(), random);
    for (int i = 0; i < n; ++i) slots.push_back(n - 1 - i), records.push_back((i + 1) % n);
    length.assign(at(n), 0), history.assign(at(n), 0);
    ids.assign(at(std::int64_t{n} * capacity_), -7);
    for (int l = 0; l < options.layers; ++l) {
      memory.push_back(std::make_unique<layer_memory>(at(pages * page_bytes), at(slot * n), at(record * n)));
      memory.back()->pages.fill(0xa5), memory.back()->window.fill(0xa5), memory.back()->side.fill(0xa5);
    }
    d_length = std::make_unique<buffer<std::int32_t>>(length),
    d_history = std::make_unique<buffer<std::int32_t>>(history);
    d_ids = std::make_unique<buffer<std::int32_t>>(ids), d_slots = std::make_unique<buffer<std::int32_t>>(slots);
    d_records = std::make_unique<buffer<std::int32_t>>(records);
    d_offsets = std::make_unique<buffer<std::int32_t>>(std::vector<std::int32_t>(at(n + 1), 0));
    std::int64_t const most = std::int64_t{options.most_rows} * n;
    std::vector<kvant::layer_view<half>> views;
    for (auto& m : memory) {
      m->key_rows = std::make_unique<buffer<half>>(at(most * options.heads * dim));
      m->value_rows = std::make_unique<buffer<half>>(at(most * options.heads * dim));
      m->view.pages = {m->pages.get(), page_bytes, layout.unit_bytes(), pages};
      m->view.window = {m->window.get(), slot, ring * options.heads, ring, row, rows_};
      m->view.side = {m->side.get(), Key::is_balanced ? m->side.get() + 2 * sink * options.heads : nullptr,
                      record,        sink * options.heads,
                      sink,          row,
                      row,           options.sinks};
      m->view.table = {d_ids->get(), capacity_, capacity_};
      m->view.sequences = {d_length->get(), d_history->get(), nullptr, nullptr, d_slots->get(), d_records->get(), n};
      views.push_back(m->view);
    }
    d_layers = std::make_unique<buffer<std::byte>>(views.size() * sizeof(views[0]));
    check(cudaMemcpy(d_layers->get(), views.data(), views.size() * sizeof(views[0]), cudaMemcpyHostToDevice));
    for (int l = 0; l < options.layers; ++l)
      for (int i = 0; i < n; ++i) make_tokens(random, memory[at(l)]->keys, memory[at(l)]->values, tokens[at(i)]);
  }

  [[nodiscard]] int count() const { return static_cast<int>(tokens.size()); }

  // ---- steps ----

  /// Puts the next rows[i] tokens of each sequence where the launches read them, and gives out the pages they call for.
  void stage(std::vector<int> const& rows) {
    std::vector<std::int32_t> offsets{0};
    for (int const r : rows) offsets.push_back(offsets.back() + r);
    d_offsets->upload(offsets);
    for (auto& m : memory) {
      std::vector<half> k, v;
      for (int i = 0; i < count(); ++i) {
        auto const from = at(std::int64_t{length[at(i)]} * options.heads * dim);
        auto const n = at(std::int64_t{rows[at(i)]} * options.heads * dim);
        k.insert(k.end(), m->keys[at(i)].begin() + std::ptrdiff_t(from),
                 m->keys[at(i)].begin() + std::ptrdiff_t(from + n));
        v.insert(v.end(), m->values[at(i)].begin() + std::ptrdiff_t(from),
                 m->values[at(i)].begin() + std::ptrdiff_t(from + n));
      }
      if (!k.empty()) {
        check(cudaMemcpy(m->key_rows->get(), k.data(), k.size() * 2, cudaMemcpyHostToDevice));
        check(cudaMemcpy(m->value_rows->get(), v.data(), v.size() * 2, cudaMemcpyHostToDevice));
      }
    }
    for (int i = 0; i < count(); ++i) {
      length[at(i)] += rows[at(i)];
      int const after = kvant::history_after_commit(history[at(i)], length[at(i)], options.window, page_tokens);
      for (int p = history[at(i)] / page_tokens; p < after / page_tokens; ++p)
        ids[at(std::int64_t{i} * capacity_ + p)] = free_.back(), free_.pop_back();
      history[at(i)] = after;
    }
    d_ids->upload(ids);
  }
  /// One step as an engine launches it; `at_once`: prefill in place of append and commit.
  void launch(cudaStream_t stream, bool at_once) {
    kvant::step_view const step{d_length->get(), d_history->get(), d_slots->get(), d_offsets->get(), count()};
    check(kvant::begin_step_async(step, stream));
    for (auto& m : memory) {
      kvant::token_rows<half> const k{m->key_rows->get(), std::int64_t{options.heads} * dim, dim},
          v{m->value_rows->get(), std::int64_t{options.heads} * dim, dim};
      kvant::new_rows_view<half> const rows{k, v, d_offsets->get(), options.heads, dim, dim, options.most_rows};
      if (at_once)
        check(kvant::prefill_async<Key, Value, dim>(m->view, rows, {options.window, nullptr}, stream));
      else
        check(kvant::append_async(m->view, rows, stream));
    }
    if (!at_once)
      check(kvant::commit_async<Key, Value, dim>(list(), {options.window, options.heads, 2, nullptr}, stream));
    check(kvant::end_step_async(step, options.window, page_tokens, stream));
  }
  void step(std::vector<int> const& rows, bool at_once) {
    stage(rows);
    launched once(false, [&](cudaStream_t stream) { launch(stream, at_once); });
  }
  [[nodiscard]] kvant::layer_list<half> list() const {
    return {memory[0]->view, reinterpret_cast<kvant::layer_view<half> const*>(d_layers->get()), options.layers};
  }

  // ---- what is there now ----

  /// The live bytes of a layer: for each sequence its pages in order, window rows, sinks and factors.
  [[nodiscard]] std::vector<std::byte> live(int layer) const {
    auto const& m = *memory[at(layer)];
    auto const pages = m.pages.host(), window = m.window.host(), sides = m.side.host();
    std::vector<std::byte> out;
    auto const add = [&](std::vector<std::byte> const& from, std::byte const* base, void const* p, std::int64_t n) {
      auto const o = static_cast<std::byte const*>(p) - base;
      out.insert(out.end(), from.begin() + o, from.begin() + o + n);
    };
    for (int i = 0; i < count(); ++i)
      for (int h = 0; h < options.heads; ++h) {
        for (int p = 0; p < history[at(i)] / page_tokens; ++p)
          add(pages, m.pages.get(), m.view.pages.unit(id(i, p), h), layout.unit_bytes());
        for (side const s : {side::key, side::value}) {
          for (int p = std::max(history[at(i)], options.sinks); p < length[at(i)]; ++p)
            add(window, m.window.get(), m.view.window.row(slots[at(i)], s, h, p), dim * 2);
          for (int p = 0; p < std::min(options.sinks, length[at(i)]); ++p)
            add(sides, m.side.get(), m.view.side.sink(records[at(i)], s, h, p), dim * 2);
        }
        if (Key::is_balanced && history[at(i)] > 0)
          add(sides, m.side.get(), m.view.side.factor(records[at(i)], h), dim * 2);
      }
    return out;
  }

  /// Every unit against the host encoder; pages that no sequence has must be untouched.
  [[nodiscard]] differences against_host() {
    differences d;
    kvant::page_codec<Key, Value> codec;
    REQUIRE(codec.prepare(shape_of(options.heads)).ok());
    REQUIRE(d_length->host() == length);
    REQUIRE(d_history->host() == history);
    double key_power = 0, value_power = 0, errors[2][2] = {};  // [device or host][side]
    for (auto const& m : memory) {
      auto const pages = m->pages.host(), sides = m->side.host();
      std::vector<bool> used(pages.size() / at(page_bytes), false);
      for (int i = 0; i < count(); ++i)
        for (int p = 0; p < history[at(i)] / page_tokens; ++p) {
          used[at(id(i, p))] = true;
          for (int h = 0; h < options.heads; ++h) {
            std::byte const* const unit = pages.data() + id(i, p) * page_bytes + h * layout.unit_bytes();
            half const* const stored = factors_of(*m, sides, i, h);
            if (stored != nullptr && p == 0) compare_factors(codec, *m, i, h, stored, d);
            compare_unit(codec, *m, i, p, h, stored, unit, d, errors, key_power, value_power);
          }
          std::byte const* const gap = pages.data() + (id(i, p) + 1) * page_bytes - 48;
          REQUIRE(std::all_of(gap, gap + 48, [](std::byte b) { return b == std::byte{0xa5}; }));
        }
      for (std::size_t p = 0; p < used.size(); ++p)
        if (!used[p]) {
          auto const from = pages.begin() + std::ptrdiff_t(p) * page_bytes;
          REQUIRE(std::all_of(from, from + page_bytes, [](std::byte b) { return b == std::byte{0xa5}; }));
        }
    }
    auto const relative = [&](int which) {
      return (key_power > 0 ? errors[which][0] / key_power : 0) +
             (value_power > 0 ? errors[which][1] / value_power : 0);
    };
    d.device_d = relative(0), d.host_d = relative(1);
    return d;
  }

  struct layer_memory {
    layer_memory(std::size_t p, std::size_t w, std::size_t s) : pages(p), window(w), side(s) {}
    buffer<std::byte> pages, window, side;
    std::unique_ptr<buffer<half>> key_rows, value_rows;
    kvant::layer_view<half> view;
    std::vector<std::vector<half>> keys, values;  // [sequence][position, head, channel]
  };

  written_options options;
  std::vector<int> tokens;
  kvant::page_layout<Key, Value> layout;
  std::int64_t page_bytes = 0;
  std::vector<std::unique_ptr<layer_memory>> memory;
  std::vector<std::int32_t> length, history, slots, records, ids;
  std::unique_ptr<buffer<std::int32_t>> d_length, d_history, d_ids, d_slots, d_records, d_offsets;
  std::unique_ptr<buffer<std::byte>> d_layers;

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] std::int64_t id(int i, int page) const { return ids[at(std::int64_t{i} * capacity_ + page)]; }

  void make_tokens(std::mt19937_64& random, std::vector<std::vector<half>>& keys,
                   std::vector<std::vector<half>>& values, int n) const {
    std::normal_distribution<float> normal;
    std::vector<float> fixed(at(dim));
    double norm = 0;
    for (float& x : fixed) x = normal(random), norm += static_cast<double>(x) * static_cast<double>(x);
    for (float& x : fixed) x *= static_cast<float>(600 / std::sqrt(norm));
    auto const make = [&](content kind, bool key) {
      std::vector<half> out;
      for (int p = 0; p < n; ++p)
        for (int h = 0; h < options.heads; ++h) {
          float size = key ? 1.f : 4.f;
          if (kind == content::norms) size = std::pow(10.f, std::uniform_real_distribution<float>(-5.f, 4.f)(random));
          for (int c = 0; c < dim; ++c) {
            float x = size * normal(random);
            if (kind == content::biased && key) x += fixed[at(c)];
            if (kind == content::zeros) x = p % 3 == 0 ? 0.f : x;
            if (kind == content::constant) x = 3.25f;
            if (kind == content::spoiled && p % 7 == 0) {
              if (c == 5) x = std::numeric_limits<float>::quiet_NaN();
              if (c == 9) x = std::numeric_limits<float>::infinity();
              if (c == 77) x = -std::numeric_limits<float>::infinity();
            }
            out.push_back(half{x});
          }
        }
      return out;
    };
    keys.push_back(make(options.keys, true));
    values.push_back(make(options.keys == content::biased ? content::normal : options.keys, false));
  }

  half const* factors_of(layer_memory const& m, std::vector<std::byte> const& sides, int i, int h) const {
    if constexpr (!Key::is_balanced) return nullptr;
    auto const* p = reinterpret_cast<std::byte const*>(m.view.side.factor(records[at(i)], h));
    return reinterpret_cast<half const*>(sides.data() + (p - m.side.get()));
  }
  half const* row(std::vector<std::vector<half>> const& x, int i, int position, int h) const {
    return x[at(i)].data() + (std::int64_t{position} * options.heads + h) * dim;
  }

  template <class Codec>
  void compare_factors(Codec& codec, layer_memory const& m, int i, int h, half const* stored, differences& d) const {
    if constexpr (Key::is_balanced) {
      std::vector<half> expected(at(dim));
      codec.make_factors(row(m.keys, i, 0, h), options.heads * dim, options.sinks, expected.data());
      for (int c = 0; c < dim; ++c) {
        ++d.factors;
        if (std::abs(int(expected[at(c)].bits) - int(stored[c].bits)) > 1) ++d.factors_moved;
      }
    }
  }

  template <side S>
  std::uint32_t code(std::byte const* unit, int token, int channel) const {
    using format = std::conditional_t<S == side::key, Key, Value>;
    std::uint32_t c = 0;
    for (int k = 0; k < kvant::codec_of<format>::bits; ++k) {
      auto const b = layout.template code_bit<S>(token, channel, k);
      c |= ((std::to_integer<std::uint32_t>(unit[b.byte]) >> b.bit) & 1u) << k;
    }
    return c;
  }
  /// Levels counted in ascending order.
  template <class Format>
  static int rank(std::uint32_t c) {
    if (kvant::codec_of<Format>::bits != 4) return static_cast<int>(c);
    return c < 8 ? static_cast<int>(c) : 7 - static_cast<int>(c);
  }

  /// The coordinates that are coded, in double: rotated, what the page stores as mean taken off.
  template <side S>
  std::vector<double> coordinates(half const* x, half const* factors, std::byte const* unit) const {
    using format = std::conditional_t<S == side::key, Key, Value>;
    std::vector<double> channels(at(dim)), y(at(dim));
    for (int c = 0; c < dim; ++c) {
      double const v = static_cast<double>(static_cast<float>(x[c]));
      channels[at(c)] = std::isfinite(v) ? v : 0;
      if (format::is_balanced) channels[at(c)] /= static_cast<double>(kvant::effective_factor(factors[c]));
    }
    kvant::rotation_of<format>::template forward<1>(channels.data(), y.data(), dim);
    if (format::is_centered) {
      half scale;
      std::memcpy(&scale, unit + layout.mean_scale_byte(), 2);
      for (int c = 0; c < dim; ++c)
        y[at(c)] -= static_cast<double>(std::to_integer<std::int8_t>(unit[layout.mean_byte(c)])) *
                    static_cast<double>(static_cast<float>(scale));
    }
    return y;
  }

  template <side S>
  void compare_codes(std::byte const* got, std::byte const* expected, int masked, bool headers_agree, half const* x,
                     half const* factors, differences& d) const {
    using format = std::conditional_t<S == side::key, Key, Value>;
    using codec = kvant::codec_of<format>;
    auto const apart = [](half a, half b) {
      double const p = static_cast<double>(static_cast<float>(a)), q = static_cast<double>(static_cast<float>(b));
      // subnormal scalars have no nine bits
      return std::abs(int(a.bits) - int(b.bits)) <= 1 ? 0 : std::abs(p - q) / std::max(std::abs(q), 1e-30);
    };
    for (int t = 0; t < page_tokens; ++t) {
      half a, b;
      std::memcpy(&a, got + layout.template token_scalar_byte<S>(t, 0), 2);
      std::memcpy(&b, expected + layout.template token_scalar_byte<S>(t, 0), 2);
      if (t < masked) {
        d.masked_bits += a.bits != 0;
        for (int c = 0; c < dim; ++c) d.masked_bits += code<S>(got, t, c) != 0;
        continue;
      }
      if (!headers_agree && S == side::key) continue;
      auto const y = coordinates<S>(x + std::int64_t{t} * options.heads * dim, factors, got);
      kvant::moments m{dim, 0, 0, 0};
      bool same = true;
      int moved = 0, far = 0;
      for (int c = 0; c < dim; ++c) {
        std::uint32_t const mine = code<S>(got, t, c);
        int const step = std::abs(rank<format>(mine) - rank<format>(code<S>(expected, t, c)));
        moved += step != 0, far += step > 1, same = same && step == 0;
        double const level = codec::table::level(static_cast<int>(mine));
        m.xx += y[at(c)] * y[at(c)], m.xl += y[at(c)] * level, m.ll += level * level;
      }
      d.rule = std::max(d.rule, apart(a, codec::template fit<kvant::scale_of<format, S>>(m).scalar[0]));
      if (same) d.scale = std::max(d.scale, apart(a, b));
      if (b.bits == 0 && a.bits == 0) continue;  // decodes to zeros whatever the codes are
      d.codes += dim, d.moved += moved, d.far += far;
    }
  }

  template <class Codec>
  void compare_unit(Codec& codec, layer_memory const& m, int i, int p, int h, half const* factors,
                    std::byte const* unit, differences& d, double (&errors)[2][2], double& key_power,
                    double& value_power) const {
    int const masked = p == 0 ? options.sinks : 0, first = p * page_tokens;
    std::vector<std::byte> expected(at(layout.unit_bytes()));
    codec.encode_unit(row(m.keys, i, first, h), options.heads * dim, row(m.values, i, first, h), options.heads * dim,
                      masked, factors, expected.data());
    bool agree = true;
    if (Key::is_centered) {
      int moved = 0;
      for (int c = 0; c < dim; ++c) {
        int const step =
            std::abs(int(std::to_integer<std::int8_t>(unit[c])) - int(std::to_integer<std::int8_t>(expected[at(c)])));
        moved += step != 0, d.mean_far += step > 1;
      }
      d.mean_bytes += dim, d.mean_moved += moved;
      agree = std::memcmp(unit, expected.data(), at(layout.header_bytes())) == 0;
      d.mean_units += !agree;
    }
    compare_codes<side::key>(unit, expected.data(), masked, agree, row(m.keys, i, first, h), factors, d);
    compare_codes<side::value>(unit, expected.data(), masked, agree, row(m.values, i, first, h), nullptr, d);
    for (int which = 0; which < 2; ++which) {
      std::vector<double> k(at(page_tokens * dim)), v(at(page_tokens * dim));
      codec.decode_unit(which == 0 ? unit : expected.data(), factors, k.data(), v.data());
      // Errors over the power of what is coded: the residual of centered keys, the row of others. (Over the power of
      // the row, one small token of a page with a large mean would outweigh all.)
      auto const add = [&](std::vector<double> const& decoded, std::vector<std::vector<half>> const& source, int s,
                           bool residual, double& power) {
        auto const value = [&](int t, int c) {
          double const y = static_cast<double>(static_cast<float>(row(source, i, first + t, h)[c]));
          return std::isfinite(y) ? y : 0;
        };
        std::vector<double> mean(at(dim));
        if (residual)
          for (int t = masked; t < page_tokens; ++t)
            for (int c = 0; c < dim; ++c) mean[at(c)] += value(t, c) / (page_tokens - masked);
        for (int t = masked; t < page_tokens; ++t) {
          double norm = 0, error = 0;
          for (int c = 0; c < dim; ++c) {
            double const r = value(t, c) - mean[at(c)], e = decoded[at(t * dim + c)] - value(t, c);
            norm += r * r, error += e * e;
          }
          if (norm == 0) continue;
          errors[which][s] += error / norm;
          if (which == 0) power += 1;
        }
      };
      add(k, m.keys, 0, Key::is_centered, key_power), add(v, m.values, 1, false, value_power);
    }
  }

  int capacity_ = 1, rows_ = 0;
  std::vector<int> free_;
};

/// The bounds of a device encoder, and what was measured.
inline void check_bounds(differences const& d) {
  INFO("codes " << d.codes << ", moved " << 100 * d.share() << " %, D " << 100 * d.cost() << " %, scales " << d.scale
                << ", rule " << d.rule << ", mean bytes moved " << d.mean_moved << " of " << d.mean_bytes
                << ", factors moved " << d.factors_moved << " of " << d.factors);
  CHECK(d.share() <= 0.025);
  CHECK(d.far == 0);
  CHECK(d.scale <= 0x1p-9);
  CHECK(d.rule <= 0x1p-9);
  CHECK(d.cost() <= 0.005);
  CHECK(d.mean_moved * 200 <= d.mean_bytes);
  CHECK(d.mean_far == 0);
  CHECK(d.factors_moved == 0);
  CHECK(d.masked_bits == 0);
}

inline std::uint64_t fresh_seed() {
  static std::random_device device;
  return device();
}

}  // namespace gpu
