#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <kvant/cache/geometry.hpp>
#include <kvant/cache/page_codec.hpp>
#include <kvant/plan/plan.hpp>

namespace support {

using kvant::half;

/// The pages of one layer of a model, made from rows [tokens, heads, dim] by page_codec.
struct model_codec {
  virtual ~model_codec() = default;
  virtual std::vector<half> factors(half const* keys, int masked) = 0;
  virtual std::vector<std::byte> page(half const* keys, half const* values, int masked, half const* factors) = 0;
  virtual void decode(std::byte const* page, half const* factors, float* keys, float* values) = 0;
};

template <kvant::kv_format Key, kvant::kv_format Value>
class typed_model_codec final : public model_codec {
 public:
  explicit typed_model_codec(kvant::page_shape shape) : shape_(shape) { (void)codec_.prepare(shape); }
  std::vector<half> factors(half const* keys, int masked) override {
    std::vector<half> all(Key::is_balanced ? at(shape_.kv_heads * shape_.key_dim) : 0);
    if constexpr (Key::is_balanced)
      for (int h = 0; h < shape_.kv_heads; ++h)
        codec_.make_factors(keys + h * shape_.key_dim, stride(shape_.key_dim), masked, all.data() + h * shape_.key_dim);
    return all;
  }
  std::vector<std::byte> page(half const* keys, half const* values, int masked, half const* factors) override {
    int const unit = codec_.layout().unit_bytes();
    std::vector<std::byte> bytes(at(unit * shape_.kv_heads));
    for (int h = 0; h < shape_.kv_heads; ++h)
      codec_.encode_unit(keys + h * shape_.key_dim, stride(shape_.key_dim), values + h * shape_.value_dim,
                         stride(shape_.value_dim), masked, of_head(factors, h), bytes.data() + h * unit);
    return bytes;
  }
  void decode(std::byte const* page, half const* factors, float* keys, float* values) override {
    int const unit = codec_.layout().unit_bytes(), tokens = shape_.page_tokens;
    std::vector<float> k(at(tokens * shape_.key_dim)), v(at(tokens * shape_.value_dim));
    for (int h = 0; h < shape_.kv_heads; ++h) {
      codec_.decode_unit(page + h * unit, of_head(factors, h), k.data(), v.data());
      for (int t = 0; t < tokens; ++t) {
        std::copy_n(k.data() + t * shape_.key_dim, shape_.key_dim, keys + (t * shape_.kv_heads + h) * shape_.key_dim);
        std::copy_n(v.data() + t * shape_.value_dim, shape_.value_dim,
                    values + (t * shape_.kv_heads + h) * shape_.value_dim);
      }
    }
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] std::int64_t stride(int dim) const { return std::int64_t{shape_.kv_heads} * dim; }
  half const* of_head(half const* factors, int h) const {
    return Key::is_balanced ? factors + h * shape_.key_dim : nullptr;
  }
  kvant::page_shape shape_;
  kvant::page_codec<Key, Value> codec_;
};

/// What one layer keeps of one sequence, and every exact token that its window still has.
struct model_layer_state {
  std::vector<half> keys,
      values;  // [length, heads, dim]: exact, or decoded where a page was cut; from `history` on live
  std::vector<std::shared_ptr<std::vector<std::byte> const>> pages;  // by index; null where dropped
  std::vector<half> factors;
};
/// Lengths of one group of one sequence.
struct model_group_state {
  int length = 0, history = 0, first = 0;
  int reserved = 0;  // pages [history / P, reserved) are its own and hold nothing yet
};
struct model_sequence {
  std::vector<model_layer_state> layers;
  std::vector<model_group_state> groups;
  int position_base = 0;
};

/// Rows of one layer as a test hands them over: halves, [tokens, heads, dim].
struct model_rows {
  std::vector<half> keys, values;
};

/// A cache in plain vectors: the rules of DESIGN section 2, token by token.
template <class Plan>
class cache_model {
 public:
  explicit cache_model(kvant::cache_geometry geometry) : geometry_(std::move(geometry)) {
    for (int i = 0; i < Plan::size; ++i)
      codecs_.push_back(
          kvant::visit_layer(Plan{}, i, std::shared_ptr<model_codec>{},
                             [&]<class L>(std::type_identity<L>) -> std::shared_ptr<model_codec> {
                               return std::make_shared<typed_model_codec<typename L::key, typename L::value>>(
                                   geometry_.layers[at(i)].shape);
                             }));
  }
  [[nodiscard]] kvant::cache_geometry const& geometry() const { return geometry_; }
  [[nodiscard]] kvant::group_geometry const& rules(std::size_t group) const { return geometry_.groups[group]; }

  [[nodiscard]] model_sequence empty() const {
    model_sequence s;
    s.layers.resize(geometry_.layers.size()), s.groups.resize(geometry_.groups.size());
    return s;
  }
  void append(model_sequence& s, std::vector<model_rows> const& rows, int tokens) const {
    for (std::size_t i = 0; i < s.layers.size(); ++i) {
      s.layers[i].keys.insert(s.layers[i].keys.end(), rows[i].keys.begin(), rows[i].keys.end());
      s.layers[i].values.insert(s.layers[i].values.end(), rows[i].values.begin(), rows[i].values.end());
    }
    for (model_group_state& g : s.groups) g.length += tokens;
  }
  /// The newest W tokens stay exact; the whole pages before them are made.
  [[nodiscard]] int committed(std::size_t group, model_group_state const& g) const {
    auto const& r = rules(group);
    return std::max(g.history, std::max(0, g.length - r.window_tokens) / r.page_tokens * r.page_tokens);
  }
  void commit(model_sequence& s) const {
    for (std::size_t i = 0; i < s.layers.size(); ++i) {
      auto const group = at(geometry_.layers[i].group);
      make_pages(s.layers[i], i, s.groups[group].history, committed(group, s.groups[group]));
    }
    for (std::size_t g = 0; g < s.groups.size(); ++g) {
      s.groups[g].history = committed(g, s.groups[g]);
      s.groups[g].reserved = std::max(s.groups[g].reserved, s.groups[g].history / rules(g).page_tokens);
      if (rules(g).sliding_window > 0) drop(s, g, s.groups[g].history - rules(g).sliding_window + 1);
    }
  }
  void drop(model_sequence& s, std::size_t group, int position) const {
    int const p = rules(group).page_tokens, first = std::min(std::max(0, position), s.groups[group].history) / p * p;
    if (first <= s.groups[group].first) return;
    s.groups[group].first = first;
    for_layers(group, [&](std::size_t i) {
      for (int page = 0; page < first / p; ++page) s.layers[i].pages[at(page)] = nullptr;
    });
  }
  /// True where every surviving token is as it was appended; nothing where it cannot be.
  [[nodiscard]] std::optional<bool> truncate(model_sequence& s, int length) const {
    bool exact = true;
    for (std::size_t g = 0; g < s.groups.size(); ++g) {
      auto const& state = s.groups[g];
      int const seen = rules(g).sliding_window > 0 ? length - rules(g).sliding_window + 1 : length;
      if (length < state.history && length > rules(g).sinks && state.first > 0 && seen < state.first) return {};
    }
    for (std::size_t g = 0; g < s.groups.size(); ++g) {
      auto& state = s.groups[g];
      int const p = rules(g).page_tokens, cut = length <= rules(g).sinks ? 0 : length / p * p;
      bool const cuts = length < state.history;
      for_layers(g, [&](std::size_t i) {
        if (cuts && cut < length && length > rules(g).sinks) exact &= cut_page(s.layers[i], i, cut, length);
        auto const& shape = geometry_.layers[i].shape;
        s.layers[i].keys.resize(at(length * shape.kv_heads * shape.key_dim));
        s.layers[i].values.resize(at(length * shape.kv_heads * shape.value_dim));
        if (cuts) s.layers[i].pages.resize(at(cut / p));
        if (cuts && cut == 0) s.layers[i].factors.clear();
      });
      state.length = length;
      if (!cuts) continue;
      state.history = cut, state.reserved = cut / p;
      if (length <= rules(g).sinks) state.first = 0;
    }
    return exact;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  template <class Fn>
  void for_layers(std::size_t group, Fn&& fn) const {
    for (std::size_t i = 0; i < geometry_.layers.size(); ++i)
      if (at(geometry_.layers[i].group) == group) fn(i);
  }
  void make_pages(model_layer_state& layer, std::size_t i, int begin, int end) const {
    auto const& shape = geometry_.layers[i].shape;
    for (; begin < end; begin += shape.page_tokens) {
      half const* const keys = layer.keys.data() + begin * shape.kv_heads * shape.key_dim;
      half const* const values = layer.values.data() + begin * shape.kv_heads * shape.value_dim;
      int const masked = begin == 0 ? geometry_.group_of(i).sinks : 0;
      if (begin == 0) layer.factors = codecs_[i]->factors(keys, masked);
      layer.pages.push_back(
          std::make_shared<std::vector<std::byte> const>(codecs_[i]->page(keys, values, masked, layer.factors.data())));
    }
  }
  /// Tokens [cut, length) become what their page says, sinks excepted.
  bool cut_page(model_layer_state& layer, std::size_t i, int cut, int length) const {
    auto const& shape = geometry_.layers[i].shape;
    if (geometry_.layers[i].is_lossless) return true;
    std::vector<float> keys(at(shape.page_tokens * shape.kv_heads * shape.key_dim)),
        values(at(shape.page_tokens * shape.kv_heads * shape.value_dim));
    codecs_[i]->decode(layer.pages[at(cut / shape.page_tokens)]->data(), layer.factors.data(), keys.data(),
                       values.data());
    int const begin = std::max(cut, geometry_.group_of(i).sinks);
    auto const put = [&](std::vector<half>& rows, std::vector<float> const& decoded, int width) {
      for (int x = begin * width; x < length * width; ++x)
        rows[at(x)] = kvant::window_element<half>(decoded[at(x - cut * width)]);
    };
    put(layer.keys, keys, shape.kv_heads * shape.key_dim);
    put(layer.values, values, shape.kv_heads * shape.value_dim);
    return false;
  }

  kvant::cache_geometry geometry_;
  std::vector<std::shared_ptr<model_codec>> codecs_;
};

}  // namespace support
