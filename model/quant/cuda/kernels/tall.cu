// Products of many rows of activations with a weight: tiles of 128 columns and up to 256 rows, so that a weight is unpacked once for
// as many products as the tensor cores take.
//
// Two thread blocks are a cluster and own the two halves of a panel. Each fetches half of the activations that both need and sends
// it to both. Within a thread block two warpgroups own a fragment of 64 columns each: the first 16 of every strip, and the others. A
// warpgroup unpacks the next 32 rows while the tensor cores multiply those before.
//
// The grid fills the device once. A cluster first computes an even share of those tiles that do not come out even, in ranges of rows
// of the weight, and then whole tiles. What several clusters have of a tile goes through memory, and the last one there adds it up,
// always in the order of the rows.
#include "wgmma.cuh"

struct Tall {
  Weight w;
  const u16 *x;  // in the order of kiln_gather for tiles
  u16 *out;      // [m][columns]
  const u16 *bias;
  float *work;    // [thread block][first or last tile][M·128]
  u32 *arrivals;  // [tile][thread block of the cluster][warpgroup], zeros before and after
  int m, accumulate, rowTiles, slab;
  int tiles, sharedTiles, stages;
};

constexpr int maxStages = 16;

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
      : p(p), clusters(gridDim.x / 2), units((p.w.blockCount + quantum - 1) / quantum), position(first(cluster)),
        stop(first(cluster + 1)), tile(p.sharedTiles + cluster) {}

  __device__ __forceinline__ int first(int cluster) const { return int(u64(p.sharedTiles * units) * cluster / clusters); }
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
  // place says which rows and which panel a tile is. Tiles of a slab of rows follow each other, so that its activations stay in the cache.
  __device__ __forceinline__ void place(int tile, int &rowTile, int &panel) const {
    const int panels = (p.w.strips + panelStrips - 1) / panelStrips, slab = tile / (p.slab * panels), rest = tile - slab * p.slab * panels;
    const int rows = min(p.slab, p.rowTiles - slab * p.slab);
    panel = rest / rows, rowTile = slab * p.slab + rest - panel * rows;
  }
};

__device__ __forceinline__ void copyBulkBoth(u32 to, const void *from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier), "h"(u16(3))
               : "memory");
}
__device__ __forceinline__ void arriveAt(u32 barrier, int rank) {
  asm volatile("{ .reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [a]; }" ::"r"(
                   barrier),
               "r"(rank)
               : "memory");
}
__device__ __forceinline__ void storeTransposed(u32 to, const u32 (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}
__device__ __forceinline__ void syncWarpgroup(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

// Raw is what a lane has of a unit, and of the tables for its two columns, before it is unpacked.
template <int B> struct Raw {
  u32 words[B == 4 ? 2 : 8];
  u32 scales, zeros;
};

// unpackFragment makes the weights of fragment F. Of a width of 4, whose words belong to one fragment each, only those are in raw.
template <int B, bool Asym, int F, int R> __device__ __forceinline__ void unpackFragment(const Raw<R> &raw, u32 (&out)[8]) {
  u32 q[16];
  if constexpr (R == 4) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
      const u32 word = raw.words[j], other = __byte_perm(word, 0, 0x2301);
      out[4 * j + 0] = orMasked(word, 0x003C003C, half256);
      out[4 * j + 1] = orMasked(word, 0x03C003C0, half16);
      out[4 * j + 2] = orMasked(other, 0x003C003C, half256);
      out[4 * j + 3] = orMasked(other, 0x03C003C0, half16);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u32 zero = integer((i & 1 ? 16 : 256) + 8);
      if (Asym) zero = hsub2(__byte_perm(raw.zeros, 0, i & 1 ? 0x3232 : 0x1010), (i & 1 ? half16 : half256) | 0x80008000);
      out[i] = hsub2(out[i], zero);
    }
  } else {
    Zeros z;
    if (Asym) {
      z.plain[2 * F] = __byte_perm(raw.zeros, 0, 0x1010), z.plain[2 * F + 1] = __byte_perm(raw.zeros, 0, 0x3232);
#pragma unroll
      for (int h = 2 * F; h < 2 * F + 2; h++) z.with1024[h] = hsub2(z.plain[h], 0xE400E400);  // − (−1024)
    }
    unpack<B, Asym>(raw.words, z, q);
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = q[8 * F + i];
  }
#pragma unroll
  for (int i = 0; i < 8; i++) out[i] = hmul2(out[i], __byte_perm(raw.scales, 0, i & 1 ? 0x3232 : 0x1010));
}

// multiplyTiles is what a warpgroup does. F is which of its strips' fragments it owns where that must be known when it is compiled.
template <int M, int B, bool Asym, int F>
__device__ __forceinline__ void multiplyTiles(const Tall &p, unsigned char *shared, u32 full, const u32 *widths, u32 *lasts, int slot, int unitBytes) {
  constexpr int tileBytes = M * 64, tableBytes = panelStrips / 2 * 64, tablesAt = 2 * tileBytes, unitsAt = tablesAt + tableBytes * (Asym ? 4 : 2);
  const Weight &w = p.w;
  int lane = threadIdx.x & 31;
  asm volatile("" : "+r"(lane));  // or it is computed again wherever it is used
  const int group = threadIdx.x / 128, strip = threadIdx.x / 32 & 3, thread = threadIdx.x & 127, g = lane >> 2, t = lane & 3;
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
    u32 width[2] = {B, B};
    Raw<B> raw[2];
    auto release = [&](int stage) {
      __syncwarp();
      if (lane < arriving) {
        arriveAt(empty + 8 * stage, 0);
        arriveAt(empty + 8 * stage, 1);
      }
    };
    auto fetch = [&] {
      waitBarrier(full + 8 * at, parity);
      const unsigned char *from = shared + at * slot, *table = from + tablesAt + strip * 64 + g * 8 + group * 4;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        if (!B) width[i] = widths[2 * at + i];
        const unsigned char *unit = from + unitsAt + i * unitBytes + strip * width[i] * 128;
        raw[i].scales = *reinterpret_cast<const u32 *>(table + i * tableBytes);
        if (Asym) raw[i].zeros = *reinterpret_cast<const u32 *>(table + (2 + i) * tableBytes);
        if constexpr (B == 4) {
          const uint2 v = *reinterpret_cast<const uint2 *>(unit + 16 * lane + 8 * group);
          raw[i].words[0] = v.x, raw[i].words[1] = v.y;
        } else {
          switch (width[i]) {
          case 2: loadWords<2>(unit, lane, raw[i].words); break;
          case 3: loadWords<3>(unit, lane, raw[i].words); break;
          case 4: loadWords<4>(unit, lane, raw[i].words); break;
          case 5: loadWords<5>(unit, lane, raw[i].words); break;
          case 6: loadWords<6>(unit, lane, raw[i].words); break;
          default: loadWords<8>(unit, lane, raw[i].words);
          }
        }
      }
      now = at;
      if (++at == p.stages) at = 0, parity ^= 1;
    };
    auto make = [&](u32 (&q)[2][8]) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        if constexpr (B == 4) {
          unpackFragment<4, Asym, F>(raw[i], q[i]);
        } else {
          switch (width[i]) {
          case 2: unpackFragment<2, Asym, F>(raw[i], q[i]); break;
          case 3: unpackFragment<3, Asym, F>(raw[i], q[i]); break;
          case 4: unpackFragment<4, Asym, F>(raw[i], q[i]); break;
          case 5: unpackFragment<5, Asym, F>(raw[i], q[i]); break;
          case 6: unpackFragment<6, Asym, F>(raw[i], q[i]); break;
          default: unpackFragment<8, Asym, F>(raw[i], q[i]);
          }
        }
      }
    };
    // step starts the products of two blocks, or of the last one, and unpacks the next, if there are more, when those of the blocks before
    // are done. Between that and the start of its products there is as little as possible.
    auto step = [&](u32 (&q)[2][8], u32 (&following)[2][8], auto blocks, auto more) {
      const u64 rows = descriptor(base + now * slot);
      fenceOperands();
      Tile<M>::multiply(acc, q[0], rows);
      Tile<M>::multiply(acc, q[0] + 4, rows + 2);
      if (blocks.value == 2) {
        Tile<M>::multiply(acc, q[1], rows + tileBytes / 16);
        Tile<M>::multiply(acc, q[1] + 4, rows + tileBytes / 16 + 2);
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
    default:
      step(q[0], q[1], Number<2>(), Number<1>());
      step(q[1], q[0], Number<2>(), Number<0>());
    }
    waitGroups<0>();
#pragma unroll
    for (int i = 0; i < M / 2; i++) asm volatile("" : "+f"(acc[i])::"memory");
    release(running);

    // A part of a tile goes to memory. The last that comes adds up all parts, in order.
    if (s.begin > 0 || s.end < w.blockCount) {
      const int start = s.tile * walk.units, c0 = walk.clusterAt(start), c1 = walk.clusterAt(start + walk.units - 1);
      auto partOf = [&](int c) {
        const int last = walk.first(c) < start;
        return reinterpret_cast<float4 *>(p.work) + (u64((c * 2 + rank) * 2 + last) * 2 + group) * (M / 8 * 128) + thread;
      };
      float4 *own = partOf(cluster);
#pragma unroll
      for (int i = 0; i < M / 8; i++) __stcg(own + i * 128, make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]));
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
          for (int i = 0; i < batch; i++) sum[i].x += v[i].x, sum[i].y += v[i].y, sum[i].z += v[i].z, sum[i].w += v[i].w;
        }
#pragma unroll
        for (int i = 0; i < batch; i++) {
          const int to = 4 * (first + i);
          acc[to] = sum[i].x, acc[to + 1] = sum[i].y, acc[to + 2] = sum[i].z, acc[to + 3] = sum[i].w;
        }
      }
    }

    int rowTile, panel;
    walk.place(s.tile, rowTile, panel);
    const int row0 = rowTile * M, column0 = (panel * 2 + rank) * 128 + 16 * group, mine = column0 + 32 * strip + g;
    if (p.bias) {
      const float b0 = mine < w.columns ? toFloat(p.bias[mine]) : 0, b1 = mine + 8 < w.columns ? toFloat(p.bias[mine + 8]) : 0;
#pragma unroll
      for (int i = 0; i < M / 2; i++) acc[i] += i & 2 ? b1 : b0;
    }
    if (p.accumulate) {
#pragma unroll
      for (int i = 0; i < M / 2; i++) {
        const int row = row0 + 8 * (i >> 2) + 2 * t + (i & 1), column = mine + 8 * (i >> 1 & 1);
        if (row < p.m && column < w.columns) acc[i] += toFloat(p.out[u64(row) * w.columns + column]);
      }
    }
    // A warp brings 16 rows of its 16 columns at a time into the order of the result. Lines of 32 bytes, whose halves change places in every
    // other four, so that stores meet different banks.
    const bool fast = w.columns % 8 == 0 && u64(p.out) % 16 == 0;
    const int stored = (lane & 7) + 8 * (lane >> 4), line = lane / 2;
    const u32 to = sharedAddress(lines) + stored * 32 + ((lane >> 3 ^ stored >> 2) & 1) * 16;
    const uint4 *from = reinterpret_cast<const uint4 *>(lines + line * 32 + ((lane ^ line >> 2) & 1) * 16);
    const int column = column0 + 32 * strip + 8 * (lane & 1);
#pragma unroll
    for (int j = 0; j < M / 16; j++) {
      if (row0 + 16 * j >= p.m) break;
      u32 v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) v[i] = toHalf(acc[8 * j + 2 * i]) | toHalf(acc[8 * j + 2 * i + 1]) << 16;
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
  int slot, unitBytes, rank;
};

// fetchTiles fills the stages with units (0), scales (1), activations (2) or zeros (3).
template <int M, int B, bool Asym, int Role> __device__ __forceinline__ void fetchTiles(const Tall &p, const Fetch f, u32 *widths) {
  constexpr int tileBytes = M * 64, tableBytes = panelStrips / 2 * 64, tablesAt = 2 * tileBytes, unitsAt = tablesAt + tableBytes * (Asym ? 4 : 2);
  const Weight &w = p.w;
  if (Role == 2) waitForEarlier();
  int at = 0;
  u32 parity = 1;  // the first round finds all stages empty
  u32 barrier = f.full, to = f.base + (Role == 0 ? unitsAt : Role == 1 ? tablesAt : Role == 2 ? f.rank * tileBytes : tablesAt + 2 * tableBytes);
  auto advance = [&] {
    barrier += 8, to += f.slot;
    if (++at == p.stages) at = 0, parity ^= 1, barrier -= 8 * p.stages, to -= p.stages * f.slot;
  };
  Walk walk(p, blockIdx.x / 2);
  Segment s;
  while (walk.next(s)) {
    int rowTile, panel;
    walk.place(s.tile, rowTile, panel);
    const int width = stripsOfPanel(w, panel), strips = max(0, min(panelStrips / 2, width - f.rank * (panelStrips / 2)));
    if constexpr (Role == 2) {
      // The first block of a stage comes from the first thread block, for both.
      const unsigned char *x = reinterpret_cast<const unsigned char *>(p.x) + (u64(rowTile) * w.blockCount + s.begin + f.rank) * tileBytes;
      for (int left = s.end - s.begin; left > 0; left -= 2) {
        waitBarrier(barrier + 8 * maxStages, parity);
        expectBytes(barrier, min(2, left) * tileBytes);
        if (f.rank < left) copyBulkBoth(to, x, tileBytes, barrier);
        x += 2 * tileBytes;
        advance();
      }
    } else if constexpr (Role == 0 && B != 0) {
      const unsigned char *words = w.words + blockAt(w, panel, B * s.begin) + f.rank * (panelStrips / 2) * B * 128;
      const u32 bytes = strips * B * 128, step = width * B * 128;
      for (int left = s.end - s.begin; left > 0; left -= 2) {
        waitBarrier(barrier + 8 * maxStages, parity);
        expectBytes(barrier, min(2, left) * bytes);
        if (bytes) copyBulk(to, words, bytes, barrier);
        if (bytes && left > 1) copyBulk(to + f.unitBytes, words + step, bytes, barrier);
        words += 2 * step;
        advance();
      }
    } else {
      const uint2 *blocks = reinterpret_cast<const uint2 *>(w.blocks);
      uint2 first = __ldg(blocks + s.begin), second = __ldg(blocks + min(s.begin + 1, s.end - 1));
      const unsigned char *words = w.words + blockAt(w, panel, 0), *table = reinterpret_cast<const unsigned char *>(Role == 1 ? w.scales : w.zeros);
      table += (panel * panelStrips + f.rank * (panelStrips / 2)) * 64;
      for (int k = s.begin; k < s.end; k += 2) {
        const uint2 next = __ldg(blocks + min(k + 2, s.end - 1)), afterNext = __ldg(blocks + min(k + 3, s.end - 1));
        const int count = min(2, s.end - k);
        waitBarrier(barrier + 8 * maxStages, parity);
        if (Role == 0) {
          const u32 width1 = first.x & 15, width2 = second.x & 15, skip = f.rank * (panelStrips / 2);
          widths[2 * at] = width1, widths[2 * at + 1] = width2;
          expectBytes(barrier, strips * (width1 + (count == 2 ? width2 : 0)) * 128);
          if (strips) {
            copyBulk(to, words + (u64(first.x >> 4) * width + skip * width1) * 128, strips * width1 * 128, barrier);
            if (count == 2) copyBulk(to + f.unitBytes, words + (u64(second.x >> 4) * width + skip * width2) * 128, strips * width2 * 128, barrier);
          }
        } else {
          expectBytes(barrier, count * strips * 64);
          if (strips) {
            copyBulk(to, table + u64((first.y & 0xFFFF) * u32(w.strips)) * 64, strips * 64, barrier);
            if (count == 2) copyBulk(to + tableBytes, table + u64((second.y & 0xFFFF) * u32(w.strips)) * 64, strips * 64, barrier);
          }
        }
        first = next, second = afterNext;
        advance();
      }
    }
  }
}

// B is the one width of the matrix, or 0 for any mixture. M is the number of rows of activations of a tile.
template <int M, int B, bool Asym> __device__ __forceinline__ void tall(const Tall &p) {
  // A stage has two blocks: their activations, scales, zeros and units.
  constexpr int warps = 8, tileBytes = M * 64, tableBytes = panelStrips / 2 * 64, tablesAt = 2 * tileBytes, unitsAt = tablesAt + tableBytes * (Asym ? 4 : 2);
  constexpr int roles = Asym ? 4 : 3;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ u64 barriers[2 * maxStages];
  __shared__ u32 widths[2 * maxStages], lasts[2];
  startNext();
  const Weight &w = p.w;
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, rank = blockIdx.x & 1;
  const int unitBytes = panelStrips / 2 * (B ? B : w.maxWidth) * 128, slot = (unitsAt + 2 * unitBytes + 511) & ~511;
  const u32 base = sharedAddress(shared), full = sharedAddress(barriers), empty = full + 8 * maxStages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; i++) {
      initBarrier(full + 8 * i, roles);
      initBarrier(empty + 8 * i, 2 * warps * arriving);
    }
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
  }
  syncCluster();

  // Registers of the warpgroup that fetches go to those that multiply.
  if (warp >= warps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    // One thread fetches units, one scales, one activations and one zeros: issuing a copy takes longer than waiting for it.
    if (lane == 0) {
      const Fetch f = {base, full, slot, unitBytes, rank};
      switch (warp - warps) {
      case 0: fetchTiles<M, B, Asym, 0>(p, f, widths); break;
      case 1: fetchTiles<M, B, Asym, 1>(p, f, widths); break;
      case 2: fetchTiles<M, B, Asym, 2>(p, f, widths); break;
      default:
        if (Asym) fetchTiles<M, B, Asym, 3>(p, f, widths);
      }
    }
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    if (B == 4 || warp < warps / 2) multiplyTiles<M, B, Asym, 0>(p, shared, full, widths, lasts, slot, unitBytes);
    else multiplyTiles<M, B, Asym, 1>(p, shared, full, widths, lasts, slot, unitBytes);
  }
  // A thread block stays while the other one sends.
  syncCluster();
}

// The names are kiln_tall_<rows>_<width or 0>_<s or a for symmetric or not>.
#define KILN_TALL(m, b, kind, asym)                                                                   \
  extern "C" __global__ void __launch_bounds__(384, 1) kiln_tall_##m##_##b##_##kind(const Tall p) { \
    tall<m, b, asym>(p);                                                                              \
  }
#define KILN_ROWS(b, kind, asym) KILN_TALL(128, b, kind, asym) KILN_TALL(192, b, kind, asym) KILN_TALL(256, b, kind, asym)
KILN_ROWS(4, s, false)
KILN_ROWS(0, s, false)
KILN_ROWS(4, a, true)
KILN_ROWS(0, a, true)
