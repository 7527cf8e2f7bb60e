// expect: Channels must be a multiple of 16
#include <kvant/format/policies.hpp>

#if defined(KVANT_CONTROL)
using grouping = kvant::per_token<32>;
#else
using grouping = kvant::per_token<20>;
#endif
static_assert(grouping::groups(128) > 0);
