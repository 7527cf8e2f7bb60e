#include <cuda_fp16.h>
#include <kvant/kvant.hpp>

long long host_pages();

__global__ void round_to_half(float const* from, kvant::half* to, int count) {
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) to[i] = kvant::half{from[i]};
}

// Compiled and linked; the kernel runs where there is a GPU.
int main() {
  static_assert(sizeof(kvant::half) == sizeof(__half));
  constexpr kvant::page_shape shape{.kv_heads = 8, .key_dim = 128, .value_dim = 128};
  if (kvant::page_bytes<kvant::turboquant<4>, kvant::turboquant<4>>(shape) != host_pages()) return 1;
  round_to_half<<<1, 32>>>(nullptr, nullptr, 0);
  return 0;
}
