#include <kvant/kvant.hpp>

int other_pages();

int other_pages() {
  constexpr kvant::page_shape shape{.kv_heads = 8, .key_dim = 128, .value_dim = 128};
  return static_cast<int>(kvant::page_bytes<kvant::centered<kvant::turboquant<4>>, kvant::turboquant<3>>(shape));
}
