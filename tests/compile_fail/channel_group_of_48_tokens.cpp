// expect: Tokens must be 32, 64 or 128
#include <kvant/format/policies.hpp>

#if defined(KVANT_CONTROL)
using grouping = kvant::per_channel<64>;
#else
using grouping = kvant::per_channel<48>;
#endif
static_assert(grouping::group_channels(128) == 1);
