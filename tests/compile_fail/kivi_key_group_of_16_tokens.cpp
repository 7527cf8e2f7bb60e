// expect: Tokens must be 32, 64 or 128
#include <kvant/format/policies.hpp>
#include <kvant/layout/page_layout.hpp>

#if defined(KVANT_CONTROL)
using layout = kvant::page_layout<kvant::kivi_key<2, 32>, kvant::kivi_value<2, 16>>;
#else
using layout = kvant::page_layout<kvant::kivi_key<2, 16>, kvant::kivi_value<2, 16>>;
#endif
static_assert(layout::least_page_tokens == 64);
