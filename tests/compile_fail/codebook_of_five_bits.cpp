// expect: a Lloyd-Max codebook has 1 to 4 bits
#include <kvant/format/policies.hpp>
#include <kvant/layout/page_layout.hpp>

#if defined(KVANT_CONTROL)
using keys = kvant::turboquant<4>;
#else
using keys = kvant::turboquant<5>;
#endif
float decoded() { return kvant::codec_of<keys>::decode(3, {}); }
