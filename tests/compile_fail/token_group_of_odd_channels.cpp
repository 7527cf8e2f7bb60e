// expect: Channels must be a multiple of 16
#include <kvant/format/policies.hpp>
#include <kvant/layout/page_layout.hpp>

#if defined(KVANT_CONTROL)
using values = kvant::kivi_value<2, 48>;
#else
using values = kvant::kivi_value<2, 40>;
#endif
static_assert(kvant::page_bytes<kvant::turboquant<2>, values>({.kv_heads = 2, .key_dim = 96, .value_dim = 96}) > 0);
