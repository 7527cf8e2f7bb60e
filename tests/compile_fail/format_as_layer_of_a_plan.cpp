// expect: a part is a layer<...>, or a repeat<...> of parts
#include <kvant/plan/plan.hpp>

#if defined(KVANT_CONTROL)
using part = kvant::turboquant_3bit;
#else
using part = kvant::turboquant<3>;
#endif
static_assert(kvant::plan<kvant::exact_layer, part>::size == 2);
