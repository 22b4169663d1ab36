// Products of a few rows of activations with a weight, without tensor cores: for devices before
// compute capability 7.5.
//
// A thread block owns one strip and a range of rows of the weight, which it divides among its
// warps. A code becomes a float in the mantissa of a power of two, which is then subtracted: both
// are exact. Nothing is computed in half precision, which is slow on some of these devices. Sums
// are float32. Thread blocks that share a strip leave their sums in a workspace, and the last one
// to finish adds them up, always in the same order.
#include "kiln.cuh"

constexpr int simtWarps = 8;

// Columns has a number for each of the four columns of a lane.
struct Columns {
  float v[4];
};

__device__ __forceinline__ Columns columnFloats(uint2 halves) {
  return {toFloat(halves.x), toFloat(halves.x >> 16), toFloat(halves.y), toFloat(halves.y >> 16)};
}

// codeFloat returns the code at bit S of the word: it is put into the mantissa of 2^(23 − S).
template <int B, int S> __device__ __forceinline__ float codeFloat(u32 word) {
  constexpr u32 base = u32(127 + 23 - S) << 23;
  return __uint_as_float(orMasked(word, ((1u << B) - 1) << S, base)) - float(1 << (23 - S));
}

// Pairs are the activations of a lane in a block.
struct Pairs {
  u32 v[4];
};

// rowFloats returns them as floats.
__device__ __forceinline__ void rowFloats(const Pairs &pairs, float (&xs)[8]) {
#pragma unroll
  for (int j = 0; j < 8; j++) xs[j] = toFloat(pairs.v[j / 2] >> 16 * (j & 1));
}

// addGroup adds the products of the blocks from k to end, which are of one group, with one row of
// activations to the sums. The units of the lane's strip are step bytes apart. It needs so few
// registers that a multiprocessor has 32 warps, which wait for memory in turn.
template <int B>
__device__ __forceinline__ void addGroup(const unsigned char *units, u32 step, int lane,
                                         const u16 *x, int k, int end, uint2 scaleHalves,
                                         uint2 zeroHalves, bool symmetric, float (&sum)[4]) {
  float acc[4] = {}, total = 0;
#pragma unroll 1
  for (; k < end; k += 2, units += 2 * step) {
    u32 words[2][B];
    Pairs rows[2];
    auto loadRows = [&](int i) {
      const u32 *from = reinterpret_cast<const u32 *>(x + 32 * (k + i));
#pragma unroll
      for (int j = 0; j < 4; j++) rows[i].v[j] = __ldg(from + 4 * j);
    };
    const bool both = k + 1 < end;
    loadWords<B>(units, lane, words[0]);
    loadRows(0);
    if (both) {
      loadWords<B>(units + step, lane, words[1]);
      loadRows(1);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (i == 1 && !both) break;
      float xs[8];
      rowFloats(rows[i], xs);
#pragma unroll
      for (int j = 0; j < 8; j++) total += xs[j];
      eachPair<B>(words[i], [&](auto at, u32 word, int pair) {
        constexpr int S = decltype(at)::value;
        const int column = (pair >> 3) * 2 + (pair & 1);
        const int row = 4 * (pair >> 2 & 1) + 2 * (pair >> 1 & 1);
        acc[column] = fmaf(codeFloat<B, S>(word), xs[row], acc[column]);
        acc[column] = fmaf(codeFloat<B, S>(word >> 16), xs[row + 1], acc[column]);
      });
    }
  }
  // Only now, so that nothing above waits for them.
  const Columns scale = columnFloats(scaleHalves), zeros = columnFloats(zeroHalves);
#pragma unroll
  for (int c = 0; c < 4; c++) {
    const float zero = symmetric ? float(1 << (B - 1)) : zeros.v[c];
    sum[c] = fmaf(scale.v[c], fmaf(-zero, total, acc[c]), sum[c]);
  }
}

// Lane is what addRun knows of the place of a lane.
struct Lane {
  const Weight &w;
  const Block *blocks;     // in shared memory
  const unsigned char *x;  // in shared memory: this lane's first pair of block 0
  u32 pitch;               // bytes from one row of activations to the next
  int strip, lane;
};

// addRun adds the products of the blocks from k to end, which are of one width, to the sums. The
// units of the lane's strip are step bytes apart.
template <int B, int M, bool Round>
__device__ __forceinline__ void addRun(const Lane &l, const unsigned char *units, u32 step, int k,
                                       int end, float (&sum)[M][4]) {
  constexpr int deep = 2;  // units that are on their way
  u32 words[deep][8];
#pragma unroll
  for (int i = 0; i < deep; i++)
    if (k + i < end) loadWords<B>(units + i * step, l.lane, words[i]);
  // The scales and zeros of this group and of the next, which is fetched early.
  const int lastGroup = groupOf(l.blocks[end - 1]);
  uint2 nextScale, nextZero = {};
  auto fetchGroup = [&](int group) {
    group = min(group, lastGroup);
    nextScale = __ldg(columnsAt(l.w.scales, l.w, group, l.strip, l.lane));
    if (l.w.zeros) nextZero = __ldg(columnsAt(l.w.zeros, l.w, group, l.strip, l.lane));
  };
  // Products of codes, and the sums of activations: a zero point is multiplied with those, once.
  float acc[M][4] = {}, total[M] = {};
  Columns scale = {}, zeros = {};
  auto flush = [&] {
    if (Round) return;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
      for (int c = 0; c < 4; c++) {
        sum[m][c] = fmaf(scale.v[c], fmaf(-zeros.v[c], total[m], acc[m][c]), sum[m][c]);
        acc[m][c] = 0;
      }
      total[m] = 0;
    }
  };
  fetchGroup(groupOf(l.blocks[k]));
  int groupEnd = k;
#pragma unroll 1
  for (; k < end; k += deep, units += deep * step) {
#pragma unroll
    for (int i = 0; i < deep; i++) {
      if (k + i >= end) break;
      if (k + i == groupEnd) {
        flush();
        const Block block = l.blocks[k + i];
        constexpr float middle = 1 << (B - 1);
        scale = columnFloats(nextScale);
        zeros = {middle, middle, middle, middle};
        if (l.w.zeros) zeros = columnFloats(nextZero);
        groupEnd += restOf(block);
        fetchGroup(groupOf(block) + 1);
      }
      float q[32];
      eachPair<B>(words[i], [&](auto at, u32 word, int pair) {
        constexpr int S = decltype(at)::value;
        const int column = (pair >> 3) * 2 + (pair & 1);
        float low = codeFloat<B, S>(word), high = codeFloat<B, S>(word >> 16);
        if (Round) {
          low = toFloat(toHalf((low - zeros.v[column]) * scale.v[column]));
          high = toFloat(toHalf((high - zeros.v[column]) * scale.v[column]));
        }
        q[2 * pair] = low, q[2 * pair + 1] = high;
      });
      if (k + i + deep < end) loadWords<B>(units + (i + deep) * step, l.lane, words[i]);
#pragma unroll
      for (int m = 0; m < M; m++) {
        float xs[8];
        const u32 *from = reinterpret_cast<const u32 *>(l.x + m * l.pitch + 64 * (k + i));
        rowFloats({from[0], from[4], from[8], from[12]}, xs);
        if (!Round) {
#pragma unroll
          for (int j = 0; j < 8; j++) total[m] += xs[j];
        }
#pragma unroll
        for (int pair = 0; pair < 16; pair++) {
          const int column = (pair >> 3) * 2 + (pair & 1);
          const int row = 4 * (pair >> 2 & 1) + 2 * (pair >> 1 & 1);
          float &to = Round ? sum[m][column] : acc[m][column];
          to = fmaf(q[2 * pair + 1], xs[row + 1], fmaf(q[2 * pair], xs[row], to));
        }
      }
    }
  }
  flush();
}

// M is how many rows of activations a thread block multiplies. Round is as in gemm.cu.
template <int M, bool Round> __device__ __forceinline__ void simt(const Gemm &p) {
  __shared__ float sums[simtWarps][M][32];
  // Of this thread block's range: blocks, and, for more than one row, activations before them,
  // [row][32·blocks].
  extern __shared__ __align__(16) unsigned char shared[];
  const Weight &w = p.w;
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, g = lane >> 2, t = lane & 3;
  const int strip = blockIdx.x / p.splits, rank = blockIdx.x % p.splits;
  const int part = rank * simtWarps + warp, parts = p.splits * simtWarps;
  const int begin = u32(w.blockCount) * part / parts, end = u32(w.blockCount) * (part + 1) / parts;
  const int first = u32(w.blockCount) * (rank * simtWarps) / parts;
  const int count = u32(w.blockCount) * ((rank + 1) * simtWarps) / parts - first;
  const int row0 = blockIdx.y * M, rowsHere = min(M, p.m - row0);
  const u32 pitch = count * 64;
  for (int i = threadIdx.x; i < M * count * 4 && M > 1; i += 32 * simtWarps) {
    const int row = i / (count * 4), piece = i - row * (count * 4);
    const u16 *from = p.x + u64(row0 + min(row, rowsHere - 1)) * (32 * w.blockCount) + 32 * first;
    reinterpret_cast<uint4 *>(shared)[i] = __ldg(reinterpret_cast<const uint4 *>(from) + piece);
  }
  Block *blocks = reinterpret_cast<Block *>(shared + (M > 1 ? M * pitch : 0));
  for (int i = threadIdx.x; i < count; i += 32 * simtWarps) blocks[i] = w.blocks[first + i];
  __syncthreads();
  blocks -= first;

  const u32 panelStep = stripsOfPanel(w, strip / panelStrips) * 128;
  float sum[M][4] = {};
#pragma unroll 1
  for (int k = begin, next; k < end; k = next) {
    const Block block = blocks[k];
    const u32 bits = widthOf(block);
    const unsigned char *units = w.words + unitAt(w, strip, block);
    auto add = [&](auto width) {
      constexpr int B = decltype(width)::value;
      if constexpr (M == 1) {
        next = min(end, k + restOf(block));
        const uint2 scales = __ldg(columnsAt(w.scales, w, groupOf(block), strip, lane));
        uint2 zeros = {};
        if (w.zeros) zeros = __ldg(columnsAt(w.zeros, w, groupOf(block), strip, lane));
        const u16 *x = p.x + u64(row0) * (32 * w.blockCount) + 2 * t;
        addGroup<B>(units, bits * panelStep, lane, x, k, next, scales, zeros, !w.zeros, sum[0]);
      } else {
        next = k;
        while (next < end && widthOf(blocks[next]) == bits) next += restOf(blocks[next]);
        next = min(next, end);
        const Lane l = {w, blocks, shared + 4 * t - 64 * first, pitch, strip, lane};
        addRun<B, M, Round>(l, units, bits * panelStep, k, next, sum);
      }
    };
    switch (bits) {
    case 2: add(Number<2>()); break;
    case 3: add(Number<3>()); break;
    case 4: add(Number<4>()); break;
    case 5: add(Number<5>()); break;
    case 6: add(Number<6>()); break;
    default: add(Number<8>());
    }
  }

  // The four lanes with the same columns have different rows.
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int c = 0; c < 4; c++) {
      float v = sum[m][c];
      v += __shfl_xor_sync(~0u, v, 1);
      v += __shfl_xor_sync(~0u, v, 2);
      if (t == 0) sums[warp][m][16 * (c >> 1) + 8 * (c & 1) + g] = v;
    }
  __syncthreads();
  const int row = threadIdx.x / 32, column = strip * 32 + lane;
  float value = 0;
  if (row < M) {
#pragma unroll
    for (int r = 0; r < simtWarps; r++) value += sums[r][row][lane];
  }
  if (p.splits > 1) {
    __shared__ u32 last;
    const u32 tile = blockIdx.y * w.strips + strip;
    float *partial = p.work + u64(tile) * p.splits * (M * 32) + threadIdx.x;
    if (row < M) __stcg(partial + rank * (M * 32), value);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&p.arrivals[tile], 1u) == u32(p.splits - 1);
    __syncthreads();
    if (!last) return;
    __threadfence();
    value = 0;
    if (row < M)
      for (int r = 0; r < p.splits; r++) value += __ldcg(partial + r * (M * 32));
    if (threadIdx.x == 0) p.arrivals[tile] = 0;
  }
  if (row >= rowsHere || column >= w.columns) return;
  u16 *to = p.out + u64(row0 + row) * w.columns + column;
  if (p.bias) value += toFloat(p.bias[column]);
  if (p.accumulate) value += toFloat(*to);
  *to = u16(toHalf(value));
}

// The names are kiln_simt_<rows>_<f for fused, r for rounded>.
#define KILN_SIMT(m, kind, rounded, blocks)                                                        \
  extern "C" __global__ void __launch_bounds__(256, blocks) kiln_simt_##m##_##kind(const Gemm p) { \
    simt<m, rounded>(p);                                                                           \
  }
KILN_SIMT(1, f, false, 4)
KILN_SIMT(4, f, false, 2)
KILN_SIMT(4, r, true, 2)
