#pragma once

// A CUDA runtime for tests without a GPU: memory is the host's, a stream is its caller, a captured graph is a list of
// what to do, and a launch runs its blocks one after the other, every thread a fiber (emulator.hpp). Checks what a
// kernel computes; it has no memory model, so no race shows here.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __shared__ alignas(1024) static
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)

struct float2 {
  float x, y;
};
struct float3 {
  float x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
  constexpr explicit dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorNotSupported = 801 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor, cudaDevAttrMultiProcessorCount };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };
constexpr unsigned cudaStreamNonBlocking = 1;

namespace emulated {

using work = std::function<void()>;
using work_list = std::vector<work>;
inline work_list* capturing = nullptr;
inline int multiprocessors = 12;

/// Does it now, or when the graph that is being captured is launched.
inline cudaError_t submit(work w) {
  if (capturing != nullptr)
    capturing->push_back(std::move(w));
  else
    w();
  return cudaSuccess;
}

}  // namespace emulated

using cudaStream_t = struct emulated_stream*;
using cudaGraph_t = emulated::work_list*;
using cudaGraphExec_t = emulated::work_list*;

inline char const* cudaGetErrorString(cudaError_t) { return "emulated"; }
inline cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr a, int) {
  *value = a == cudaDevAttrMultiProcessorCount ? emulated::multiprocessors : 9;
  return cudaSuccess;
}
inline cudaError_t cudaMalloc(void** p, std::size_t n) {
  *p = std::aligned_alloc(256, (n + 255) / 256 * 256);
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* p) { return std::free(p), cudaSuccess; }
inline cudaError_t cudaMemset(void* p, int byte, std::size_t n) { return std::memset(p, byte, n), cudaSuccess; }
inline cudaError_t cudaMemcpy(void* to, void const* from, std::size_t n, cudaMemcpyKind) {
  return std::memcpy(to, from, n), cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* p, int byte, std::size_t n, cudaStream_t) {
  return emulated::submit([=] { std::memset(p, byte, n); });
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { return *s = nullptr, cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  return emulated::capturing = new emulated::work_list, cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  return *graph = std::exchange(emulated::capturing, nullptr), cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return *exec = new emulated::work_list(*graph), cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  for (auto const& w : *exec) w();
  return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, cudaSuccess; }
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
// Code for EMULATED_ARCHITECTURE, on a device that lends as much shared memory as the least of its kind.
#if !defined(EMULATED_ARCHITECTURE)
#define EMULATED_ARCHITECTURE 90
#endif
struct cudaFuncAttributes {
  int ptxVersion, maxDynamicSharedSizeBytes;
};
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel) {
  return *attributes = {EMULATED_ARCHITECTURE, 49152}, cudaSuccess;
}
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int bytes) {
  return bytes <= (EMULATED_ARCHITECTURE == 90 ? 232448 : 101376) ? cudaSuccess : cudaErrorInvalidValue;
}

#include "emulator.hpp"
