#pragma once

namespace kvant::inline v0::detail {

inline constexpr int architecture = EMULATED_ARCHITECTURE;

}  // namespace kvant::inline v0::detail
