#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include <kvant/cache/views.hpp>

namespace gpu {

inline void check(cudaError_t e) {
  if (e != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(e));
}

/// Ends the program with 77, which ctest takes as skipped, where there is no GPU that the kernels run on.
inline bool exit_without_device() {
  int count = 0, major = 0;
  bool const any = cudaGetDeviceCount(&count) == cudaSuccess && count > 0 &&
                   cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && major >= 8;
  if (!any) {
    std::fputs("skipped: no GPU of compute capability 8.0 or later here\n", stderr);
    std::_Exit(77);
  }
  return true;
}

inline int multiprocessors() {
  int device = 0, n = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
  return n;
}

/// Device memory with a host's way in and out.
template <class T>
class buffer {
 public:
  explicit buffer(std::size_t n) : n_(n) {
    if (n > 0) check(cudaMalloc(&p_, n * sizeof(T)));
  }
  explicit buffer(std::vector<T> const& from) : buffer(from.size()) { upload(from); }
  buffer(buffer const&) = delete;
  ~buffer() { cudaFree(p_); }
  T* get() const { return static_cast<T*>(p_); }
  void upload(std::vector<T> const& from) {
    if (n_ > 0) check(cudaMemcpy(p_, from.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  void fill(int byte) {
    if (n_ > 0) check(cudaMemset(p_, byte, n_ * sizeof(T)));
  }
  std::vector<T> host() const {
    std::vector<T> to(n_);
    if (n_ > 0) check(cudaMemcpy(to.data(), p_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
  }

 private:
  void* p_ = nullptr;
  std::size_t n_;
};

/// The memory of a host cache on the device, every byte of it.
template <class T>
struct mirror {
  buffer<std::byte> pages, window, side;
  buffer<std::int32_t> ids, length, history, first, slot, record;
  kvant::layer_view<T> view;

  template <class Cache>
  explicit mirror(Cache const& c)
      : pages(c.page_bytes),
        window(c.window_bytes),
        side(c.side_bytes),
        ids(c.ids),
        length(c.length),
        history(c.history),
        first(c.first),
        slot(c.slot),
        record(c.records),
        view(c.view) {
    view.pages.base = pages.get(), view.window.base = window.get();
    if (view.side.factors != nullptr) view.side.factors = side.get() + (c.view.side.factors - c.view.side.sink_rows);
    view.side.sink_rows = side.get();
    view.table.ids = ids.get();
    view.sequences.length = length.get(), view.sequences.history = history.get(), view.sequences.first = first.get();
    view.sequences.slot = slot.get(), view.sequences.record = record.get();
  }
};

/// What launch(stream) puts on a stream, once as called or in a graph that can be replayed.
class launched {
 public:
  template <class Launch>
  launched(bool captured, Launch launch) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    if (captured) {
      cudaGraph_t graph;
      check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
      launch(stream_);
      check(cudaStreamEndCapture(stream_, &graph));
      check(cudaGraphInstantiate(&graph_, graph, 0));
      check(cudaGraphDestroy(graph));
      replay();
    } else {
      launch(stream_);
      check(cudaStreamSynchronize(stream_));
    }
  }
  launched(launched const&) = delete;
  ~launched() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    cudaStreamDestroy(stream_);
  }
  void replay() {
    check(cudaGraphLaunch(graph_, stream_));
    check(cudaStreamSynchronize(stream_));
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace gpu
