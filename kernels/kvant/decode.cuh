#pragma once

#include <cmath>
#include <cstdint>

#include <cuda_runtime_api.h>

#include <kvant/attention/options.hpp>
#include <kvant/block/architecture.cuh>
#include <kvant/block/decode_block.cuh>
#include <kvant/block/kernel_code.cuh>
#include <kvant/block/overlap.cuh>
#include <kvant/cache/views.hpp>
#include <kvant/plan.cuh>
#include <kvant/warp/copies.cuh>

namespace kvant::inline v0 {

/// What decode attention writes: O is half, bfloat16 or float.
template <class O>
struct decode_output {
  O* out = nullptr;              // [rows, q heads, value_dim]
  float* log_sum_exp = nullptr;  // [rows, q heads], natural log; may be null
  /// Device memory; may be null. Set to 1 + sequence where a page id is out of range, in builds that define
  /// KVANT_DEBUG_PAGE_IDS, which read page 0 in its place. Other builds do not look.
  std::int32_t* bad_page_id = nullptr;
};

namespace detail {

template <class Key, class Value, int Dim, int Columns, class T, class O>
__launch_bounds__(cta_warps * 32, 1) __global__ void decode_kernel(__grid_constant__ decode_arguments<T, O> const a) {
  using block_type = decode_block<Key, Value, Dim, Columns, T, O, copies_of<architecture>>;
  block_type block{a, *reinterpret_cast<typename block_type::storage*>(ptx::dynamic_shared()),
                   static_cast<int>(threadIdx.x / 32), static_cast<int>(threadIdx.x % 32)};
  block.run();
}

template <class Key, class Value, int Dim, int Columns, class T, class O>
cudaError_t launch_decode(decode_arguments<T, O> const& a, cudaStream_t stream) {
  auto const kernel = decode_kernel<Key, Value, Dim, Columns, T, O>;
  kernel_code code;
  if (cudaError_t const e = code_of(kernel, code); e != cudaSuccess) return e;
  int const bytes = with_copies_of(code.architecture, []<class Copies>(Copies) {
    constexpr int of_block = sizeof(typename decode_block<Key, Value, Dim, Columns, T, O, Copies>::storage);
    static_assert(of_block <= Copies::shared_bytes, "decode_block: more shared memory than an SM lends to a CTA");
    return of_block;
  });
  if (code.dynamic_shared_bytes < bytes)
    if (cudaError_t const e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        e != cudaSuccess)
      return e;
  return launch_overlapped(kernel, code, dim3(static_cast<unsigned>(a.plan.shape.multiprocessors)), cta_warps * 32,
                           bytes, stream, a);
}

}  // namespace detail

/// Attention of the newest rows of each sequence over its pages, window and sinks, with one softmax, in one launch.
/// Reads every page, window row and sink once. At most 8 rows x group ratio a sequence, causal. `plan` is this step's
/// (make_decode_plan_async on the same stream, for the same sequences), and its shape is the launch's. Stream-ordered;
/// allocates nothing, waits for nothing; graphs may capture it, and lengths, tables, slots and the contents of q may
/// change between replays. The result is the same bits from run to run. Launches that may run at once need plans of their
/// own: partial results lie in the plan's workspace, and CTAs wait there for those of CTAs launched before them.
///
/// cudaErrorInvalidValue: a null pointer, rows that are not 16-byte aligned (queries and output: 8, of floats 16),
/// queries of another shape than the plan's, code for sm_90 on a device that lends a CTA less than 227 KB.
/// cudaErrorNotSupported: an option other than a softmax_scale above 0, or rows that are a new chunk.
template <kv_format Key, kv_format Value, int Dim, class T, class O>
[[nodiscard]] cudaError_t decode_attention_async(layer_view<T> layer, queries_view<T> queries,
                                                 attention_options options, decode_output<O> output, decode_plan plan,
                                                 cudaStream_t stream) noexcept {
  static_assert(Dim == 128, "decode_attention_async: head_dim 128");
  static_assert(std::is_same_v<T, half> || std::is_same_v<T, bfloat16>,
                "decode_attention_async: window rows and queries of half or bfloat16");
  static_assert(is_exact<Key> == is_exact<Value>, "decode_attention_async: keys and values both exact, or neither");
  auto const aligned = [](std::uint64_t to, auto... x) { return ((static_cast<std::uint64_t>(x) % to == 0) && ...); };
  auto const address = [](void const* p) { return reinterpret_cast<std::uint64_t>(p); };
  if (options.soft_cap != 0 || options.sliding_window != 0 || options.sink_logits != nullptr ||
      options.alibi_slopes != nullptr || options.rows != query_rows::causal_tail || options.softmax_scale < 0)
    return cudaErrorNotSupported;
  if (!plan.shape.valid() || plan.shape.head_dim != Dim || plan.work == nullptr ||
      queries.q_heads != plan.shape.q_heads || queries.max_rows < 1 || queries.max_rows > plan.shape.max_rows ||
      queries.data == nullptr || output.out == nullptr || layer.window.base == nullptr || layer.window.rows < 1 ||
      layer.sequences.length == nullptr || layer.sequences.history == nullptr || layer.sequences.count < 0 ||
      layer.sequences.count > plan.shape.max_sequences || (layer.side.sinks > 0 && layer.side.sink_rows == nullptr) ||
      (Key::is_balanced && layer.side.factors == nullptr))
    return cudaErrorInvalidValue;
  if (!aligned(16, address(layer.pages.base), layer.pages.page_stride, layer.pages.head_stride,
               address(layer.window.base), layer.window.slot_stride, layer.window.side_stride, layer.window.head_stride,
               layer.window.row_stride, address(layer.side.sink_rows), layer.side.record_stride,
               layer.side.sink_side_stride, layer.side.sink_head_stride, layer.side.sink_row_stride,
               address(layer.side.factors), layer.side.factor_head_stride) ||
      !aligned(8, address(queries.data), queries.row_stride * 2, queries.head_stride * 2) ||
      !aligned(4 * sizeof(O), address(output.out)))
    return cudaErrorInvalidValue;
  if (layer.sequences.count == 0) return cudaSuccess;
  double const scale = options.softmax_scale != 0 ? options.softmax_scale : 1 / std::sqrt(static_cast<double>(Dim));
  std::int32_t const ratio = plan.shape.q_heads / plan.shape.kv_heads;
  detail::decode_arguments<T, O> const a{layer,
                                         queries,
                                         plan,
                                         output.out,
                                         output.log_sum_exp,
                                         output.bad_page_id,
                                         ratio,
                                         (1u << 16) / static_cast<std::uint32_t>(ratio) + 1,
                                         static_cast<float>(scale * 1.4426950408889634),
                                         0x3c003c00u};
  if (plan.shape.columns() == 4) return detail::launch_decode<Key, Value, Dim, 4>(a, stream);
  return detail::launch_decode<Key, Value, Dim, 8>(a, stream);
}

}  // namespace kvant::inline v0
