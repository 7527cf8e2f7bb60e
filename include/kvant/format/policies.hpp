#pragma once

#include <cstdint>

#include <kvant/format/affine.hpp>
#include <kvant/format/exact.hpp>
#include <kvant/format/format.hpp>
#include <kvant/format/lloyd_max.hpp>
#include <kvant/format/sign.hpp>

namespace kvant::inline v0 {

/// TurboQuant_mse (arXiv 2504.19874, algorithm 1) with a randomized Hadamard: B bits a value and one half a vector.
/// The scale rule goes by side unless given: keys least squares, values unbiased.
template <int Bits, class Scale = scale_by_side>
using turboquant = format<term<randomized_hadamard<>, per_token<>, lloyd_max<Bits>, Scale>>;

/// KIVI keys (arXiv 2402.02750): per channel over Tokens tokens, affine.
template <int Bits, int Tokens = 32>
using kivi_key = format<term<no_rotation, per_channel<Tokens>, affine<Bits>>>;
/// KIVI values: per token over Channels channels, affine.
template <int Bits, int Channels = 32>
using kivi_value = format<term<no_rotation, per_token<Channels>, affine<Bits>>>;

/// Bonsai's Q1_0: sign bits and the mean magnitude of runs of Channels channels.
template <int Channels = 128>
using q1_0 = format<term<no_rotation, per_token<Channels>, sign>>;
/// The same after a randomized Hadamard.
template <int Channels = 128>
using q1_0_rotated = format<term<randomized_hadamard<>, per_token<Channels>, sign>>;

/// Untouched elements in plain rows.
template <element T>
using exact = format<term<no_rotation, per_token<>, exact_codec<T>>>;

}  // namespace kvant::inline v0
