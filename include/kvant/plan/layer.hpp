#pragma once

#include <kvant/format/policies.hpp>

namespace kvant::inline v0 {

/// The newest Tokens tokens of a sequence stay exact.
template <int Tokens>
struct window {
  static_assert(Tokens >= 0, "window<Tokens>: Tokens must not be negative");
  static constexpr int tokens = Tokens;
};
/// The first Tokens tokens of a sequence stay exact.
template <int Tokens>
struct sinks {
  static_assert(Tokens >= 0 && Tokens < 64, "sinks<Tokens>: Tokens must be 0 to 63 (less than a page)");
  static constexpr int tokens = Tokens;
};

/// What one layer's cache holds: a format for keys, one for values, an exact window and exact sinks.
template <kv_format Key, kv_format Value, class Window = window<128>, class Sinks = sinks<4>>
struct layer {
  static_assert(!Value::is_centered && !Value::is_balanced, "layer<Key, Value>: only keys are centered or balanced");
  using key = Key;
  using value = Value;
  static constexpr int window = Window::tokens, sinks = Sinks::tokens;
};

/// The default keys: balanced and centered, because rotation alone fails on keys with a bias. Pairs is the model's RoPE
/// convention.
template <int Bits, class Pairs = half_split_pairs>
using turboquant_key = balanced<centered<turboquant<Bits>>, Pairs>;

/// Keys of KeyBits, values of ValueBits.
template <int KeyBits, int ValueBits, class Pairs = half_split_pairs>
using turboquant_layer = layer<turboquant_key<KeyBits, Pairs>, turboquant<ValueBits>>;

using exact_layer = layer<exact<half>, exact<half>, window<0>, sinks<0>>;
using turboquant_4bit = turboquant_layer<4, 4>;
using turboquant_3bit = turboquant_layer<3, 3>;
using turboquant_2bit = turboquant_layer<2, 2>;
using turboquant_1bit = turboquant_layer<1, 1>;
using k4v2 = turboquant_layer<4, 2>;
using k3v2 = turboquant_layer<3, 2>;
/// Rotation alone, as published: for comparison, and for engines whose keys have no bias.
using plain_turboquant_4bit = layer<turboquant<4>, turboquant<4>>;
using plain_turboquant_3bit = layer<turboquant<3>, turboquant<3>>;
using plain_turboquant_2bit = layer<turboquant<2>, turboquant<2>>;
using plain_turboquant_1bit = layer<turboquant<1>, turboquant<1>>;
/// KIVI (arXiv 2402.02750) in groups of 32 both ways, of 64, and at 4 bits of 128.
using kivi_2bit = layer<kivi_key<2, 32>, kivi_value<2, 32>>;
using kivi_2bit_g64 = layer<kivi_key<2, 64>, kivi_value<2, 64>>;
using kivi_4bit = layer<kivi_key<4, 128>, kivi_value<4, 128>>;
/// Bonsai's Q1_0 as published, and after a rotation.
using bonsai_1bit = layer<q1_0<128>, q1_0<128>>;
using bonsai_1bit_rotated = layer<q1_0_rotated<128>, q1_0_rotated<128>>;

}  // namespace kvant::inline v0
