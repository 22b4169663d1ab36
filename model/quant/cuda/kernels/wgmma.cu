// Products of many rows of activations with a weight, at the speed of Hopper's tensor cores.
//
// A warp unpacks its codes to rounded half-precision weights in registers, the A operand of wgmma (columns of the weight
// as M); activations are the B operand, in shared memory. Two warpgroups of a thread block own 128 columns each and share
// the tile of activations. While one multiplies, the other unpacks; three threads of a third fetch. Thread blocks of a cluster
// share a tile of the result and own ranges of rows; they add up through distributed shared memory, in order.
#include "hopper.cuh"

struct Wide {
  Weight w;
  const u16 *x;  // in the order of kiln_gather for tiles
  u16 *out;      // [m][columns]
  const u16 *bias;
  int m, splits, accumulate, rowTiles;
};

// A lane arrives at a barrier for its warp. racecheck knows what a barrier orders only for threads that arrive themselves, so in
// a build for it all lanes do.
#ifdef KILN_RACECHECK
constexpr int arriving = 32;
#else
constexpr int arriving = 1;
#endif

__host__ __device__ constexpr int stagesFor(int m) { return m <= 32 ? 12 : m <= 64 ? 8 : 6; }

// Tile<M> multiplies 64 columns and 16 rows of the weight with M rows of activations.
template <int M> struct Tile;
template <> struct Tile<16> {
  static __device__ __forceinline__ void multiply(float (&d)[8], const u32 *a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <> struct Tile<32> {
  static __device__ __forceinline__ void multiply(float (&d)[16], const u32 *a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <> struct Tile<64> {
  static __device__ __forceinline__ void multiply(float (&d)[32], const u32 *a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};
template <> struct Tile<128> {
  static __device__ __forceinline__ void multiply(float (&d)[64], const u32 *a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};

__device__ __forceinline__ void fenceOperands() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commitGroup() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void waitGroups() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

// descriptor of a tile of activations: rows of 64 bytes, 16-byte pieces exchanged as the 64-byte swizzle does, groups of 8
// rows 512 bytes apart.
__device__ __forceinline__ u64 descriptor(u32 address) {
  return u64(address >> 4 & 0x3FFF) | u64(1) << 16 | u64(512 >> 4) << 32 | u64(2) << 62;
}

__device__ __forceinline__ void syncWarpgroups() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
// B is the one width of the matrix, or 0 for any mixture. M is the number of rows of activations of a tile.
template <int M, int B, bool Asym> __device__ __forceinline__ void wide(const Wide &p) {
  constexpr int warps = panelStrips, stages = stagesFor(M);
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ u64 barriers[2 * stages];
  __shared__ u32 widths[stages];
  startNext();
  const Weight &w = p.w;
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, g = lane >> 2, t = lane & 3;
  const int tile = blockIdx.x / p.splits, rank = blockIdx.x % p.splits;
  const int columnTile = tile / p.rowTiles, rowTile = tile % p.rowTiles, row0 = rowTile * M;
  const int begin = int(u64(w.blockCount) * rank / p.splits), end = int(u64(w.blockCount) * (rank + 1) / p.splits);

  // A stage has the tile of activations, the scales and zeros of the panel, and its units.
  constexpr int tileBytes = M * 64, scaleBytes = warps * 64, unitsAt = tileBytes + scaleBytes * (Asym ? 2 : 1);
  const int slot = (unitsAt + warps * (B ? B : w.maxWidth) * 128 + 511) & ~511;
  const u32 base = sharedAddress(shared), full = sharedAddress(barriers), empty = full + 8 * stages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; i++) {
      initBarrier(full + 8 * i, 3);
      initBarrier(empty + 8 * i, warps * arriving);
    }
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();

  // Registers of the warpgroup that fetches go to those that multiply.
  if (warp >= warps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    // One thread fetches units, one scales and zeros, one activations: issuing a copy takes longer than waiting for it.
    if (lane == 0 && warp < warps + 3) {
      const int strips = stripsOfPanel(w, columnTile), role = warp - warps;
      const unsigned char *x = reinterpret_cast<const unsigned char *>(p.x) + (u64(rowTile) * w.blockCount + begin) * tileBytes;
      Block block = w.blocks[min(begin, w.blockCount - 1)];
      const unsigned char *words = w.words + blockAt(w, columnTile, offsetOf(block));
      if (role == 2) waitForEarlier();
      int at = 0;
      u32 parity = 1;  // the first round finds all stages empty
      for (int k = begin; k < end; k++) {
        const u32 to = base + at * slot, barrier = full + 8 * at;
        waitBarrier(empty + 8 * at, parity);
        if (role == 2) {
          expectBytes(barrier, tileBytes);
          copyBulk(to, x, tileBytes, barrier);
          x += tileBytes;
        } else {
          const Block next = w.blocks[min(k + 1, end - 1)];
          if (role == 0) {
            const u32 bytes = strips * (B ? B : widthOf(block)) * 128;
            if (!B) widths[at] = widthOf(block);
            expectBytes(barrier, bytes);
            copyBulk(to + unitsAt, words, bytes, barrier);
            words += bytes;
          } else {
            const u64 scale = (u64(groupOf(block)) * w.strips + columnTile * warps) * 32;
            expectBytes(barrier, strips * 64 * (Asym ? 2 : 1));
            copyBulk(to + tileBytes, w.scales + scale, strips * 64, barrier);
            if (Asym) copyBulk(to + tileBytes + scaleBytes, w.zeros + scale, strips * 64, barrier);
          }
          block = next;
        }
        if (++at == stages) at = 0, parity ^= 1;
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    float acc[2][M / 2] = {};
    u32 q[2][16];
    int at = 0, before = -1;
    u32 parity = 0;
    auto step = [&](u32 (&q)[16]) {
      waitBarrier(full + 8 * at, parity);
      const unsigned char *from = shared + at * slot;
      u32 scale[4], words[8];
      Zeros z;
      columnPairs(*reinterpret_cast<const uint2 *>(from + tileBytes + warp * 64 + g * 8), scale);
      if (Asym) expandZeros(*reinterpret_cast<const uint2 *>(from + tileBytes + scaleBytes + warp * 64 + g * 8), z);
      const u32 width = B ? B : widths[at];
      const unsigned char *unit = from + unitsAt + warp * width * 128;
      if (B) {
        loadWords<B ? B : 4>(unit, lane, words), unpack<B ? B : 4, Asym>(words, z, q);
      } else {
        switch (width) {
        case 2: loadWords<2>(unit, lane, words), unpack<2, Asym>(words, z, q); break;
        case 3: loadWords<3>(unit, lane, words), unpack<3, Asym>(words, z, q); break;
        case 4: loadWords<4>(unit, lane, words), unpack<4, Asym>(words, z, q); break;
        case 5: loadWords<5>(unit, lane, words), unpack<5, Asym>(words, z, q); break;
        case 6: loadWords<6>(unit, lane, words), unpack<6, Asym>(words, z, q); break;
        default: loadWords<8>(unit, lane, words), unpack<8, Asym>(words, z, q);
        }
      }
#pragma unroll
      for (int i = 0; i < 16; i++) q[i] = hmul2(q[i], scale[(i >> 3) * 2 + (i & 1)]);
      const u64 rows = descriptor(base + at * slot);
      fenceOperands();
      Tile<M>::multiply(acc[0], q, rows);
      Tile<M>::multiply(acc[1], q + 8, rows);
      Tile<M>::multiply(acc[0], q + 4, rows + 2);
      Tile<M>::multiply(acc[1], q + 12, rows + 2);
      commitGroup();
      waitGroups<1>();
      // The products of the block before are done, so its stage is free.
      __syncwarp();
      if (lane < arriving && before >= 0) arrive(empty + 8 * before);
      before = at;
      if (++at == stages) at = 0, parity ^= 1;
    };
    int k = begin;
#pragma unroll 1
    for (; k + 1 < end; k += 2) {
      step(q[0]);
      step(q[1]);
    }
    if (k < end) step(q[0]);
    waitGroups<0>();
    waitForEarlier();
    syncWarpgroups();

    // The tile, [row][column], pitch as in gemm.cu.
    constexpr int width = warps * 32, pitch = width + 4;
    float *sums = reinterpret_cast<float *>(shared);
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int i = 0; i < M / 2; i++) {
        int row = 8 * (i >> 2) + 2 * t + (i & 1), column = warp * 32 + 16 * f + 8 * (i >> 1 & 1) + g;
        sums[row * pitch + column] = acc[f][i];
      }
    if (p.splits > 1) syncCluster();
    else syncWarpgroups();
    // Four columns a thread, four rows at a time; the thread blocks of a cluster take turns.
    const int rowsHere = min(M, p.m - row0), inTile = (threadIdx.x & 63) * 4, column = columnTile * width + inTile;
    const bool fast = w.columns % 4 == 0 && u64(p.out) % 8 == 0 && !p.bias && !p.accumulate;
    auto finish = [&](int row, float4 v) {
      u16 *to = p.out + u64(row0 + row) * w.columns + column;
      if (fast) {
        *reinterpret_cast<uint2 *>(to) = make_uint2(toHalf(v.x) | toHalf(v.y) << 16, toHalf(v.z) | toHalf(v.w) << 16);
        return;
      }
      float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (column + i >= w.columns) break;
        if (p.bias) values[i] += toFloat(p.bias[column + i]);
        if (p.accumulate) values[i] += toFloat(to[i]);
        to[i] = u16(toHalf(values[i]));
      }
    };
    if (column < w.columns && p.splits == 1) {
#pragma unroll 4
      for (int row = threadIdx.x >> 6; row < rowsHere; row += 4) finish(row, *reinterpret_cast<const float4 *>(sums + row * pitch + inTile));
    } else if (column < w.columns) {
#pragma unroll 2
      for (int row = rank + p.splits * (threadIdx.x >> 6); row < rowsHere; row += 4 * p.splits) {
        float4 v = make_float4(0, 0, 0, 0), part[8];
        const u32 from = base + (row * pitch + inTile) * 4;
#pragma unroll
        for (int r = 0; r < 8; r++)
          if (r < p.splits) part[r] = loadCluster(from, r);
#pragma unroll
        for (int r = 0; r < 8; r++)
          if (r < p.splits) v.x += part[r].x, v.y += part[r].y, v.z += part[r].z, v.w += part[r].w;
        finish(row, v);
      }
    }
    // Nobody leaves while others read its sums. Threads that have left are not waited for.
    if (p.splits > 1) {
      arriveCluster();
      waitCluster();
    }
  }
}

// The names are kiln_wide_<rows>_<width or 0>_<s or a for symmetric or not>.
#define KILN_WIDE(m, b, kind, asym)                                                                   \
  extern "C" __global__ void __launch_bounds__(384, 1) kiln_wide_##m##_##b##_##kind(const Wide p) { \
    wide<m, b, asym>(p);                                                                              \
  }
#define KILN_ROWS(b, kind, asym)                             \
  KILN_WIDE(16, b, kind, asym) KILN_WIDE(32, b, kind, asym) \
  KILN_WIDE(64, b, kind, asym) KILN_WIDE(128, b, kind, asym)
KILN_ROWS(4, s, false)
KILN_ROWS(0, s, false)
KILN_ROWS(4, a, true)
KILN_ROWS(0, a, true)
