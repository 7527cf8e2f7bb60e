// expect: F must be centered
#include <kvant/format/policies.hpp>

#if defined(KVANT_CONTROL)
using keys = kvant::balanced<kvant::centered<kvant::turboquant<4>>>;
#else
using keys = kvant::balanced<kvant::turboquant<4>>;
#endif
static_assert(keys::is_balanced);
