#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <kvant/cache/page_codec.hpp>
#include <kvant/plan/layer.hpp>

#include "support/catch.hpp"
#include "support/statistics.hpp"

namespace support {

using kvant::side;

inline constexpr std::array all_head_dims{64, 80, 96, 112, 128, 160, 192, 256, 320, 512, 576};

/// What a test needs to know of one side of a pair of formats, at run time.
struct side_facts {
  int dim = 0, bits = 0, scalars = 0, group_tokens = 1, group_channels = 0;  // of a codec's group
  bool exact = false, rotates = false, centered = false, balanced = false, along_tokens = false;
  bool has_levels = false;  // a codebook; else affine, sign or exact
  [[nodiscard]] int groups() const { return (dim + group_channels - 1) / group_channels; }  // of a token
};

/// A page_codec of any pair of formats: tests over all formats are compiled once.
class any_codec {
 public:
  explicit any_codec(std::string given) : name(std::move(given)) {}
  virtual ~any_codec() = default;
  [[nodiscard]] virtual std::unique_ptr<any_codec> another() const = 0;
  virtual kvant::status prepare(kvant::page_shape shape) = 0;
  [[nodiscard]] virtual kvant::page_shape shape() const = 0;
  [[nodiscard]] virtual int unit_bytes() const = 0;
  [[nodiscard]] virtual int header_bytes() const = 0;
  [[nodiscard]] virtual side_facts facts(side s) const = 0;
  [[nodiscard]] virtual kvant::bit_place code_bit(side s, int token, int channel, int k) const = 0;
  [[nodiscard]] virtual int token_scalar_byte(side s, int token, int index) const = 0;
  [[nodiscard]] virtual int channel_scalar_byte(side s, int token, int channel, int scalar) const = 0;
  [[nodiscard]] virtual int mean_byte(int channel) const = 0;
  [[nodiscard]] virtual int mean_scale_byte() const = 0;
  virtual std::int64_t encode(float const* k, float const* v, int masked, kvant::half const* f, std::byte* unit) = 0;
  virtual std::int64_t encode(kvant::half const* k, kvant::half const* v, int masked, kvant::half const* f,
                              std::byte* unit) = 0;
  virtual std::int64_t encode(kvant::bfloat16 const* k, kvant::bfloat16 const* v, int masked, kvant::half const* f,
                              std::byte* unit) = 0;
  virtual void decode(std::byte const* unit, kvant::half const* f, float* k, float* v) = 0;
  virtual void make_factors(std::vector<float> const& keys, int masked, kvant::half* f) = 0;

  std::string name;
};

/// Takes rows of float; with AllElements of half and bfloat16 too, at three times the time to compile.
template <class Key, class Value, bool AllElements = false>
class codec_of_pair final : public any_codec {
  using half = kvant::half;
  using bfloat16 = kvant::bfloat16;

 public:
  using any_codec::any_codec;
  [[nodiscard]] std::unique_ptr<any_codec> another() const override { return std::make_unique<codec_of_pair>(name); }
  kvant::status prepare(kvant::page_shape s) override { return codec_.prepare(s); }
  [[nodiscard]] kvant::page_shape shape() const override { return codec_.layout().shape; }
  [[nodiscard]] int unit_bytes() const override { return codec_.layout().unit_bytes(); }
  [[nodiscard]] int header_bytes() const override { return codec_.layout().header_bytes(); }
  [[nodiscard]] side_facts facts(side s) const override {
    return s == side::key ? facts_of<Key>(shape().key_dim) : facts_of<Value>(shape().value_dim);
  }
  [[nodiscard]] kvant::bit_place code_bit(side s, int token, int channel, int k) const override {
    auto const& layout = codec_.layout();
    return s == side::key ? layout.template code_bit<side::key>(token, channel, k)
                          : layout.template code_bit<side::value>(token, channel, k);
  }
  [[nodiscard]] int token_scalar_byte(side s, int token, int index) const override {
    auto const& layout = codec_.layout();
    return s == side::key ? layout.template token_scalar_byte<side::key>(token, index)
                          : layout.template token_scalar_byte<side::value>(token, index);
  }
  [[nodiscard]] int channel_scalar_byte(side s, int token, int channel, int scalar) const override {
    auto const& layout = codec_.layout();
    return s == side::key ? layout.template channel_scalar_byte<side::key>(token, channel, scalar)
                          : layout.template channel_scalar_byte<side::value>(token, channel, scalar);
  }
  [[nodiscard]] int mean_byte(int channel) const override { return codec_.layout().mean_byte(channel); }
  [[nodiscard]] int mean_scale_byte() const override { return codec_.layout().mean_scale_byte(); }
  std::int64_t encode(float const* k, float const* v, int masked, half const* f, std::byte* unit) override {
    return encode_rows(k, v, masked, f, unit);
  }
  std::int64_t encode(half const* k, half const* v, int masked, half const* f, std::byte* unit) override {
    return encode_rows(k, v, masked, f, unit);
  }
  std::int64_t encode(bfloat16 const* k, bfloat16 const* v, int masked, half const* f, std::byte* unit) override {
    return encode_rows(k, v, masked, f, unit);
  }
  void decode(std::byte const* unit, half const* f, float* k, float* v) override { codec_.decode_unit(unit, f, k, v); }
  void make_factors(std::vector<float> const& keys, int masked, half* f) override {
    if constexpr (Key::is_balanced)
      codec_.make_factors(keys.data(), shape().key_dim, masked, f);
    else
      FAIL("balance factors of keys that have none");
  }

 private:
  template <class F>
  static side_facts facts_of(int dim) {
    using codec = kvant::codec_of<F>;
    side_facts f{.dim = dim, .bits = codec::bits, .scalars = codec::scalars};
    f.group_tokens = kvant::grouping_of<F>::group_tokens, f.group_channels = kvant::grouping_of<F>::group_channels(dim);
    f.exact = codec::exact, f.rotates = kvant::rotation_of<F>::rotates, f.centered = F::is_centered;
    f.balanced = F::is_balanced, f.along_tokens = kvant::grouping_of<F>::along_tokens;
    f.has_levels = kvant::level_codec<codec>;
    return f;
  }
  template <class T>
  std::int64_t encode_rows(T const* k, T const* v, int masked, half const* f, std::byte* unit) {
    if constexpr (AllElements || std::is_same_v<T, float>)
      return codec_.encode_unit(k, shape().key_dim, v, shape().value_dim, masked, f, unit);
    FAIL("codec_of_pair: expected rows of float");
    return 0;
  }

  kvant::page_codec<Key, Value> codec_;
};

/// One unit: its rows, its bytes between guards, what they decode to.
template <kvant::element T>
class unit_of {
 public:
  unit_of(any_codec& codec, kvant::page_shape shape) : codec_(&codec) {
    auto const status = codec.prepare(shape);
    CAPTURE(codec.name, shape.key_dim, shape.value_dim, shape.page_tokens, status.message());
    REQUIRE(status.ok());
    shape_ = codec.shape();
    facts_ = {codec.facts(side::key), codec.facts(side::value)};
    keys.assign(count(side::key), T{0.f});
    values.assign(count(side::value), T{0.f});
    memory_.assign(size(codec.unit_bytes()) + 2 * guard, guard_byte);
  }

  [[nodiscard]] int tokens() const { return shape_.page_tokens; }
  [[nodiscard]] side_facts const& facts(side s) const { return facts_[s == side::key ? 0 : 1]; }
  [[nodiscard]] std::vector<T>& rows(side s) { return s == side::key ? keys : values; }
  [[nodiscard]] std::vector<float> const& decoded(side s) const {
    return s == side::key ? decoded_keys : decoded_values;
  }
  [[nodiscard]] T& at(side s, int token, int channel) { return rows(s)[size(token * facts(s).dim + channel)]; }
  [[nodiscard]] float input(side s, int token, int channel) { return static_cast<float>(at(s, token, channel)); }
  [[nodiscard]] float output(side s, int token, int channel) const {
    return decoded(s)[size(token * facts(s).dim + channel)];
  }
  /// Fn(side, token, channel) is what each value becomes.
  template <class Fn>
  void fill(Fn fn) {
    for (side const s : {side::key, side::value})
      for (int t = 0; t < tokens(); ++t)
        for (int c = 0; c < facts(s).dim; ++c) at(s, t, c) = T{static_cast<float>(fn(s, t, c))};
  }
  void fill_normal(std::uint64_t seed, double scale = 1) {
    generator random{seed};
    fill([&](side, int, int) { return scale * random.normal(); });
  }
  /// Each token's vector gets this norm.
  void fill_normal_of_norm(std::uint64_t seed, double norm) {
    fill_normal(seed);
    for (side const s : {side::key, side::value})
      for (int t = 0; t < tokens(); ++t) {
        double const factor = norm / norm_of(s, t);
        for (int c = 0; c < facts(s).dim; ++c)
          at(s, t, c) = T{static_cast<float>(factor * static_cast<double>(input(s, t, c)))};
      }
  }

  /// Balance factors are made from the rows the first time they are needed, or what `factors` holds.
  std::int64_t encode(int masked = 0, std::byte before = std::byte{0x5a}) {
    take_codec();
    if (facts(side::key).balanced && factors.empty()) make_factors(masked);
    std::fill(memory_.begin() + guard, memory_.end() - guard, before);
    std::int64_t const not_finite = codec_->encode(keys.data(), values.data(), masked, factor_data(), unit());
    bool const guards_intact =
        std::all_of(memory_.begin(), memory_.begin() + guard, [](std::byte b) { return b == guard_byte; }) &&
        std::all_of(memory_.end() - guard, memory_.end(), [](std::byte b) { return b == guard_byte; });
    REQUIRE(guards_intact);
    return not_finite;
  }
  void make_factors(int masked) {
    std::vector<float> plain;
    for (T const k : keys) plain.push_back(static_cast<float>(k));
    factors.resize(size(facts(side::key).dim));
    codec_->make_factors(plain, masked, factors.data());
  }
  void decode() {
    take_codec();
    decoded_keys.assign(count(side::key), std::numeric_limits<float>::quiet_NaN());
    decoded_values.assign(count(side::value), std::numeric_limits<float>::quiet_NaN());
    codec_->decode(unit(), factor_data(), decoded_keys.data(), decoded_values.data());
  }
  void encode_and_decode(int masked = 0) {
    encode(masked);
    decode();
  }

  [[nodiscard]] std::byte* unit() { return memory_.data() + guard; }
  [[nodiscard]] std::vector<std::byte> bytes() const { return {memory_.begin() + guard, memory_.end() - guard}; }
  [[nodiscard]] kvant::half half_at(int byte) const {
    kvant::half h{};
    std::memcpy(&h, memory_.data() + guard + byte, 2);
    return h;
  }
  [[nodiscard]] std::uint32_t code(side s, int token, int channel) const {
    std::uint32_t code = 0;
    for (int k = 0; k < facts(s).bits; ++k) {
      auto const place = codec_->code_bit(s, token, channel, k);
      code |= (std::to_integer<std::uint32_t>(memory_[size(place.byte) + guard]) >> place.bit & 1u) << k;
    }
    return code;
  }
  /// The scalars of the group of a token and channel: one half for each of the codec's scalars.
  [[nodiscard]] std::vector<kvant::half> scalars(side s, int token, int channel) const {
    side_facts const& f = facts(s);
    std::vector<kvant::half> all;
    for (int i = 0; i < f.scalars; ++i)
      all.push_back(half_at(f.along_tokens
                                ? codec_->channel_scalar_byte(s, token, channel, i)
                                : codec_->token_scalar_byte(s, token, channel / f.group_channels * f.scalars + i)));
    return all;
  }

  [[nodiscard]] double norm_of(side s, int token) {
    double sum = 0;
    for (int c = 0; c < facts(s).dim; ++c) sum += square(static_cast<double>(input(s, token, c)));
    return std::sqrt(sum);
  }
  /// ||decoded - x|| / ||x|| of a token.
  [[nodiscard]] double relative_error(side s, int token) {
    double sum = 0;
    for (int c = 0; c < facts(s).dim; ++c)
      sum += square(static_cast<double>(output(s, token, c)) - static_cast<double>(input(s, token, c)));
    return std::sqrt(sum) / norm_of(s, token);
  }
  /// Of a token's vector and what it decodes to; 0 where that is zero.
  [[nodiscard]] double cosine(side s, int token) {
    double xy = 0, yy = 0;
    for (int c = 0; c < facts(s).dim; ++c) {
      auto const y = static_cast<double>(output(s, token, c));
      xy += y * static_cast<double>(input(s, token, c)), yy += y * y;
    }
    return yy > 0 ? xy / (std::sqrt(yy) * norm_of(s, token)) : 0;
  }
  /// Worst relative error of the tokens from `first` on.
  [[nodiscard]] double worst_error(side s, int first = 0) {
    double worst = 0;
    for (int t = first; t < tokens(); ++t) worst = std::max(worst, relative_error(s, t));
    return worst;
  }
  [[nodiscard]] bool decoded_finite() const {
    auto const finite = [](float x) { return std::isfinite(x); };
    return std::all_of(decoded_keys.begin(), decoded_keys.end(), finite) &&
           std::all_of(decoded_values.begin(), decoded_values.end(), finite);
  }
  /// Of every half that the unit stores beside codes.
  [[nodiscard]] bool scalars_finite() const {
    return all_scalars([](kvant::half h) { return (h.bits & 0x7c00) != 0x7c00; });
  }
  [[nodiscard]] bool scalars_are_zero() const {
    return all_scalars([](kvant::half h) { return (h.bits & 0x7fff) == 0; });
  }

  std::vector<T> keys, values;  // [page_tokens, dim]
  std::vector<kvant::half> factors;
  std::vector<float> decoded_keys, decoded_values;

 private:
  static constexpr int guard = 64;
  static constexpr std::byte guard_byte{0xc3};
  static std::size_t size(int i) { return static_cast<std::size_t>(i); }
  static double square(double x) { return x * x; }
  [[nodiscard]] std::size_t count(side s) const { return size(tokens() * facts(s).dim); }
  [[nodiscard]] kvant::half const* factor_data() const { return factors.empty() ? nullptr : factors.data(); }

  template <class Test>
  [[nodiscard]] bool all_scalars(Test test) const {
    bool all = codec_->header_bytes() == 0 || test(half_at(codec_->mean_scale_byte()));
    for (side const s : {side::key, side::value})
      for (int t = 0; t < tokens(); t += facts(s).group_tokens)
        for (int c = 0; c < facts(s).dim; c += facts(s).group_channels)
          for (kvant::half const h : scalars(s, t, c)) all = all && test(h);
    return all;
  }

  /// Other units may have used the codec for another shape.
  void take_codec() {
    if (codec_->shape() != shape_) REQUIRE(codec_->prepare(shape_).ok());
  }

  any_codec* codec_;
  kvant::page_shape shape_;
  std::array<side_facts, 2> facts_;
  std::vector<std::byte> memory_;
};

}  // namespace support
