// Products of a few rows of activations with a weight, at the speed of memory.
//
// A warp owns 32·NS columns and a range of rows. It streams its part of the weight through its own ring in shared
// memory, with no barrier, unpacks codes to exact halves and multiplies them on the tensor cores with 8·NB rows of
// activations, summed in float32. Warps that share columns add up in shared memory, thread blocks that do through a
// workspace, always in the same order.
#include "kiln.cuh"

struct Gemm {
  Weight w;
  const u16 *x;  // [m][32·blockCount] in stored order; Direct: [m][rows] in natural order
  u16 *out;      // [m][columns]
  const u16 *bias;
  float *work;    // [tile][split][tile size]
  u32 *arrivals;  // [tile], zeros before and after
  const u16 *order;  // natural row of each padded row, that behind the last for padding
  int m, columnWarps, splits, accumulate;
};

constexpr int stages = 6;

__device__ __forceinline__ void mma(float (&c)[4], const u32 *a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// multiply unpacks a unit and multiplies it. With Round, weights are rounded to half precision as in a reconstructed
// matrix; without, codes are multiplied and the sum is scaled when the group ends.
template <int B, int NB, bool Round, bool Asym>
__device__ __forceinline__ void multiply(const unsigned char *unit, int lane, const Zeros &z, const u32 (&scale)[4],
                                         const uint4 (&x)[NB], float (&acc)[2][NB][4]) {
  u32 w[8], q[16];
  loadWords<B>(unit, lane, w);
  unpack<B, Asym>(w, z, q);
  if (Round) {
#pragma unroll
    for (int i = 0; i < 16; i++) q[i] = hmul2(q[i], scale[(i >> 3) * 2 + (i & 1)]);
  }
#pragma unroll
  for (int f = 0; f < 2; f++)
#pragma unroll
    for (int n = 0; n < NB; n++) mma(acc[f][n], q + 8 * f, x[n].x, x[n].y);
#pragma unroll
  for (int f = 0; f < 2; f++)
#pragma unroll
    for (int n = 0; n < NB; n++) mma(acc[f][n], q + 8 * f + 4, x[n].z, x[n].w);
}

// B is the one width of the matrix, or 0 for any mixture. Direct puts the rows of activations into shared memory as they
// are and finds each element there; without it they come in stored order, through the ring.
template <int NB, int NS, int B, bool Round, bool Asym, bool Direct> __device__ __forceinline__ void gemm(const Gemm &p) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ u32 last;
  startNext();
  const Weight &w = p.w;
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, g = lane >> 2, t = lane & 3;
  const int warps = blockDim.x / 32, rowWarps = warps / p.columnWarps;
  const int columnWarp = warp % p.columnWarps, rowWarp = warp / p.columnWarps;
  // Warps to the right of the last column repeat its strips, and nobody stores what they get.
  const int firstStrip = min((blockIdx.x * p.columnWarps + columnWarp) * NS, (w.strips - 1) / NS * NS);
  const int part = blockIdx.y * rowWarps + rowWarp, parts = p.splits * rowWarps;
  const int begin = int(u64(w.blockCount) * part / parts), end = int(u64(w.blockCount) * (part + 1) / parts);
  const int row0 = blockIdx.z * 8 * NB;

  const int unitSlot = (B ? B : w.maxWidth) * 128, slot = NS * unitSlot + (Direct ? 64 : NB * 512);
  unsigned char *ring = shared + warp * stages * slot;
  const u32 ringAddress = sharedAddress(ring);

  // Where the next block comes from and goes to. The strips of a warp are in one panel, next to each other.
  const Block *blocks = w.blocks;
  const int panel = firstStrip / panelStrips, inPanel = firstStrip % panelStrips, step = stripsOfPanel(w, panel) * 128;
  const unsigned char *from = w.words + blockAt(w, panel, B ? B * begin : offsetOf(blocks[min(begin, w.blockCount - 1)])) + 16 * lane;
  u32 to = ringAddress + 16 * lane, bits = B ? B : widthOf(blocks[min(begin, w.blockCount - 1)]);
  int fetched = begin;
  auto fetchWeight = [&] {
    u32 following = B ? B : widthOf(blocks[min(fetched + 1, w.blockCount - 1)]);
#pragma unroll
    for (int c = 0; c < (B ? (NS * B + 3) / 4 : 2 * NS); c++)
      if (B && NS * B % 4 == 0 || lane + 32 * c < int(bits) * NS * 8)
        copyAsync16(to + 512 * c, from + inPanel * bits * 128 + 512 * c);
    from += bits * step;
    bits = following;
    fetched++;
  };
  const u16 *x = Direct ? p.order + 8 * lane : p.x + u64(row0 + g) * (32 * w.blockCount) + 8 * t;
  x += 32 * begin;
  auto fetchX = [&](u32 to) {
    if (Direct) {
      if (lane < 4) copyAsync16(to + NS * unitSlot, x);
    } else {
#pragma unroll
      for (int n = 0; n < NB; n++)
        if (row0 + 8 * n + g < p.m) copyAsync16(to + NS * unitSlot + n * 512, x + u64(8 * n) * (32 * w.blockCount));
    }
    x += 32;
  };

#pragma unroll
  for (int i = 0; i < stages - 1; i++) {
    if (begin + i < end) {
      fetchWeight();
      if (Direct) fetchX(to);
    }
    to += slot;
  }
  // Rows of activations, each with a zero behind it.
  u16 *rows = reinterpret_cast<u16 *>(shared + warps * stages * slot);
  const int rowPitch = w.rows + 8;
  waitForEarlier();
  if (Direct) {
    const u32 rowsAddress = sharedAddress(rows);
    for (int i = threadIdx.x; i < p.m * (w.rows / 8); i += blockDim.x) {
      int row = i / (w.rows / 8), piece = i % (w.rows / 8);
      copyAsync16(rowsAddress + row * rowPitch * 2 + piece * 16, p.x + u64(row) * w.rows + piece * 8);
    }
    for (int i = threadIdx.x; i < p.m; i += blockDim.x) rows[i * rowPitch + w.rows] = 0;
    commitAsync();
#pragma unroll
    for (int i = 1; i < stages - 1; i++) commitAsync();
    waitAsync<stages - 2>();
    __syncthreads();
  } else {
#pragma unroll
    for (int i = 0; i < stages - 1; i++) {
      if (begin + i < end) fetchX(ringAddress + 16 * lane + i * slot);
      commitAsync();
    }
  }

  float acc[NS][2][NB][4] = {}, sum[NS][2][NB][4] = {};
  uint2 scaleBits[NS];
  u32 scale[NS][4];
  Zeros zeros[NS];
  auto flush = [&] {
#pragma unroll
    for (int s = 0; s < NS; s++)
#pragma unroll
      for (int f = 0; f < 2; f++) {
        u32 both = f ? scaleBits[s].y : scaleBits[s].x;
        float low = toFloat(both), high = toFloat(both >> 16);
#pragma unroll
        for (int n = 0; n < NB; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            sum[s][f][n][i] += (i < 2 ? low : high) * acc[s][f][n][i];
            acc[s][f][n][i] = 0;
          }
      }
  };

  int group = -1;
  const unsigned char *at = ring, *ringEnd = ring + stages * slot;
  const u32 toEnd = ringAddress + 16 * lane + stages * slot;
  Block block = begin < end ? blocks[begin] : Block{0, -1};
#pragma unroll 1
  for (int k = begin; k < end; k++) {
    const Block next = blocks[min(k + 1, end - 1)];
    if (block.group != group) {
      if (!Round && group >= 0) flush();
      group = block.group;
#pragma unroll
      for (int s = 0; s < NS; s++) {
        int strip = min(firstStrip + s, w.strips - 1);
        scaleBits[s] = __ldg(columnsAt(w.scales, w, group, strip, lane));
        if (Round) columnPairs(scaleBits[s], scale[s]);
        if (Asym) loadZeros(w, group, strip, lane, zeros[s]);
      }
    }
    waitAsync<stages - 2>();
    __syncwarp();
    // The stage that was read last is free.
    if (k + stages - 1 < end) {
      fetchWeight();
      fetchX(to);
    }
    commitAsync();
    to = to + slot == toEnd ? ringAddress + 16 * lane : to + slot;
    const unsigned char *from = at;
    uint4 xs[NB];
    if (Direct) {
      xs[0] = make_uint4(0, 0, 0, 0);
      if (g < p.m) {
        const uint4 i = *reinterpret_cast<const uint4 *>(from + NS * unitSlot + 16 * t);
        const u16 *row = rows + g * rowPitch;
        xs[0] = make_uint4(row[i.x & 0xFFFF] | u32(row[i.x >> 16]) << 16, row[i.y & 0xFFFF] | u32(row[i.y >> 16]) << 16,
                           row[i.z & 0xFFFF] | u32(row[i.z >> 16]) << 16, row[i.w & 0xFFFF] | u32(row[i.w >> 16]) << 16);
      }
    } else {
#pragma unroll
      for (int n = 0; n < NB; n++)
        xs[n] = row0 + 8 * n + g < p.m ? *reinterpret_cast<const uint4 *>(from + NS * unitSlot + n * 512 + lane * 16)
                                       : make_uint4(0, 0, 0, 0);
    }
    const int unitBytes = (B ? B : widthOf(block)) * 128;
    auto unit = [&](int s) { return from + s * unitBytes; };
#define KILN_UNITS(b)     \
  _Pragma("unroll") for (int s = 0; s < NS; s++) multiply<b, NB, Round, Asym>(unit(s), lane, zeros[s], scale[s], xs, acc[s])
    if (B) {
      KILN_UNITS(B ? B : 4);
    } else {
      switch (widthOf(block)) {
      case 2: KILN_UNITS(2); break;
      case 3: KILN_UNITS(3); break;
      case 4: KILN_UNITS(4); break;
      case 5: KILN_UNITS(5); break;
      case 6: KILN_UNITS(6); break;
      default: KILN_UNITS(8);
      }
    }
    at = at + slot == ringEnd ? ring : at + slot;
    block = next;
  }
  if (!Round && group >= 0) flush();
  waitAsync<0>();
  __syncthreads();

  // The sums of all warps, [row warp][row][column], rows 4 words apart from a multiple of 32 so that stores of a
  // warp meet different banks.
  const int width = p.columnWarps * NS * 32, pitch = width + 4;
  float *sums = reinterpret_cast<float *>(shared);
#pragma unroll
  for (int s = 0; s < NS; s++)
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int n = 0; n < NB; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int row = 8 * n + 2 * t + (i & 1), column = (columnWarp * NS + s) * 32 + 16 * f + 8 * (i >> 1) + g;
          sums[(rowWarp * 8 * NB + row) * pitch + column] = Round ? acc[s][f][n][i] : sum[s][f][n][i];
        }
  __syncthreads();

  const int rowsHere = min(8 * NB, p.m - row0), firstColumn = blockIdx.x * width;
  const u32 tile = blockIdx.z * gridDim.x + blockIdx.x;
  auto finish = [&](int row, int column, float v) {
    if (p.bias) v += toFloat(p.bias[column]);
    u16 *to = p.out + u64(row0 + row) * w.columns + column;
    if (p.accumulate) v += toFloat(*to);
    *to = u16(toHalf(v));
  };
  float *mine = p.work + (u64(tile) * p.splits) * (8 * NB * width);
  for (int i = threadIdx.x; i < rowsHere * width; i += blockDim.x) {
    int row = i / width, column = i % width;
    float v = 0;
    for (int r = 0; r < rowWarps; r++) v += sums[(r * 8 * NB + row) * pitch + column];
    if (p.splits == 1) {
      if (firstColumn + column < w.columns) finish(row, firstColumn + column, v);
    } else {
      mine[blockIdx.y * (8 * NB * width) + i] = v;
    }
  }
  if (p.splits == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&p.arrivals[tile], 1u) == u32(p.splits - 1);
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int i = threadIdx.x; i < rowsHere * width; i += blockDim.x) {
    float v = 0;
    for (int r = 0; r < p.splits; r++) v += __ldcg(mine + r * (8 * NB * width) + i);
    if (firstColumn + i % width < w.columns) finish(i / width, firstColumn + i % width, v);
  }
  if (threadIdx.x == 0) p.arrivals[tile] = 0;
}

// The names are kiln_gemm_<rows/8>x<strips>_<width or 0>_<f for fused, d for fused and direct, r for rounded><s or a for
// symmetric or not>.
#define KILN_GEMM(nb, ns, b, kind, rounded, asym, direct)                                                             \
  extern "C" __global__ void __launch_bounds__(256, nb > 2 ? 1 : 2) kiln_gemm_##nb##x##ns##_##b##_##kind(const Gemm p) { \
    gemm<nb, ns, b, rounded, asym, direct>(p);                                                            \
  }
#define KILN_SHAPES(b, fused, direct, asym)          \
  KILN_GEMM(1, 2, b, fused, false, asym, false)      \
  KILN_GEMM(2, 2, b, fused, false, asym, false)      \
  KILN_GEMM(4, 2, b, fused, false, asym, false)      \
  KILN_GEMM(1, 2, b, direct, false, asym, true)
KILN_SHAPES(4, fs, ds, false)
KILN_SHAPES(0, fs, ds, false)
KILN_SHAPES(4, fa, da, true)
KILN_SHAPES(0, fa, da, true)
KILN_GEMM(1, 2, 0, rs, true, false, false)
KILN_GEMM(4, 2, 0, rs, true, false, false)
KILN_GEMM(1, 2, 0, ra, true, true, false)
KILN_GEMM(4, 2, 0, ra, true, true, false)
