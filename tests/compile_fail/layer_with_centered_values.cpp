// expect: only keys are centered or balanced
#include <kvant/plan/layer.hpp>

#if defined(KVANT_CONTROL)
using one = kvant::layer<kvant::centered<kvant::turboquant<4>>, kvant::turboquant<4>>;
#else
using one = kvant::layer<kvant::centered<kvant::turboquant<4>>, kvant::centered<kvant::turboquant<4>>>;
#endif
static_assert(one::window == 128);
