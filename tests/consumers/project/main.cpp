#include <kvant/kvant.hpp>

#include <cstdio>

int other_pages();

// What a layer's pages cost, from the type alone; the same in two units.
int main() {
  using keys = kvant::centered<kvant::turboquant<4>>;
  using values = kvant::turboquant<3>;
  constexpr kvant::page_shape shape{.kv_heads = 8, .key_dim = 128, .value_dim = 128};
  static_assert(kvant::bits_per_value<keys, values>(shape) < 3.8);
  std::printf("kvant %d.%d.%d: %.4f bits a value, %lld bytes a page\n", KVANT_VERSION_MAJOR, KVANT_VERSION_MINOR,
              KVANT_VERSION_PATCH, kvant::bits_per_value<keys, values>(shape),
              static_cast<long long>(kvant::page_bytes<keys, values>(shape)));
  return kvant::page_bytes<keys, values>(shape) == other_pages() ? 0 : 1;
}
