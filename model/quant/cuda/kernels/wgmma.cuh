// Instructions of compute capability 9.0a: products of a warpgroup, with columns of the weight as
// M, from registers, and rows of activations as N, from shared memory.
#pragma once
#include "hopper.cuh"

// A lane arrives at a barrier for its warp. racecheck knows what a barrier orders only for threads
// that arrive themselves, so in a build for it all lanes do.
#ifdef KILN_RACECHECK
constexpr int arriving = 32;
#else
constexpr int arriving = 1;
#endif

// Tile<M> multiplies 64 columns and 16 rows of the weight with M rows of activations: D has M/2
// sums of a thread.
#define KILN_D8(i)                                                                                 \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),      \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define KILN_D32(i) KILN_D8(i), KILN_D8(i + 8), KILN_D8(i + 16), KILN_D8(i + 24)
#define KILN_N0                                                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                         \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KILN_N32                                                                                   \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "               \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KILN_N64                                                                                   \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "               \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define KILN_N96                                                                                   \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "   \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define KILN_TILE(m, names, a, ...)                                                                \
  template <> struct Tile<m> {                                                                     \
    static __device__ __forceinline__ void multiply(float (&d)[m / 2], const u32 *q, u64 b) {      \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #m "k16.f32.f16.f16 {" names "}, {" a       \
                   ", 1, 1, 1, 0;"                                                                 \
                   : __VA_ARGS__                                                                   \
                   : "r"(q[0]), "r"(q[1]), "r"(q[2]), "r"(q[3]), "l"(b));                          \
    }                                                                                              \
  };
template <int M> struct Tile;
KILN_TILE(16, "%0, %1, %2, %3, %4, %5, %6, %7", "%8, %9, %10, %11}, %12", KILN_D8(0))
KILN_TILE(32, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15",
          "%16, %17, %18, %19}, %20", KILN_D8(0), KILN_D8(8))
KILN_TILE(64, KILN_N0, "%32, %33, %34, %35}, %36", KILN_D32(0))
KILN_TILE(128, KILN_N0 ", " KILN_N32, "%64, %65, %66, %67}, %68", KILN_D32(0), KILN_D32(32))
KILN_TILE(192, KILN_N0 ", " KILN_N32 ", " KILN_N64, "%96, %97, %98, %99}, %100", KILN_D32(0),
          KILN_D32(32), KILN_D32(64))
KILN_TILE(256, KILN_N0 ", " KILN_N32 ", " KILN_N64 ", " KILN_N96, "%128, %129, %130, %131}, %132",
          KILN_D32(0), KILN_D32(32), KILN_D32(64), KILN_D32(96))

// TensorMap is a CUtensorMap of activations, [row][32·blocks], in boxes of some rows and two blocks
// with the 128-byte swizzle. What is behind the last row or block is zero.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

__device__ __forceinline__ void prefetchMap(const TensorMap &map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// copyRows fetches a box of two blocks, copyRowsBoth for both thread blocks of a cluster.
__device__ __forceinline__ void copyRows(u32 to, const TensorMap &map, int block, int row,
                                         u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
               "l"(&map), "r"(32 * block), "r"(row), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void copyRowsBoth(u32 to, const TensorMap &map, int block, int row,
                                             u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
               "l"(&map), "r"(32 * block), "r"(row), "r"(barrier), "h"(u16(3))
               : "memory");
}

__device__ __forceinline__ void fenceOperands() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commitGroup() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void waitGroups() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// descriptor of the activations of two blocks as the copies leave them: rows of 128 bytes, 16-byte
// pieces exchanged as the 128-byte swizzle does, groups of 8 rows 1024 bytes apart. A step of 16
// rows of the weight is 32 bytes further.
__device__ __forceinline__ u64 descriptor(u32 address) {
  return u64(address >> 4 & 0x3FFF) | u64(1) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}
