// Every kernel, for the pairs of formats and the types that are tightest for registers: what ptxas makes of them for each
// architecture; a spilled register is an error. As a program it needs no GPU: every launcher refuses a layer without
// memory.
#include <cstdio>

#include <kvant/append.cuh>
#include <kvant/commit.cuh>
#include <kvant/decode.cuh>
#include <kvant/merge.cuh>
#include <kvant/plan/layer.hpp>
#include <kvant/prefill.cuh>
#include <kvant/step.cuh>

namespace {

using kvant::bfloat16;
using kvant::half;
constexpr int dim = 128;
constexpr cudaStream_t stream = nullptr;
int failures = 0;

void refused(char const* what, cudaError_t e) {
  if (e == cudaErrorInvalidValue) return;
  std::printf("%s without memory: %s\n", what, cudaGetErrorString(e));
  ++failures;
}

template <class Key, class Value, class T, class O>
void decode() {
  refused("decode", kvant::decode_attention_async<Key, Value, dim, T, O>({}, {}, {}, {}, {}, stream));
}
template <class Key, class Value, class T>
void write() {
  refused("commit", kvant::commit_async<Key, Value, dim, half>({}, {}, stream));
  refused("prefill", kvant::prefill_async<Key, Value, dim, half, T>({}, {}, {}, stream));
}
template <int B>
using tq = kvant::turboquant<B>;
template <int B>
using key = kvant::turboquant_key<B>;

}  // namespace

int main() {
  decode<key<4>, tq<4>, half, half>();
  decode<key<3>, tq<3>, half, half>();
  decode<key<4>, tq<4>, bfloat16, bfloat16>();
  decode<key<4>, tq<3>, bfloat16, bfloat16>();
  decode<key<3>, tq<3>, bfloat16, bfloat16>();
  decode<tq<4>, tq<4>, bfloat16, bfloat16>();
  decode<tq<3>, tq<3>, bfloat16, bfloat16>();
  decode<kvant::exact<half>, kvant::exact<half>, half, half>();
  decode<kvant::exact<bfloat16>, kvant::exact<bfloat16>, bfloat16, bfloat16>();
  write<key<4>, tq<4>, bfloat16>();
  write<key<3>, tq<3>, half>();
  write<tq<3>, tq<3>, bfloat16>();
  refused("plan", kvant::make_decode_plan_async<key<4>, tq<4>, dim>({}, {}, 0, stream));
  refused("append", kvant::append_async<half, half>({}, {}, stream));
  refused("append", kvant::append_async<half, bfloat16>({}, {}, stream));
  refused("merge", kvant::merge_states_async<half, half>({}, {}, stream));
  refused("merge", kvant::merge_states_async<float, bfloat16>({}, {}, stream));
  refused("begin_step", kvant::begin_step_async({}, stream));
  refused("end_step", kvant::end_step_async({}, 0, 64, stream));
  return failures == 0 ? 0 : 1;
}
