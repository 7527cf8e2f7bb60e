// The randomized Hadamard of every head size on one core: sixteen vectors side by side, as the encoder takes them, and
// one vector, as a query is. Bytes are those of the float input.
#include <cstddef>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include <kvant/format/rotation.hpp>

namespace {

template <int Lanes>
void rotate(benchmark::State& state) {
  auto const dim = static_cast<int>(state.range(0));
  std::mt19937 random{7};
  std::normal_distribution<float> normal;
  std::vector<float> in(static_cast<std::size_t>(dim) * Lanes), out(in.size());
  for (float& x : in) x = normal(random);
  for (auto _ : state) {
    kvant::randomized_hadamard<>::forward<Lanes>(in.data(), out.data(), dim);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(in.size() * sizeof(float)) * state.iterations());
}

void head_sizes(benchmark::internal::Benchmark* b) {
  for (int dim : {64, 80, 96, 112, 128, 160, 192, 256, 320, 512, 576}) b->ArgName("head_dim")->Arg(dim);
}

}  // namespace

BENCHMARK(rotate<16>)->Apply(head_sizes);
BENCHMARK(rotate<1>)->Apply(head_sizes);
