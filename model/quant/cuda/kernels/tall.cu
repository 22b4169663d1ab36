// Products of many rows of activations with a weight of four bits: tiles of 128 columns and up to
// 256 rows, so that a weight is unpacked once for as many products as the tensor cores take. For
// other widths this is no faster than wgmma.cu.
//
// Two thread blocks are a cluster and own the two halves of a panel. Each fetches half of the rows
// of activations that both need and sends them to both. Within a thread block two warpgroups own a
// fragment of 64 columns each: the first 16 of every strip, and the others. A warpgroup unpacks the
// next 32 rows while the tensor cores multiply those before.
//
// The grid fills the device once. A cluster first computes an even share of those tiles that do not
// come out even, in ranges of rows of the weight, and then whole tiles. What several clusters have
// of a tile goes through memory, and the last one to finish adds it up, always in the order of the
// rows.
#include "wgmma.cuh"

struct Tall {
  TensorMap x;
  Weight w;
  u16 *out;  // [m][columns]
  const u16 *bias;
  float *work;    // [thread block][first or last tile][M·128]
  u32 *arrivals;  // [tile][thread block of the cluster][warpgroup], zeros before and after
  int m, accumulate, rowTiles, slab;
  int tiles, sharedTiles, stages;
};
static_assert(sizeof(Tall) == 320, "as in Go");

constexpr int maxStages = 16, unitBytes = panelStrips / 2 * 512;  // of a thread block's strips

// A share ends at a multiple of so many blocks.
constexpr int quantum = 4;

// Segment is a range of blocks of a tile.
struct Segment {
  int tile, begin, end;
};

// Walk goes through the segments of a cluster. Positions count quanta of the shared tiles.
struct Walk {
  const Tall &p;
  int clusters, units, position, stop, tile;

  __device__ __forceinline__ Walk(const Tall &p, int cluster)
      : p(p), clusters(gridDim.x / 2), units((p.w.blockCount + quantum - 1) / quantum),
        position(first(cluster)), stop(first(cluster + 1)), tile(p.sharedTiles + cluster) {}

  __device__ __forceinline__ int first(int cluster) const {
    return int(u64(p.sharedTiles * units) * cluster / clusters);
  }
  // clusterAt is the inverse.
  __device__ __forceinline__ int clusterAt(int position) const {
    return int((u64(position + 1) * clusters - 1) / (p.sharedTiles * units));
  }
  __device__ __forceinline__ bool next(Segment &s) {
    if (position < stop) {
      s.tile = position / units;
      const int from = position - s.tile * units, to = min(stop - s.tile * units, units);
      s.begin = from * quantum, s.end = min(to * quantum, p.w.blockCount);
      position += to - from;
      return true;
    }
    s.tile = tile, s.begin = 0, s.end = p.w.blockCount;
    tile += clusters;
    return s.tile < p.tiles;
  }
  // place says which rows and which panel a tile is. Tiles of a slab of rows follow each other, so
  // that its activations stay in the cache.
  __device__ __forceinline__ void place(int tile, int &rowTile, int &panel) const {
    const int panels = (p.w.strips + panelStrips - 1) / panelStrips,
              slab = tile / (p.slab * panels), rest = tile - slab * p.slab * panels;
    const int rows = min(p.slab, p.rowTiles - slab * p.slab);
    panel = rest / rows, rowTile = slab * p.slab + rest - panel * rows;
  }
};

__device__ __forceinline__ void arriveAt(u32 barrier, int rank) {
  asm volatile("{ .reg .b32 a; mapa.shared::cluster.u32 a, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [a]; }" ::"r"(barrier),
               "r"(rank)
               : "memory");
}
__device__ __forceinline__ void storeTransposed(u32 to, const u32 (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}
__device__ __forceinline__ void syncWarpgroup(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

// Raw is what a lane has of a unit, and of the tables for its two columns, before it is unpacked:
// each of the four words of a unit belongs to one fragment, and these are the two of its fragment.
struct Raw {
  u32 words[2];
  u32 scales, zeros;
};

// tableOf returns the scale, or the zero point, of pair i of a fragment, in both halves.
__device__ __forceinline__ u32 tableOf(u32 both, int i) {
  return __byte_perm(both, 0, i & 1 ? 0x3232 : 0x1010);
}

// unpackFragment makes the weights of a fragment.
template <bool Asym> __device__ __forceinline__ void unpackFragment(const Raw &raw, u32 (&out)[8]) {
#pragma unroll
  for (int j = 0; j < 2; j++) {
    const u32 word = raw.words[j], other = __byte_perm(word, 0, 0x2301);
    out[4 * j + 0] = rawField<2>(word), out[4 * j + 1] = rawField<6>(word);
    out[4 * j + 2] = rawField<2>(other), out[4 * j + 3] = rawField<6>(other);
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
    u32 zero = integer((i & 1 ? 16 : 256) + 8);
    if (Asym) zero = hsub2(tableOf(raw.zeros, i), (i & 1 ? half16 : half256) | 0x80008000);
    out[i] = hmul2(hsub2(out[i], zero), tableOf(raw.scales, i));
  }
}

// multiplyTiles is what a warpgroup does.
template <int M, bool Asym>
__device__ __forceinline__ void multiplyTiles(const Tall &p, unsigned char *shared, u32 full,
                                              u32 *lasts, int slot) {
  constexpr int tablesAt = M * 128, tableBytes = panelStrips / 2 * 64,
                unitsAt = tablesAt + tableBytes * (Asym ? 4 : 2);
  const Weight &w = p.w;
  int lane = threadIdx.x & 31;
  asm volatile("" : "+r"(lane));  // or it is computed again wherever it is used
  const int group = threadIdx.x / 128, strip = threadIdx.x / 32 & 3, thread = threadIdx.x & 127,
            g = lane >> 2, t = lane & 3;
  const int rank = blockIdx.x & 1, cluster = blockIdx.x / 2;
  const u32 base = sharedAddress(shared), empty = full + 8 * maxStages;
  unsigned char *lines = shared + p.stages * slot + threadIdx.x / 32 * 512;
  waitForEarlier();

  float acc[M / 2];
  u32 q[2][2][8];
  int at = 0;
  u32 parity = 0;
  Walk walk(p, cluster);
  Segment s;
#pragma unroll 1
  while (walk.next(s)) {
#pragma unroll
    for (int i = 0; i < M / 2; i++) acc[i] = 0;
    // Stages: of the blocks that are multiplied next, and of those that are multiplied.
    int now, running = -1;
    Raw raw[2];
    auto release = [&](int stage) {
      __syncwarp();
      if (lane < arriving) {
        arriveAt(empty + 8 * stage, 0);
        arriveAt(empty + 8 * stage, 1);
      }
    };
    auto fetch = [&] {
      waitBarrier(full + 8 * at, parity);
      const unsigned char *from = shared + at * slot;
      const unsigned char *table = from + tablesAt + strip * 64 + g * 8 + group * 4;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        raw[i].scales = *reinterpret_cast<const u32 *>(table + i * tableBytes);
        if (Asym) raw[i].zeros = *reinterpret_cast<const u32 *>(table + (2 + i) * tableBytes);
        const unsigned char *unit = from + unitsAt + i * unitBytes + strip * 512 + 16 * lane;
        const uint2 v = *reinterpret_cast<const uint2 *>(unit + 8 * group);
        raw[i].words[0] = v.x, raw[i].words[1] = v.y;
      }
      now = at;
      if (++at == p.stages) at = 0, parity ^= 1;
    };
    auto make = [&](u32(&q)[2][8]) {
#pragma unroll
      for (int i = 0; i < 2; i++) unpackFragment<Asym>(raw[i], q[i]);
    };
    // step starts the products of two blocks, or of the last one, and unpacks the next, if there
    // are more, when those of the blocks before are done. Between that and the start of its
    // products there is as little as possible.
    auto step = [&](u32(&q)[2][8], u32(&following)[2][8], auto blocks, auto more) {
      const u64 rows = descriptor(base + now * slot);
      fenceOperands();
      Tile<M>::multiply(acc, q[0], rows);
      Tile<M>::multiply(acc, q[0] + 4, rows + 2);
      if (blocks.value == 2) {
        Tile<M>::multiply(acc, q[1], rows + 4);
        Tile<M>::multiply(acc, q[1] + 4, rows + 6);
      }
      commitGroup();
      const int done = running;
      running = now;
      if (more.value) fetch();
      waitGroups<1>();
      if (done >= 0) release(done);
      if (more.value) make(following);
    };
    fetch();
    make(q[0]);
    int k = s.begin;
#pragma unroll 1
    for (; k + 4 < s.end; k += 4) {
      step(q[0], q[1], Number<2>(), Number<1>());
      step(q[1], q[0], Number<2>(), Number<1>());
    }
    switch (s.end - k) {
    case 1: step(q[0], q[1], Number<1>(), Number<0>()); break;
    case 2: step(q[0], q[1], Number<2>(), Number<0>()); break;
    case 3:
      step(q[0], q[1], Number<2>(), Number<1>());
      step(q[1], q[0], Number<1>(), Number<0>());
      break;
    default: step(q[0], q[1], Number<2>(), Number<1>()); step(q[1], q[0], Number<2>(), Number<0>());
    }
    waitGroups<0>();
#pragma unroll
    for (int i = 0; i < M / 2; i++) asm volatile("" : "+f"(acc[i])::"memory");
    release(running);

    // A part of a tile goes to memory. The last cluster to finish adds up all parts, in order.
    if (s.begin > 0 || s.end < w.blockCount) {
      const int start = s.tile * walk.units, c0 = walk.clusterAt(start),
                c1 = walk.clusterAt(start + walk.units - 1);
      auto partOf = [&](int c) {
        const int last = walk.first(c) < start;
        return reinterpret_cast<float4 *>(p.work) +
               (u64((c * 2 + rank) * 2 + last) * 2 + group) * (M / 8 * 128) + thread;
      };
      float4 *own = partOf(cluster);
#pragma unroll
      for (int i = 0; i < M / 8; i++)
        __stcg(own + i * 128,
               make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]));
      __threadfence();
      syncWarpgroup(group);
      u32 *arrival = p.arrivals + (s.tile * 2 + rank) * 2 + group;
      if (thread == 0) lasts[group] = atomicAdd(arrival, 1u) == u32(c1 - c0);
      syncWarpgroup(group);
      if (!lasts[group]) continue;
      __threadfence();
      if (thread == 0) *arrival = 0;
      constexpr int batch = 8;
#pragma unroll
      for (int first = 0; first < M / 8; first += batch) {
        float4 sum[batch];
#pragma unroll
        for (int i = 0; i < batch; i++) sum[i] = make_float4(0, 0, 0, 0);
#pragma unroll 1
        for (int c = c0; c <= c1; c++) {
          const float4 *part = partOf(c) + first * 128;
          float4 v[batch];
#pragma unroll
          for (int i = 0; i < batch; i++) v[i] = __ldcg(part + i * 128);
#pragma unroll
          for (int i = 0; i < batch; i++)
            sum[i].x += v[i].x, sum[i].y += v[i].y, sum[i].z += v[i].z, sum[i].w += v[i].w;
        }
#pragma unroll
        for (int i = 0; i < batch; i++) {
          const int to = 4 * (first + i);
          acc[to] = sum[i].x, acc[to + 1] = sum[i].y, acc[to + 2] = sum[i].z,
          acc[to + 3] = sum[i].w;
        }
      }
    }

    int rowTile, panel;
    walk.place(s.tile, rowTile, panel);
    const int row0 = rowTile * M, column0 = (panel * 2 + rank) * 128 + 16 * group,
              mine = column0 + 32 * strip + g;
    if (p.bias) {
      const float b0 = mine < w.columns ? toFloat(p.bias[mine]) : 0,
                  b1 = mine + 8 < w.columns ? toFloat(p.bias[mine + 8]) : 0;
#pragma unroll
      for (int i = 0; i < M / 2; i++) acc[i] += i & 2 ? b1 : b0;
    }
    if (p.accumulate) {
#pragma unroll
      for (int i = 0; i < M / 2; i++) {
        const int row = row0 + 8 * (i >> 2) + 2 * t + (i & 1), column = mine + 8 * (i >> 1 & 1);
        if (row < p.m && column < w.columns)
          acc[i] += toFloat(p.out[u64(row) * w.columns + column]);
      }
    }
    // A warp brings 16 rows of its 16 columns at a time into the order of the result. Lines of 32
    // bytes, whose halves change places in every other four, so that stores meet different banks.
    const bool fast = w.columns % 8 == 0 && u64(p.out) % 16 == 0;
    const int stored = (lane & 7) + 8 * (lane >> 4), line = lane / 2;
    const u32 to = sharedAddress(lines) + stored * 32 + ((lane >> 3 ^ stored >> 2) & 1) * 16;
    const uint4 *from =
        reinterpret_cast<const uint4 *>(lines + line * 32 + ((lane ^ line >> 2) & 1) * 16);
    const int column = column0 + 32 * strip + 8 * (lane & 1);
#pragma unroll
    for (int j = 0; j < M / 16; j++) {
      if (row0 + 16 * j >= p.m) break;
      u32 v[4];
#pragma unroll
      for (int i = 0; i < 4; i++)
        v[i] = toHalf(acc[8 * j + 2 * i]) | toHalf(acc[8 * j + 2 * i + 1]) << 16;
      __syncwarp();
      storeTransposed(to, v);
      __syncwarp();
      const uint4 both = *from;
      const int row = row0 + 16 * j + line;
      if (row >= p.m || column >= w.columns) continue;
      u16 *out = p.out + u64(row) * w.columns + column;
      if (fast) {
        *reinterpret_cast<uint4 *>(out) = both;
      } else {
        const u32 words[4] = {both.x, both.y, both.z, both.w};
#pragma unroll
        for (int c = 0; c < 8; c++)
          if (column + c < w.columns) out[c] = u16(words[c / 2] >> 16 * (c & 1));
      }
    }
  }
}

// Fetch is what the threads that fetch have in common.
struct Fetch {
  u32 base, full;
  int slot, rank;
};

// fetchTiles fills the stages with units (0), scales (1), activations (2) or zeros (3).
template <int M, bool Asym, int Role>
__device__ __forceinline__ void fetchTiles(const Tall &p, const Fetch f) {
  constexpr int tablesAt = M * 128, tableBytes = panelStrips / 2 * 64,
                unitsAt = tablesAt + tableBytes * (Asym ? 4 : 2);
  const Weight &w = p.w;
  if (Role == 2) {
    prefetchMap(p.x);
    waitForEarlier();
  }
  int at = 0;
  u32 parity = 1;  // the first round finds all stages empty
  u32 barrier = f.full, to = f.base + (Role == 0   ? unitsAt
                                       : Role == 1 ? tablesAt
                                       : Role == 2 ? f.rank * (M * 64)
                                                   : tablesAt + 2 * tableBytes);
  auto advance = [&] {
    barrier += 8, to += f.slot;
    if (++at == p.stages) at = 0, parity ^= 1, barrier -= 8 * p.stages, to -= p.stages * f.slot;
  };
  Walk walk(p, blockIdx.x / 2);
  Segment s;
  while (walk.next(s)) {
    int rowTile, panel;
    walk.place(s.tile, rowTile, panel);
    const int width = stripsOfPanel(w, panel),
              strips = max(0, min(panelStrips / 2, width - f.rank * (panelStrips / 2)));
    if constexpr (Role == 2) {
      for (int k = s.begin; k < s.end; k += 2) {
        waitBarrier(barrier + 8 * maxStages, parity);
        expectBytes(barrier, M * 128);
        copyRowsBoth(to, p.x, k, rowTile * M + f.rank * (M / 2), barrier);
        advance();
      }
    } else if constexpr (Role == 0) {
      const unsigned char *words =
          w.words + blockAt(w, panel, 4 * s.begin) + f.rank * (panelStrips / 2) * 512;
      const u32 bytes = strips * 512, step = width * 512;
      for (int left = s.end - s.begin; left > 0; left -= 2) {
        waitBarrier(barrier + 8 * maxStages, parity);
        expectBytes(barrier, min(2, left) * bytes);
        if (bytes) copyBulk(to, words, bytes, barrier);
        if (bytes && left > 1) copyBulk(to + unitBytes, words + step, bytes, barrier);
        words += 2 * step;
        advance();
      }
    } else {
      const uint2 *blocks = reinterpret_cast<const uint2 *>(w.blocks);
      uint2 first = __ldg(blocks + s.begin), second = __ldg(blocks + min(s.begin + 1, s.end - 1));
      const unsigned char *table =
          reinterpret_cast<const unsigned char *>(Role == 1 ? w.scales : w.zeros) +
          (panel * panelStrips + f.rank * (panelStrips / 2)) * 64;
      for (int k = s.begin; k < s.end; k += 2) {
        const uint2 next = __ldg(blocks + min(k + 2, s.end - 1)),
                    afterNext = __ldg(blocks + min(k + 3, s.end - 1));
        const int count = min(2, s.end - k);
        waitBarrier(barrier + 8 * maxStages, parity);
        expectBytes(barrier, count * strips * 64);
        if (strips) {
          copyBulk(to, table + u64((first.y & 0xFFFF) * u32(w.strips)) * 64, strips * 64, barrier);
          if (count == 2)
            copyBulk(to + tableBytes, table + u64((second.y & 0xFFFF) * u32(w.strips)) * 64,
                     strips * 64, barrier);
        }
        first = next, second = afterNext;
        advance();
      }
    }
  }
}

// M is the number of rows of activations of a tile.
template <int M, bool Asym> __device__ __forceinline__ void tall(const Tall &p) {
  // A stage has two blocks: their activations, scales, zeros and units.
  constexpr int warps = 8, tablesAt = M * 128, tableBytes = panelStrips / 2 * 64,
                unitsAt = tablesAt + tableBytes * (Asym ? 4 : 2);
  constexpr int roles = Asym ? 4 : 3;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ u64 barriers[2 * maxStages];
  __shared__ u32 lasts[2];
  startNext();
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, rank = blockIdx.x & 1;
  const int slot = (unitsAt + 2 * unitBytes + 1023) & ~1023;
  const u32 base = sharedAddress(shared), full = sharedAddress(barriers),
            empty = full + 8 * maxStages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; i++) {
      initBarrier(full + 8 * i, roles);
      initBarrier(empty + 8 * i, 2 * warps * arriving);
    }
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::
                     : "memory");
  }
  syncCluster();

  // Registers of the warpgroup that fetches go to those that multiply.
  if (warp >= warps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    // One thread fetches units, one scales, one activations and one zeros: issuing a copy takes
    // longer than waiting for it.
    if (lane == 0) {
      const Fetch f = {base, full, slot, rank};
      switch (warp - warps) {
      case 0: fetchTiles<M, Asym, 0>(p, f); break;
      case 1: fetchTiles<M, Asym, 1>(p, f); break;
      case 2: fetchTiles<M, Asym, 2>(p, f); break;
      default:
        if (Asym) fetchTiles<M, Asym, 3>(p, f);
      }
    }
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    multiplyTiles<M, Asym>(p, shared, full, lasts, slot);
  }
  // A thread block stays while the other one sends.
  syncCluster();
}

// The names are kiln_tall_<rows>_4_<s or a for symmetric or not>.
#define KILN_TALL(m, kind, asym)                                                                   \
  extern "C" __global__ void __launch_bounds__(384, 1)                                             \
      kiln_tall_##m##_4_##kind(const __grid_constant__ Tall p) {                                   \
    tall<m, asym>(p);                                                                              \
  }
KILN_TALL(128, s, false)
KILN_TALL(192, s, false)
KILN_TALL(256, s, false)
KILN_TALL(128, a, true)
KILN_TALL(192, a, true)
KILN_TALL(256, a, true)
