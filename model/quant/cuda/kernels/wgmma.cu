// Products of many rows of activations with a weight, at the speed of Hopper's tensor cores.
//
// A warp unpacks its codes to rounded half-precision weights in registers, the A operand of wgmma
// (columns of the weight as M); activations are the B operand, in shared memory. Two warpgroups of
// a thread block own 128 columns each and share the tile of activations. While one multiplies, the
// other unpacks; a few threads of a third fetch. Thread blocks of a cluster share a tile of the
// result and own ranges of rows; they add up through distributed shared memory, in order.
#include "wgmma.cuh"

struct Wide {
  TensorMap x;
  Weight w;
  u16 *out;  // [m][columns]
  const u16 *bias;
  int m, splits, accumulate, rowTiles;
};
static_assert(sizeof(Wide) == 256, "as in Go");

__host__ __device__ constexpr int stagesFor(int m) { return m <= 32 ? 9 : m <= 64 ? 8 : 6; }

__device__ __forceinline__ void syncWarpgroups() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
// unpackStrip makes the weights of both fragments of a strip.
template <int B, bool Asym>
__device__ __forceinline__ void unpackStrip(const u32 *words, uint2 scales, uint2 zeros,
                                            u32 (&q)[16]) {
  u32 scale[4];
  Zeros z;
  columnPairs(scales, scale);
  if (Asym) expandZeros(zeros, z);
  unpack<B, Asym>(words, z, q);
#pragma unroll
  for (int i = 0; i < 16; i++) q[i] = hmul2(q[i], scale[(i >> 3) * 2 + (i & 1)]);
}

// multiplyRange adds up the products of a warpgroup, a strip to each warp.
template <int M, int B, bool Asym>
__device__ __forceinline__ void multiplyRange(int begin, int end, int strips, int slot,
                                              unsigned char *shared, u32 full, const u32 *widths,
                                              float (&acc)[2][M / 2]) {
  constexpr int stages = stagesFor(M);
  constexpr int scalesAt = M * 128, scaleBytes = panelStrips * 64,
                unitsAt = scalesAt + scaleBytes * (Asym ? 4 : 2);
  const int lane = threadIdx.x & 31, strip = threadIdx.x / 32, g = lane >> 2;
  const u32 base = sharedAddress(shared), empty = full + 8 * stages;
  u32 q[2][2][16], words[2][B == 4 ? 4 : 8], bits[2] = {B, B};
  uint2 scales[2], zeros[2];
  // Stages: of the blocks that are fetched next, of those that are multiplied next, and of those
  // that are multiplied.
  int at = 0, now = 0, running = -1;
  u32 parity = 0;
  bool four = B == 4;  // both blocks; in a mixture most have the smallest width
  auto fetch = [&] {
    waitBarrier(full + 8 * at, parity);
    const unsigned char *from = shared + at * slot, *table = from + scalesAt + strip * 64 + g * 8;
    if (!B) {
      bits[0] = widths[2 * at], bits[1] = widths[2 * at + 1];
      four = bits[0] == 4 && bits[1] == 4;
    }
    const unsigned char *units[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      scales[i] = *reinterpret_cast<const uint2 *>(table + i * scaleBytes);
      if (Asym) zeros[i] = *reinterpret_cast<const uint2 *>(table + (2 + i) * scaleBytes);
      units[i] = from + unitsAt + i * strips * bits[0] * 128 + strip * bits[i] * 128;
    }
    if (B == 4 || four) {
#pragma unroll
      for (int i = 0; i < 2; i++) loadWords<4>(units[i], lane, words[i]);
    } else if constexpr (B != 4) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        switch (bits[i]) {
        case 2: loadWords<2>(units[i], lane, words[i]); break;
        case 3: loadWords<3>(units[i], lane, words[i]); break;
        case 4: loadWords<4>(units[i], lane, words[i]); break;
        case 5: loadWords<5>(units[i], lane, words[i]); break;
        case 6: loadWords<6>(units[i], lane, words[i]); break;
        default: loadWords<8>(units[i], lane, words[i]);
        }
      }
    }
    now = at;
    if (++at == stages) at = 0, parity ^= 1;
  };
  auto make = [&](auto &q) {
    if (B == 4 || four) {
#pragma unroll
      for (int j = 0; j < 2; j++) unpackStrip<4, Asym>(words[j], scales[j], zeros[j], q[j]);
    } else if constexpr (B != 4) {
#pragma unroll
      for (int j = 0; j < 2; j++) {
        switch (bits[j]) {
        case 2: unpackStrip<2, Asym>(words[j], scales[j], zeros[j], q[j]); break;
        case 3: unpackStrip<3, Asym>(words[j], scales[j], zeros[j], q[j]); break;
        case 4: unpackStrip<4, Asym>(words[j], scales[j], zeros[j], q[j]); break;
        case 5: unpackStrip<5, Asym>(words[j], scales[j], zeros[j], q[j]); break;
        case 6: unpackStrip<6, Asym>(words[j], scales[j], zeros[j], q[j]); break;
        default: unpackStrip<8, Asym>(words[j], scales[j], zeros[j], q[j]);
        }
      }
    }
  };
  // step starts the products of two blocks, or of the last one, and unpacks the next, if there are
  // more, when those of the blocks before are done. Between that and the start of its products
  // there is as little as possible.
  auto step = [&](auto &q, auto &following, auto blocks, auto more) {
    const u64 rows = descriptor(base + now * slot);
    fenceOperands();
#pragma unroll
    for (int i = 0; i < 2 * blocks.value; i++) {
#pragma unroll
      for (int f = 0; f < 2; f++)
        Tile<M>::multiply(acc[f], q[i / 2] + 8 * f + i % 2 * 4, rows + 2 * i);
    }
    commitGroup();
    const int done = running;
    running = now;
    if (more.value) fetch();
    waitGroups<1>();
    __syncwarp();
    if (lane < arriving && done >= 0) arrive(empty + 8 * done);
    if (more.value) make(following);
  };
  fetch();
  make(q[0]);
  int k = begin;
#pragma unroll 1
  for (; k + 4 < end; k += 4) {
    step(q[0], q[1], Number<2>(), Number<1>());
    step(q[1], q[0], Number<2>(), Number<1>());
  }
  switch (end - k) {
  case 1: step(q[0], q[1], Number<1>(), Number<0>()); break;
  case 2: step(q[0], q[1], Number<2>(), Number<0>()); break;
  case 3:
    step(q[0], q[1], Number<2>(), Number<1>());
    step(q[1], q[0], Number<1>(), Number<0>());
    break;
  default: step(q[0], q[1], Number<2>(), Number<1>()); step(q[1], q[0], Number<2>(), Number<0>());
  }
  waitGroups<0>();
}

// Fetch is what the threads that fetch have in common.
struct Fetch {
  u32 base, full;
  int slot, begin, end, panel, row0;
};

// fetchRange fills the stages with units (0), scales (1), activations (2) or zeros (3).
template <int M, int B, bool Asym, int Role>
__device__ __forceinline__ void fetchRange(const Wide &p, const Fetch f, u32 *widths) {
  constexpr int stages = stagesFor(M);
  constexpr int scalesAt = M * 128, scaleBytes = panelStrips * 64,
                unitsAt = scalesAt + scaleBytes * (Asym ? 4 : 2);
  const Weight &w = p.w;
  if (Role == 2) {
    prefetchMap(p.x);
    waitForEarlier();
  }
  const int strips = stripsOfPanel(w, f.panel);
  const uint2 *blocks = reinterpret_cast<const uint2 *>(w.blocks);
  uint2 first = __ldg(blocks + f.begin), second = __ldg(blocks + min(f.begin + 1, f.end - 1));
  const unsigned char *words = w.words + blockAt(w, f.panel, first.x >> 4);
  const unsigned char *table =
      reinterpret_cast<const unsigned char *>(Role == 1 ? w.scales : w.zeros) +
      u64(f.panel) * scaleBytes;
  int at = 0;
  u32 parity = 1;  // the first round finds all stages empty
  u32 barrier = f.full, to = f.base + (Role == 0   ? unitsAt
                                       : Role == 1 ? scalesAt
                                       : Role == 2 ? 0
                                                   : scalesAt + 2 * scaleBytes);
  for (int k = f.begin; k < f.end; k += 2) {
    const int count = min(2, f.end - k);
    uint2 next, afterNext;
    if (Role % 2 == 1 || Role == 0 && !B)
      next = __ldg(blocks + min(k + 2, f.end - 1)),
      afterNext = __ldg(blocks + min(k + 3, f.end - 1));
    waitBarrier(barrier + 8 * stages, parity);
    if (Role == 2) {
      expectBytes(barrier, M * 128);
      copyRows(to, p.x, k, f.row0, barrier);
    } else if (Role == 0) {
      const u32 bytes =
          strips * 128 * (B ? count * B : (first.x & 15) + (count == 2 ? second.x & 15 : 0));
      if (!B) widths[2 * at] = first.x & 15, widths[2 * at + 1] = second.x & 15;
      expectBytes(barrier, bytes);
      copyBulk(to, words, bytes, barrier);
      words += bytes;
    } else {
      expectBytes(barrier, count * strips * 64);
      copyBulk(to, table + u64((first.y & 0xFFFF) * u32(w.strips)) * 64, strips * 64, barrier);
      if (count == 2)
        copyBulk(to + scaleBytes, table + u64((second.y & 0xFFFF) * u32(w.strips)) * 64,
                 strips * 64, barrier);
    }
    first = next, second = afterNext;
    barrier += 8, to += f.slot;
    if (++at == stages) at = 0, parity ^= 1, barrier -= 8 * stages, to -= stages * f.slot;
  }
}

// startOf returns the first block of a thread block of a cluster. Those of a mixture take the same
// time: blocks of other widths than four cost twice as much, or a quarter more with tall tiles.
// Widths descend.
template <int M, int B>
__device__ __forceinline__ int startOf(const Weight &w, int rank, int splits) {
  if (B) return int(u64(w.blockCount) * rank / splits);
  constexpr int four = 4, other = M > 64 ? 5 : 8;
  const int fours = four * w.fours, total = fours + other * (w.blockCount - w.fours);
  const int at = int(u64(total) * rank / splits), wider = other * w.wider;
  if (at <= wider) return (at + other - 1) / other;
  if (at <= wider + fours) return w.wider + (at - wider + four - 1) / four;
  return w.wider + w.fours + (at - wider - fours + other - 1) / other;
}

// B is the one width of the matrix, or 0 for any mixture. M is the number of rows of activations of
// a tile.
template <int M, int B, bool Asym> __device__ __forceinline__ void wide(const Wide &p) {
  constexpr int warps = panelStrips, stages = stagesFor(M);
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ u64 barriers[2 * stages];
  __shared__ u32 widths[2 * stages];
  startNext();
  const Weight &w = p.w;
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, g = lane >> 2, t = lane & 3;
  const int tile = blockIdx.x / p.splits, rank = blockIdx.x % p.splits;
  const int columnTile = tile / p.rowTiles, rowTile = tile % p.rowTiles, row0 = rowTile * M;
  const int begin = startOf<M, B>(w, rank, p.splits), end = startOf<M, B>(w, rank + 1, p.splits);

  // A stage has two blocks: their tiles of activations, the scales and zeros of the panel, and its
  // units.
  constexpr int scalesAt = M * 128, scaleBytes = panelStrips * 64,
                unitsAt = scalesAt + scaleBytes * (Asym ? 4 : 2);
  const int slot = (unitsAt + 2 * panelStrips * (B ? B : w.maxWidth) * 128 + 1023) & ~1023,
            strips = stripsOfPanel(w, columnTile);
  const u32 base = sharedAddress(shared), full = sharedAddress(barriers), empty = full + 8 * stages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; i++) {
      initBarrier(full + 8 * i, Asym ? 4 : 3);
      initBarrier(empty + 8 * i, warps * arriving);
    }
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::
                     : "memory");
  }
  __syncthreads();

  // Registers of the warpgroup that fetches go to those that multiply.
  if (warp >= warps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    // One thread fetches units, one scales, one activations and one zeros: issuing a copy takes
    // longer than waiting for it.
    if (lane == 0 && begin < end) {
      const Fetch f = {base, full, slot, begin, end, columnTile, row0};
      switch (warp - warps) {
      case 0: fetchRange<M, B, Asym, 0>(p, f, widths); break;
      case 1: fetchRange<M, B, Asym, 1>(p, f, widths); break;
      case 2: fetchRange<M, B, Asym, 2>(p, f, widths); break;
      default:
        if (Asym) fetchRange<M, B, Asym, 3>(p, f, widths);
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float acc[2][M / 2] = {};
    if (begin < end) multiplyRange<M, B, Asym>(begin, end, strips, slot, shared, full, widths, acc);
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int i = 0; i < M / 2; i++) asm volatile("" : "+f"(acc[f][i])::"memory");
    waitForEarlier();
    syncWarpgroups();

    // The tile, [row][column], pitch as in gemm.cu.
    constexpr int width = panelStrips * 32, pitch = width + 4;
    float *sums = reinterpret_cast<float *>(shared);
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int i = 0; i < M / 2; i++) {
        int row = 8 * (i >> 2) + 2 * t + (i & 1),
            column = warp * 32 + 16 * f + 8 * (i >> 1 & 1) + g;
        sums[row * pitch + column] = acc[f][i];
      }
    if (p.splits > 1) syncCluster();
    else syncWarpgroups();
    // Four columns a thread, four rows at a time; the thread blocks of a cluster take turns.
    const int rowsHere = min(M, p.m - row0), inTile = (threadIdx.x & 63) * 4,
              column = columnTile * width + inTile;
    const bool fast = w.columns % 4 == 0 && u64(p.out) % 8 == 0 && !p.bias && !p.accumulate;
    auto finish = [&](int row, float4 v) {
      u16 *to = p.out + u64(row0 + row) * w.columns + column;
      if (fast) {
        *reinterpret_cast<uint2 *>(to) =
            make_uint2(toHalf(v.x) | toHalf(v.y) << 16, toHalf(v.z) | toHalf(v.w) << 16);
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
      for (int row = threadIdx.x >> 6; row < rowsHere; row += 4)
        finish(row, *reinterpret_cast<const float4 *>(sums + row * pitch + inTile));
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
    // A thread block stays while others read its sums. Threads that have ended are not waited for.
    if (p.splits > 1) {
      arriveCluster();
      waitCluster();
    }
  }
}

// The names are kiln_wide_<rows>_<width or 0>_<s or a for symmetric or not>.
#define KILN_WIDE(m, b, kind, asym)                                                                \
  extern "C" __global__ void __launch_bounds__(384, 1)                                             \
      kiln_wide_##m##_##b##_##kind(const __grid_constant__ Wide p) {                               \
    wide<m, b, asym>(p);                                                                           \
  }
#define KILN_ROWS(b, kind, asym)                                                                   \
  KILN_WIDE(16, b, kind, asym)                                                                     \
  KILN_WIDE(32, b, kind, asym) KILN_WIDE(64, b, kind, asym) KILN_WIDE(128, b, kind, asym)
KILN_ROWS(4, s, false)
KILN_ROWS(0, s, false)
KILN_ROWS(4, a, true)
KILN_ROWS(0, a, true)
