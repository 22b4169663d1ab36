// Instructions of compute capability 9.0: barriers in shared memory, copies that complete on them,
// and clusters.
#pragma once
#include "kiln.cuh"

__device__ __forceinline__ void initBarrier(u32 b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(u32 b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ __forceinline__ void expectBytes(u32 b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void waitBarrier(u32 b, u32 parity) {
  asm volatile("{\n"
               ".reg .pred p;\n"
               "again%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
               "@!p bra again%=;\n"
               "}" ::"r"(b),
               "r"(parity)
               : "memory");
}
__device__ __forceinline__ void copyBulk(u32 to, const void *from, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ float4 loadCluster(u32 shared, int rank) {
  float4 v;
  asm volatile("{ .reg .b32 a; mapa.shared::cluster.u32 a, %4, %5;\n"
               "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [a]; }"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(shared), "r"(rank)
               : "memory");
  return v;
}
// arriveCluster orders no memory, which a release does at the cost of a fence of the whole device.
__device__ __forceinline__ void arriveCluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void waitCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void syncCluster() {
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}
// storeCluster sends 16 bytes to the same place in the shared memory of another thread block, which
// counts them on a barrier: no fence.
__device__ __forceinline__ void storeCluster(u32 shared, u32 barrier, int rank, float4 v) {
  asm volatile(
      "{ .reg .b32 a, b; mapa.shared::cluster.u32 a, %0, %2; mapa.shared::cluster.u32 b, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[a], {%3, %4, %5, %6}, [b]; }" ::"r"(shared),
      "r"(barrier), "r"(rank), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}
