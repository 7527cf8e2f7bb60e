// expect: Tokens must be 0 to 63 (less than a page)
#include <kvant/plan/layer.hpp>

#if defined(KVANT_CONTROL)
using first_tokens = kvant::sinks<63>;
#else
using first_tokens = kvant::sinks<64>;
#endif
static_assert(first_tokens::tokens > 0);
