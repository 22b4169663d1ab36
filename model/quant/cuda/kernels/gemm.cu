// Products of a few rows of activations with a weight, at the speed of memory.
//
// A warp owns 32·NS columns and a range of rows. It streams its part of the weight through its own
// ring in shared memory, without barriers, unpacks codes to exact halves and multiplies them on the
// tensor cores with 8·NB rows of activations. Sums are float32. Warps that share columns add up
// their sums in shared memory. Thread blocks that share columns are a cluster and do so in each
// other's shared memory, or, before compute capability 9.0, through a workspace. The order of
// additions is always the same.
#include "hopper.cuh"

// stagesFor is how many stages the ring of a warp has, a power of two. For a mixture of widths (B =
// 0) they are as large as the widest unit, and two thread blocks on a multiprocessor do more than a
// longer ring: with eight rows of activations, where registers allow two.
__host__ __device__ constexpr int stagesFor(int rows8, int strips, int b) {
  return strips > 2 || b == 0 && rows8 == 1 ? 4 : 8;
}

#if __CUDA_ARCH__ >= 900
constexpr bool clusters = true;
#else
constexpr bool clusters = false;
#endif

// loadMatrices reads four matrices of 8 lines of 16 bytes: a lane names line lane%8 of matrix
// lane/8, and gets word lane%4 of line lane/4 of each.
__device__ __forceinline__ uint4 loadMatrices(u32 shared) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}

// B is the one width of the matrix, or 0 for any mixture. With Round, weights are rounded to half
// precision as in a reconstructed matrix; without, codes are multiplied and the sum is scaled when
// the group ends. Direct puts the rows of activations into shared memory as they are and brings
// them into stored order there; without it they come in that order, through the ring.
template <int NB, int NS, int B, bool Round, bool Asym, bool Direct>
__device__ __forceinline__ void gemm(const Gemm &p) {
  constexpr int stages = stagesFor(NB, NS, B);
  extern __shared__ __align__(128) unsigned char shared[];
  startNext();
#if __CUDA_ARCH__ >= 900
  __shared__ u64 receivedBarrier;
  if (p.splits > 1) {
    if (threadIdx.x == 0) {
      initBarrier(sharedAddress(&receivedBarrier), 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    arriveCluster();
  }
#endif
  const Weight &w = p.w;
  int lane = threadIdx.x & 31;
  asm volatile("" : "+r"(lane));  // or it is computed again wherever it is used
  const int warp = threadIdx.x / 32, g = lane >> 2, t = lane & 3;
  const int warps = blockDim.x / 32, rowWarps = warps / p.columnWarps;
  const int columnWarp = warp % p.columnWarps, rowWarp = warp / p.columnWarps;
  const int columnTile = blockIdx.x / p.splits, rank = blockIdx.x % p.splits;
  // Warps to the right of the last column repeat its strips. Their sums are not stored.
  const int firstStrip =
      min((columnTile * p.columnWarps + columnWarp) * NS, (w.strips - 1) / NS * NS);
  const int part = rank * rowWarps + rowWarp, parts = p.splits * rowWarps;
  const int begin = u32(w.blockCount) * part / parts, end = u32(w.blockCount) * (part + 1) / parts;
  const int row0 = blockIdx.y * 8 * NB, rowsHere = min(8 * NB, p.m - row0);
  const int width = p.columnWarps * NS * 32, fours = width / 4;  // powers of two

  // What other thread blocks of the cluster send comes first, [rank][piece of 4 columns]; then the
  // blocks of this one; then the rings.
  const int pieces = (8 * NB * fours + p.splits - 1) / p.splits;
  const int received = clusters && p.splits > 1 ? (p.splits * pieces * 16 + 127) & ~127 : 0;
  const int firstBlock = u32(w.blockCount) * rank / p.splits,
            blockCount = u32(w.blockCount) * (rank + 1) / p.splits - firstBlock;
  const Block *blocks = reinterpret_cast<const Block *>(shared + received) - firstBlock;
  const int rings = received + (blockCount * 8 + 127 & ~127);
  const int unitSlot = (B ? B : w.maxWidth) * 128, slot = NS * unitSlot;
  constexpr int xSlot = Direct ? 0 : NB * 512;
  const int xRings = rings + warps * stages * slot;
  unsigned char *ring = shared + rings + warp * stages * slot,
                *xRing = shared + xRings + warp * stages * xSlot;
  u32 ringAddress = sharedAddress(ring) + 16 * lane,
      xAddress = sharedAddress(xRing) + 64 * g + 16 * (t ^ g >> 1 & 3);
  asm volatile("" : "+r"(ringAddress), "+r"(xAddress));

  for (int i = threadIdx.x; i < blockCount; i += blockDim.x)
    const_cast<Block *>(blocks)[firstBlock + i] = w.blocks[firstBlock + i];
  if (B == 0) __syncthreads();

  // Where the next block comes from. The strips of a warp are in one panel, next to each other.
  const int panel = firstStrip / panelStrips, inPanel = firstStrip % panelStrips,
            step = stripsOfPanel(w, panel) * 128;
  u32 bits = B, offset = B * begin;
  if (B == 0 && begin < end) bits = widthOf(blocks[begin]), offset = offsetOf(blocks[begin]);
  const unsigned char *from =
      w.words + blockAt(w, panel, offset) + 16 * lane + (B ? inPanel * B * 128 : 0);
  int fetched = begin;
  auto fetchWeight = [&](u32 to) {
#pragma unroll
    for (int c = 0; c < (B ? (NS * B + 3) / 4 : 2 * NS); c++)
      if (B && NS * B % 4 == 0 || lane + 32 * c < int(bits) * NS * 8)
        copyAsync16(to + 512 * c, from + (B ? 0 : inPanel * bits * 128) + 512 * c);
    from += bits * step;
    if (B == 0) bits = widthOf(blocks[min(++fetched, end - 1)]);
  };
  // A block of 8 rows takes 8 lines of 64 bytes, whose pieces of 16 bytes are exchanged so that
  // eight lines meet different banks.
  const u16 *x = p.x + u64(row0 + g) * (32 * w.blockCount) + 8 * t + 32 * begin;
  // Bit n: whether this lane fetches a part of row 8n + g.
  u32 mine = 0;
  for (int n = 0; n < NB; n++) mine |= u32(8 * n + g < rowsHere) << n;
  asm volatile("" : "+r"(mine));
  auto fetchX = [&](u32 to) {
#pragma unroll
    for (int n = 0; n < NB; n++)
      if (mine >> n & 1) copyAsync16(to + n * 512, x + u64(8 * n) * (32 * w.blockCount));
    x += 32;
  };

#pragma unroll 1
  for (int i = 0; i < stages - 1 && begin + i < end; i++) fetchWeight(ringAddress + i * slot);
  // With Direct, the rows are in shared memory in natural order, each with a zero behind it, and
  // each warp has its part of them in stored order. The indices of these elements are first in that
  // place.
  const int rowPitch = w.rows + 8, most = (w.blockCount + parts - 1) / parts;
  u16 *rows = reinterpret_cast<u16 *>(shared + xRings),
      *own = rows + p.m * rowPitch + warp * p.m * most * 32;
  if (Direct) {
    for (int i = lane; i < (end - begin) * 4; i += 32)
      copyAsync16(sharedAddress(own + 8 * i), p.order + 32 * begin + 8 * i);
  }
  if (B) __syncthreads();
  // The scales and zeros of this group and of the next, which is fetched early.
  uint2 scaleBits[NS], nextScale[NS], zeroBits[NS], nextZero[NS];
  const int lastGroup = begin < end ? groupOf(blocks[end - 1]) : 0;
  auto fetchGroup = [&](int group) {
#pragma unroll
    for (int s = 0; s < NS; s++) {
      const int strip = min(firstStrip + s, w.strips - 1);
      nextScale[s] = __ldg(columnsAt(w.scales, w, min(group, lastGroup), strip, lane));
      if (Asym) nextZero[s] = __ldg(columnsAt(w.zeros, w, min(group, lastGroup), strip, lane));
    }
  };
  if (begin < end) fetchGroup(groupOf(blocks[begin]));

  waitForEarlier();
  if (Direct) {
    for (int i = threadIdx.x; i < p.m * (w.rows / 8); i += blockDim.x) {
      const int row = i / (w.rows / 8), piece = i % (w.rows / 8);
      copyAsync16(sharedAddress(rows + row * rowPitch + piece * 8),
                  p.x + u64(row) * w.rows + piece * 8);
    }
    if (threadIdx.x < p.m) rows[threadIdx.x * rowPitch + w.rows] = 0;
    commitAsync();
    waitAsync<0>();
    __syncthreads();
    u32 *pairs = reinterpret_cast<u32 *>(own);
    for (int i = lane; i < (end - begin) * 16; i += 32) {
      const u32 from = pairs[i];
      for (int row = 0; row < p.m; row++) {
        const u16 *natural = rows + row * rowPitch;
        pairs[row * most * 16 + i] = natural[from & 0xFFFF] | u32(natural[from >> 16]) << 16;
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < stages - 1; i++) commitAsync();
  } else {
#pragma unroll 1
    for (int i = 0; i < stages - 1; i++) {
      if (begin + i < end) fetchX(xAddress + i * xSlot);
      commitAsync();
    }
  }
  // Where this lane reads a line for the four matrices of a block: the rows are those of lane%8,
  // the pieces of lane/8.
  const int line = lane & 7, piece = lane >> 3;
  u32 xFrom = Direct ? sharedAddress(own + min(line, p.m - 1) * most * 32 + 8 * piece)
                     : sharedAddress(xRing) + 64 * line + 16 * (piece ^ line >> 1 & 3);
  asm volatile("" : "+r"(xFrom));

  // 4 bits are multiplied with their offsets, which are multiplied once for all columns and taken
  // off when the group ends.
  constexpr bool mayBeRaw = !Round && (B == 0 || B == 4);
  float acc[NS][2][NB][4] = {}, sum[Round ? 1 : NS][2][NB][4] = {}, offsets[NB][4] = {};
  bool raw = B == 4;
  auto flush = [&] {
    if constexpr (Round) return;
#pragma unroll
    for (int s = 0; s < NS; s++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int f = i >> 2, h = i >> 1 & 1;
        const u32 scaleHalves = f ? scaleBits[s].y : scaleBits[s].x,
                  zeroHalves = f ? zeroBits[s].y : zeroBits[s].x;
        const float scale = toFloat(h ? scaleHalves >> 16 : scaleHalves);
        float factor = 0;
        if (mayBeRaw && raw)
          factor = 1 + (Asym ? toFloat(h ? zeroHalves >> 16 : zeroHalves) : 8) *
                           (h ? 1.0f / 16 : 1.0f / 256);
#pragma unroll
        for (int n = 0; n < NB; n++) {
          float v = acc[s][f][n][i & 3];
          if (mayBeRaw) v -= factor * offsets[n][i & 3];
          sum[Round ? 0 : s][f][n][i & 3] += scale * v;
          acc[s][f][n][i & 3] = 0;
        }
      }
    if (mayBeRaw) {
#pragma unroll
      for (int n = 0; n < NB; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) offsets[n][i] = 0;
    }
  };

  int k = begin;
#pragma unroll 1
  while (k < end) {
    // One group.
    const Block block = blocks[k];
    if (B == 0) raw = widthOf(block) == 4;
#pragma unroll
    for (int s = 0; s < NS; s++) {
      scaleBits[s] = nextScale[s];
      if (Asym) zeroBits[s] = nextZero[s];
    }
    fetchGroup(groupOf(block) + 1);
    const int groupEnd = min(end, k + restOf(block));
#pragma unroll 1
    do {
      const u32 at = u32(k - begin) % stages, freed = u32(k - begin + stages - 1) % stages;
      waitAsync<stages - 2>();
      __syncwarp();
      const unsigned char *stage = ring + at * slot;
      // Places of rows beyond the last have other rows, or stale memory. A row of the result
      // depends on its own row only, and those of such places are not stored.
      uint4 xs[NB];
#pragma unroll
      for (int n = 0; n < NB; n++)
        xs[n] = loadMatrices(xFrom + (Direct ? 64 * (k - begin) : at * xSlot + n * 512));
      u32 words[B == 4 ? NS : 1][4];
      if (B == 4) {
#pragma unroll
        for (int s = 0; s < NS; s++) loadWords<4>(stage + s * 512, lane, words[B == 4 ? s : 0]);
      }
      // The stage that was read last is free.
      if (k + stages - 1 < end) {
        fetchWeight(ringAddress + freed * slot);
        if (!Direct) fetchX(xAddress + freed * xSlot);
      }
      commitAsync();
      auto units = [&](auto width) {
        constexpr int bits = decltype(width)::value;
        if constexpr (mayBeRaw && bits == 4) {
          addOffsets<NB>(xs, offsets);
#pragma unroll
          for (int s = 0; s < NS; s++) {
            if (B != 4) loadWords<4>(stage + s * bits * 128, lane, words[0]);
            multiplyRaw<NB>(words[B == 4 ? s : 0], xs, acc[s]);
          }
        } else {
#pragma unroll
          for (int s = 0; s < NS; s++) {
            u32 scale[4];
            Zeros z;
            if (Round) columnPairs(scaleBits[s], scale);
            if (Asym) expandZeros(zeroBits[s], z);
            multiply<bits, NB, Round, Asym>(stage + s * bits * 128, lane, z, scale, xs, acc[s]);
          }
        }
      };
      if (B) {
        units(Number<B ? B : 4>());
      } else {
        switch (widthOf(block)) {
        case 2: units(Number<2>()); break;
        case 3: units(Number<3>()); break;
        case 4: units(Number<4>()); break;
        case 5: units(Number<5>()); break;
        case 6: units(Number<6>()); break;
        default: units(Number<8>());
        }
      }
    } while (++k < groupEnd);
    flush();
  }
  waitAsync<0>();
  __syncthreads();

  // The sums of all warps, [row warp][row][column], rows 4 words apart from a multiple of 32 so
  // that stores of a warp meet different banks.
  const int pitch = width + 4;
  float *sums = reinterpret_cast<float *>(shared + rings);
#pragma unroll
  for (int s = 0; s < NS; s++)
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int n = 0; n < NB; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int row = 8 * n + 2 * t + (i & 1),
                    column = (columnWarp * NS + s) * 32 + 16 * f + 8 * (i >> 1) + g;
          if (row < rowsHere)
            sums[(rowWarp * 8 * NB + row) * pitch + column] =
                Round ? acc[s][f][n][i] : sum[Round ? 0 : s][f][n][i];
        }
  __syncthreads();

  // A thread adds up four columns at a time: piece i of the tile. The code is short because it runs
  // once, so that every instruction is fetched from memory.
  auto add = [&](float4 &v, float4 one) { v.x += one.x, v.y += one.y, v.z += one.z, v.w += one.w; };
  const int shift = 31 - __clz(fours);
  auto ofWarps = [&](int i) {
    const float *first = sums + (i >> shift) * pitch + (i & (fours - 1)) * 4;
    float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < 8; r++)
      if (r < rowWarps) add(v, *reinterpret_cast<const float4 *>(first + r * 8 * NB * pitch));
    return v;
  };
  auto finish = [&](int i, float4 v) {
    const int column = columnTile * width + (i & (fours - 1)) * 4;
    u16 *to = p.out + u64(row0 + (i >> shift)) * w.columns + column;
    if (!p.bias && !p.accumulate && w.columns % 4 == 0 && u64(p.out) % 8 == 0) {
      if (column < w.columns)
        *reinterpret_cast<uint2 *>(to) =
            make_uint2(toHalf(v.x) | toHalf(v.y) << 16, toHalf(v.z) | toHalf(v.w) << 16);
      return;
    }
    const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (column + j >= w.columns) break;
      float value = values[j];
      if (p.bias) value += toFloat(p.bias[column + j]);
      if (p.accumulate) value += toFloat(to[j]);
      to[j] = u16(toHalf(value));
    }
  };
  const int count = rowsHere * fours;
  if (p.splits == 1) {
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += blockDim.x) finish(i, ofWarps(i));
    return;
  }
#if __CUDA_ARCH__ >= 900
  const u32 barrier = sharedAddress(&receivedBarrier);
  if (threadIdx.x == 0)
    expectBytes(barrier, (count - rank + p.splits - 1) / p.splits * p.splits * 16);
  waitCluster();  // all have begun, so that their memory is there
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += blockDim.x)
    storeCluster(sharedAddress(shared) + (rank * pieces + i / p.splits) * 16, barrier, i % p.splits,
                 ofWarps(i));
  waitBarrier(barrier, 0);
#pragma unroll 1
  for (int j = threadIdx.x; j * p.splits + rank < count; j += blockDim.x) {
    float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < 8; r++)
      if (r < p.splits) add(v, *reinterpret_cast<const float4 *>(shared + (r * pieces + j) * 16));
    finish(j * p.splits + rank, v);
  }
#else
  __shared__ u32 last;
  const u32 tile = blockIdx.y * (gridDim.x / p.splits) + columnTile;
  float4 *partial = reinterpret_cast<float4 *>(p.work) + u64(tile) * p.splits * (8 * NB * fours);
  for (int i = threadIdx.x; i < count; i += blockDim.x)
    partial[rank * (8 * NB * fours) + i] = ofWarps(i);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&p.arrivals[tile], 1u) == u32(p.splits - 1);
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    float4 v = make_float4(0, 0, 0, 0);
    for (int r = 0; r < p.splits; r++) add(v, __ldcg(partial + r * (8 * NB * fours) + i));
    finish(i, v);
  }
  if (threadIdx.x == 0) p.arrivals[tile] = 0;
#endif
}

// The names are kiln_gemm_<rows/8>x<strips>_<width or 0>_<f for fused, d for fused and direct, r
// for rounded><s or a for symmetric or not>.
#define KILN_GEMM(nb, ns, b, kind, rounded, asym, direct)                                          \
  extern "C" __global__ void __launch_bounds__(256, (nb) * (ns) > 4 || ns > 2 && asym ? 1 : 2)     \
      kiln_gemm_##nb##x##ns##_##b##_##kind(const Gemm p) {                                         \
    gemm<nb, ns, b, rounded, asym, direct>(p);                                                     \
  }
#define KILN_SHAPES(b, fused, direct, asym)                                                        \
  KILN_GEMM(1, 2, b, fused, false, asym, false)                                                    \
  KILN_GEMM(1, 4, b, fused, false, asym, false)                                                    \
  KILN_GEMM(2, 2, b, fused, false, asym, false)                                                    \
  KILN_GEMM(2, 4, b, fused, false, asym, false)                                                    \
  KILN_GEMM(4, 2, b, fused, false, asym, false)                                                    \
  KILN_GEMM(1, 2, b, direct, false, asym, true)                                                    \
  KILN_GEMM(1, 4, b, direct, false, asym, true)
#if __CUDA_ARCH__ >= 800
KILN_SHAPES(4, fs, ds, false)
KILN_SHAPES(0, fs, ds, false)
KILN_SHAPES(4, fa, da, true)
KILN_SHAPES(0, fa, da, true)
#else
// Compute capability 7.5 has too little shared memory for the other shapes.
#define KILN_FEW_SHAPES(b, fused, asym)                                                            \
  KILN_GEMM(1, 2, b, fused, false, asym, false)                                                    \
  KILN_GEMM(4, 2, b, fused, false, asym, false)
KILN_FEW_SHAPES(4, fs, false)
KILN_FEW_SHAPES(0, fs, false)
KILN_FEW_SHAPES(4, fa, true)
KILN_FEW_SHAPES(0, fa, true)
#endif
KILN_GEMM(1, 2, 0, rs, true, false, false)
KILN_GEMM(4, 2, 0, rs, true, false, false)
KILN_GEMM(1, 2, 0, ra, true, true, false)
KILN_GEMM(4, 2, 0, ra, true, true, false)
