// expect: F must be neither centered nor balanced
#include <kvant/format/policies.hpp>

#if defined(KVANT_CONTROL)
using keys = kvant::centered<kvant::turboquant<4>>;
#else
using keys = kvant::centered<kvant::centered<kvant::turboquant<4>>>;
#endif
static_assert(keys::is_centered);
