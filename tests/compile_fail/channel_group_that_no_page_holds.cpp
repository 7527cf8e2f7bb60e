// expect: Tokens must be 32, 64 or 128
#include <kvant/format/policies.hpp>
#include <kvant/layout/page_layout.hpp>

#if defined(KVANT_CONTROL)
using keys = kvant::kivi_key<2, 64>;
#else
using keys = kvant::kivi_key<2, 48>;
#endif
static_assert(kvant::page_bytes<keys, kvant::turboquant<2>>({.kv_heads = 2, .key_dim = 96, .value_dim = 96}) > 0);
