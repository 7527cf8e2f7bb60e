// expect: formats of several terms are not built yet
#include <kvant/format/policies.hpp>

using first = kvant::turboquant<4>::first_term;

#if defined(KVANT_CONTROL)
using keys = kvant::format<first>;
#else
using keys = kvant::format<first, kvant::q1_0<128>::first_term>;
#endif
static_assert(sizeof(keys) == 1);
