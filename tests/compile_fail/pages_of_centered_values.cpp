// expect: values are never centered or balanced
#include <kvant/cache/page_codec.hpp>
#include <kvant/format/policies.hpp>

#if defined(KVANT_CONTROL)
using codec = kvant::page_codec<kvant::turboquant<4>, kvant::turboquant<4>>;
#else
using codec = kvant::page_codec<kvant::turboquant<4>, kvant::centered<kvant::turboquant<4>>>;
#endif
static_assert(sizeof(codec) > 0);
