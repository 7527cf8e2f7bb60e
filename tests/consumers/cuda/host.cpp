#include <cuda_runtime_api.h>
#include <kvant/kvant.hpp>

long long host_pages();

long long host_pages() {
  int version = 0;
  if (cudaRuntimeGetVersion(&version) != cudaSuccess || version < 12000) return -1;
  return kvant::page_bytes<kvant::turboquant<4>, kvant::turboquant<4>>(
      {.kv_heads = 8, .key_dim = 128, .value_dim = 128});
}
