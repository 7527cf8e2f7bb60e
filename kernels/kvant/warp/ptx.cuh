#pragma once

#include <cstddef>
#include <cstdint>

#include <kvant/config.hpp>
#include <kvant/half.hpp>

// One instruction a function. Lane 4g + t of a warp, g = 0..7, t = 0..3.
namespace kvant::inline v0::ptx {

/// Byte permute: nibble i of `selector` picks byte i of the result out of the eight bytes b:a; its top bit asks for
/// eight times that byte's sign instead.
KVANT_HD inline std::uint32_t prmt(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
#if defined(__CUDA_ARCH__)
  std::uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
  return r;
#else
  std::uint32_t r = 0;
  for (int i = 0; i < 4; ++i) {
    std::uint32_t const pick = selector >> (4 * i) & 15u;
    std::uint32_t const byte = ((pick & 4u) != 0 ? b : a) >> (8 * (pick & 3u)) & 255u;
    r |= ((pick & 8u) == 0 ? byte : (byte & 128u) != 0 ? 255u : 0u) << (8 * i);
  }
  return r;
#endif
}
__device__ __forceinline__ float exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float log2(float x) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
/// 8 x 8 transpose of 16-bit values over the warp.
__device__ __forceinline__ std::uint32_t movmatrix(std::uint32_t a) {
  std::uint32_t r;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(a));
  return r;
}
__device__ __forceinline__ std::uint32_t half2_bits(float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float low_half(std::uint32_t pair) {
  float r;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(r) : "r"(pair));
  return r;
}
__device__ __forceinline__ float high_half(std::uint32_t pair) {
  float r;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(r) : "r"(pair));
  return r;
}
__device__ __forceinline__ std::uint32_t max_halves(std::uint32_t a, std::uint32_t b) {
  std::uint32_t r;
  asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
/// Whether a half of a is greater than the same half of b.
__device__ __forceinline__ bool any_greater(std::uint32_t a, std::uint32_t b) {
  std::uint32_t r;
  asm("{ .reg .pred p, q; setp.gt.f16x2 p|q, %1, %2; or.pred p, p, q; selp.u32 %0, 1, 0, p; }"
      : "=r"(r)
      : "r"(a), "r"(b));
  return r != 0;
}
/// c += a b, m16n8k16, fp16 into fp32.
__device__ __forceinline__ void mma(float (&c)[4], std::uint32_t const (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// Two neighbours of an operand, and back.
__device__ __forceinline__ std::uint32_t pair_bits(half, float low, float high) { return half2_bits(low, high); }
__device__ __forceinline__ std::uint32_t pair_bits(bfloat16, float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float2 pair_values(half, std::uint32_t pair) {
  return make_float2(low_half(pair), high_half(pair));
}
__device__ __forceinline__ float2 pair_values(bfloat16, std::uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
/// c += a b, m16n8k16, of elements of this type into fp32.
__device__ __forceinline__ void mma(half, float (&c)[4], std::uint32_t const (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  mma(c, a, b0, b1);
}
__device__ __forceinline__ void mma(bfloat16, float (&c)[4], std::uint32_t const (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// c += a b, m16n8k32, int8 into int32.
__device__ __forceinline__ void mma(std::int32_t (&c)[4], std::uint32_t const (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ std::uint32_t shared_address(void const* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
/// The launch's dynamic shared memory.
__device__ __forceinline__ std::byte* dynamic_shared() {
  extern __shared__ std::byte dynamic_shared_memory[];
  return dynamic_shared_memory;
}
/// Brings a line into the L2.
__device__ __forceinline__ void prefetch(void const* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
/// True in one lane of the warp; ptxas then knows that addresses of bulk copies are uniform.
__device__ __forceinline__ bool elect() {
  std::uint32_t r;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(r));
  return r != 0;
}
// Words for another CTA of the launch, which looks for them until they are there: each word by itself, in no order.
__device__ __forceinline__ void store_relaxed(float4* to, float4 v) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_relaxed(float2* to, float2 v) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(v.x), "f"(v.y) : "memory");
}
__device__ __forceinline__ void load_relaxed(float4& v, float4 const* from) {
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
}
__device__ __forceinline__ void load_relaxed(float2& v, float2 const* from) {
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(from) : "memory");
}
/// The largest of the lanes' values, none below 0.
__device__ __forceinline__ float warp_max(float x) {
  return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x)));
}
/// The largest of the lanes' values.
__device__ __forceinline__ float warp_largest(float x) {
  // As integers in the same order: the magnitude of negative values turned over.
  auto const turned = [](std::int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); };
  return __int_as_float(turned(__reduce_max_sync(~0u, turned(__float_as_int(x)))));
}
/// A barrier of `threads` of the CTA's threads, whole warps; id 1 to 15.
__device__ __forceinline__ void barrier(int id, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// c = a b, m16n8k16, all fp16.
__device__ __forceinline__ void mma_halves(std::uint32_t (&c)[2], std::uint32_t const (&a)[4], std::uint32_t b0,
                                           std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%8,%8};"
      : "=r"(c[0]), "=r"(c[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}
/// c += a b, m16n8k8, fp16 into fp32: half the k of mma(), operands of two registers and of one.
__device__ __forceinline__ void mma_k8(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}
// Pairs of halves, rounded as written: no compiler fuses or reorders them.
__device__ __forceinline__ std::uint32_t fma2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
__device__ __forceinline__ std::uint32_t mul2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ std::uint32_t add2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t r;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ std::uint32_t sub2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t r;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
/// min(|a|, b)
__device__ __forceinline__ std::uint32_t min_magnitude2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t r;
  asm("{ .reg .b32 m; abs.f16x2 m, %1; min.f16x2 %0, m, %2; }" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ float rsqrt(float x) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float rcp(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
/// Four words in shared memory; the address is a multiple of 16.
__device__ __forceinline__ void load_shared(std::uint32_t* to, std::uint32_t address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void store_shared(std::uint32_t address, std::uint32_t const* from) {
  asm volatile("st.shared.v4.b32 [%4], {%0, %1, %2, %3};" ::"r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]),
               "r"(address)
               : "memory");
}
/// blockIdx.x, as far as the compiler can tell another one each time.
__device__ __forceinline__ std::int32_t fresh_block_x() {
  std::int32_t x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}
/// threadIdx.x, likewise.
__device__ __forceinline__ int fresh_thread_x() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}
/// 16 bytes from global to shared memory, asynchronously.
__device__ __forceinline__ void copy_16(std::uint32_t to, void const* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/// 4 bytes from global to shared memory, asynchronously.
__device__ __forceinline__ void copy_4(std::uint32_t to, void const* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
/// Until all copies of this thread have arrived.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
/// What this thread has copied since the last time is a group, perhaps an empty one.
__device__ __forceinline__ void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until all groups of this thread but the newest `UnderWay` have arrived.
template <int UnderWay>
__device__ __forceinline__ void wait_for_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(UnderWay) : "memory");
}
/// Four 8 x 8 matrices of 16-bit values, each transposed.
__device__ __forceinline__ void ldmatrix_transposed(std::uint32_t (&a)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(address)
               : "memory");
}

}  // namespace kvant::inline v0::ptx
