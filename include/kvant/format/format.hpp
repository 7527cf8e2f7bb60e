#pragma once

#include <concepts>
#include <type_traits>

#include <kvant/config.hpp>
#include <kvant/format/grouping.hpp>
#include <kvant/format/rotation.hpp>
#include <kvant/format/scale.hpp>
#include <kvant/half.hpp>

namespace kvant::inline v0 {

/// One term of a format: how a run of channels becomes codes.
template <class Rotation, class Grouping, class Codec, class Scale = typename Codec::default_scale>
struct term {
  using rotation = Rotation;
  using grouping = Grouping;
  using codec = Codec;
  using scale = Scale;
};

/// Which channels share a balance factor: the two of a RoPE pair.
struct half_split_pairs {  // c and c + dim / 2 (GPT-NeoX, Hugging Face Llama and Qwen)
  [[nodiscard]] KVANT_HD static constexpr int partner(int channel, int dim) {
    return channel < dim / 2 ? channel + dim / 2 : channel - dim / 2;
  }
};
struct adjacent_pairs {  // 2c and 2c + 1 (GPT-J, original Llama)
  [[nodiscard]] KVANT_HD static constexpr int partner(int channel, int) { return channel ^ 1; }
};
struct single_channels {  // keys without RoPE
  [[nodiscard]] KVANT_HD static constexpr int partner(int channel, int) { return channel; }
};
/// RoPE on the first Channels channels alone, paired by Pairs; the rest are pairs of one.
template <int Channels, class Pairs>
struct first_pairs {
  [[nodiscard]] KVANT_HD static constexpr int partner(int channel, int) {
    return channel < Channels ? Pairs::partner(channel, Channels) : channel;
  }
};

/// A key or value format: a list of terms whose scores add up. One term now; what reads a format goes through `terms`.
template <class... Terms>
struct format {
  static_assert(sizeof...(Terms) == 1, "format<Terms...>: formats of several terms are not built yet");
};
template <class Term>
struct format<Term> {
  using first_term = Term;
  static constexpr int terms = 1;
  static constexpr bool is_centered = false, is_balanced = false;
};

/// Keys with the page's mean taken off before coding and added back as q . mean: what rotated formats need where a
/// model's keys have a bias (the idea of KIVI's zero point, for any codec). For each kv head and page: the per-channel
/// mean of the page's tokens, sinks excluded, stored rotated as one int8 a channel and one half scale; the residual is
/// coded against the mean as stored, so its rounding costs the codes, not the result. A channel whose mean is not finite
/// stores mean 0.
template <class F>
struct centered : F {
  static_assert(!F::is_centered && !F::is_balanced, "centered<F>: F must be neither centered nor balanced");
  using inner = F;
  static constexpr bool is_centered = true;
};

/// Centered keys divided, before the rotation, by a static factor for each channel, by which q is multiplied once per
/// step: the square root of the root mean square residual of the channel's RoPE pair over the sequence's first page
/// (sinks excluded), at least 1e-4; the residual counts as no less than 2^-9 of the pair's larger mean. The factors are
/// one half vector per sequence and kv head (side record); pages carry none.
template <class F, class Pairs = half_split_pairs>
struct balanced : F {
  static_assert(F::is_centered, "balanced<F>: F must be centered: balanced<centered<...>>");
  static_assert(!F::is_balanced, "balanced<F>: F is balanced already");
  using inner = F;
  using pairs = Pairs;
  static constexpr bool is_balanced = true;
};

/// The balance factor that a stored half stands for: 1 where it is not finite or not positive.
[[nodiscard]] KVANT_HD constexpr float effective_factor(half stored) {
  float const f = static_cast<float>(stored);
  return f > 0.f && f - f == 0.f ? f : 1.f;
}

template <class F>
concept kv_format = std::is_empty_v<F> && requires {
  typename F::first_term;
  { F::is_centered } -> std::convertible_to<bool>;
};

template <class F>
using codec_of = typename F::first_term::codec;
template <class F>
using rotation_of = typename F::first_term::rotation;
template <class F>
using grouping_of = typename F::first_term::grouping;
template <class F, side S>
using scale_of = typename resolved_scale<typename F::first_term::scale, S>::type;

/// Stored as it came: no rotation, no centering, elements of a type of ours.
template <class F>
inline constexpr bool is_exact = codec_of<F>::exact && !rotation_of<F>::rotates && !F::is_centered;

}  // namespace kvant::inline v0
