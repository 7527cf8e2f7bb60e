// expect: element
#include <kvant/cache/views.hpp>

#if defined(KVANT_CONTROL)
using rows = kvant::token_rows<float>;
#else
using rows = kvant::token_rows<double>;
#endif
static_assert(sizeof(rows) > 0);
