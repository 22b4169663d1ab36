// Bringing a matrix into the layout of kiln.cuh, and back.
#include "kiln.cuh"

struct Pack {
  Weight w;
  const u32 *source;  // packed words as in the file, [packed row][column]
  const int *bits;    // first bit of the code of each padded row in its column, −1 for padding
  unsigned char *words;
};

__device__ __forceinline__ u32 pairAt(u32 b, int q, int *word, int *shift) {
  // In which word, and at which bit of its halves, pair q begins. The result is 0 for a pair that
  // is in pieces, which the caller places.
  switch (b) {
  case 2: *word = q / 8, *shift = 2 * (q % 8); return 1;
  case 3: *word = q / 5, *shift = 3 * (q % 5); return q < 15;
  case 4: *word = q / 4, *shift = 4 * (q % 4) + 2; return q % 4 < 3;
  case 5: *word = q / 3, *shift = 5 * (q % 3); return q < 15;
  case 6: *word = q / 2, *shift = 6 * (q % 2); return q < 12;
  default: *word = q / 2, *shift = 8 * (q % 2); return 1;
  }
}

// One thread makes the words of one lane of a unit.
extern "C" __global__ void kiln_pack(const Pack p) {
  int lane = threadIdx.x & 31;
  int strip = blockIdx.x, index = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
  if (index >= p.w.blockCount) return;
  Block block = p.w.blocks[index];
  u32 b = widthOf(block), mask = (1u << b) - 1;
  u32 words[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  for (int q = 0; q < 16; q++) {
    int column = strip * 32 + 16 * (q >> 3) + 8 * (q & 1) + (lane >> 2);
    u32 pair = 0;
    for (int h = 0; h < 2; h++) {
      int row = index * 32 + 16 * (q >> 2 & 1) + 8 * (q >> 1 & 1) + 2 * (lane & 3) + h;
      int bit = p.bits[row];
      u32 code = 0;
      if (bit >= 0 && column < p.w.columns) {
        const u32 *from = p.source + u64(bit >> 5) * p.w.columns + column;
        code = *from >> (bit & 31);
        if ((bit & 31) + b > 32) code |= from[p.w.columns] << (32 - (bit & 31));
      }
      pair |= (code & mask) << 16 * h;
    }
    int word, shift;
    if (pairAt(b, q, &word, &shift)) {
      for (int j = 0; j < 8; j++) words[j] |= j == word ? pair << shift : 0;
    } else if (b == 4) {
      for (int j = 0; j < 4; j++)
        if (j == q / 4) words[j] |= (pair & 0x00030003) << 14 | (pair & 0x000C000C) >> 2;
    } else if (b == 6) {
      int j = q - 12;
      for (int i = 0; i < 8; i++) {
        if (i == j) words[i] |= (pair & 0x000F000F) << 12;
        if (i == 4 + j / 2) words[i] |= (pair & 0x00300030) << (8 + 2 * (j & 1));
      }
    } else {
      for (int j = 0; j < 8; j++)
        if (j < int(b)) words[j] |= (pair & twice(1u << j)) << (15 - j);
    }
  }
  unsigned char *unit = p.words + unitAt(p.w, strip, block);
  for (int j = 0; j < 8; j++)
    if (j < int(b)) *reinterpret_cast<u32 *>(unit + wordOffset(b, j, lane)) = words[j];
}

// unpackAny is unpack for a width known at run time.
template <bool Asym>
__device__ void unpackAny(u32 b, const unsigned char *unit, int lane, const Zeros &z,
                          u32 (&q)[16]) {
  u32 w[8];
  switch (b) {
  case 2: loadWords<2>(unit, lane, w), unpack<2, Asym>(w, z, q); break;
  case 3: loadWords<3>(unit, lane, w), unpack<3, Asym>(w, z, q); break;
  case 4: loadWords<4>(unit, lane, w), unpack<4, Asym>(w, z, q); break;
  case 5: loadWords<5>(unit, lane, w), unpack<5, Asym>(w, z, q); break;
  case 6: loadWords<6>(unit, lane, w), unpack<6, Asym>(w, z, q); break;
  default: loadWords<8>(unit, lane, w), unpack<8, Asym>(w, z, q);
  }
}

struct Dequantize {
  Weight w;
  u16 *out;  // [rows][columns], natural order
};

// A warp writes a unit. Each weight is code − zero, exact, times the scale, rounded once.
extern "C" __global__ void kiln_dequantize(const Dequantize p) {
  __shared__ u16 tile[8][32][34];
  int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  int strip = blockIdx.x, index = blockIdx.y * (blockDim.x / 32) + warp;
  if (index >= p.w.blockCount) return;
  Block block = p.w.blocks[index];
  const unsigned char *unit = p.w.words + unitAt(p.w, strip, block);
  u32 q[16], scale[4];
  Zeros z;
  columnPairs(*columnsAt(p.w.scales, p.w, groupOf(block), strip, lane), scale);
  if (p.w.zeros) {
    expandZeros(__ldg(columnsAt(p.w.zeros, p.w, groupOf(block), strip, lane)), z);
    unpackAny<true>(widthOf(block), unit, lane, z, q);
  } else {
    unpackAny<false>(widthOf(block), unit, lane, z, q);
  }
#pragma unroll
  for (int i = 0; i < 16; i++) {
    u32 v = hmul2(q[i], scale[(i >> 3) * 2 + (i & 1)]);
    int row = 16 * (i >> 2 & 1) + 8 * (i >> 1 & 1) + 2 * (lane & 3);
    int column = 16 * (i >> 3) + 8 * (i & 1) + (lane >> 2);
    tile[warp][row][column] = u16(v);
    tile[warp][row + 1][column] = u16(v >> 16);
  }
  __syncwarp();
  // Half a warp writes a row, two columns a lane.
  for (int r = lane / 16; r < 32; r += 2) {
    int row = index * 32 + r;
    int to = p.w.perm ? p.w.perm[row] : row;
    int column = strip * 32 + 2 * (lane % 16);
    if (to < 0 || to >= p.w.rows || column >= p.w.columns) continue;
    u32 v = *reinterpret_cast<u32 *>(&tile[warp][r][2 * (lane % 16)]);
    *reinterpret_cast<u32 *>(p.out + u64(to) * p.w.columns + column) = v;
  }
}

struct Gather {
  const u16 *x;  // [m][rows]
  u16 *out;      // [m][32·blockCount]
  const int *perm;
  const u16 *order;  // as in gemm.cu, for kiln_permute
  int m, rows, padded;
};

__device__ __forceinline__ void store8(u16 *to, const u32 (&v)[8]) {
  *reinterpret_cast<uint4 *>(to) =
      make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
}

// Activations in stored order, zeros where rows are padding. A thread writes 8.
extern "C" __global__ void kiln_gather(const Gather p) {
  startNext();
  const int k = (blockIdx.x * blockDim.x + threadIdx.x) * 8, m = blockIdx.y;
  if (k >= p.padded) return;
  int from[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    from[i] = p.perm ? p.perm[k + i] : k + i < p.rows ? k + i : -1;
  }
  waitForEarlier();
  const u16 *x = p.x + u64(m) * p.rows;
  u32 v[8];
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = from[i] >= 0 ? x[from[i]] : 0;
  store8(p.out + u64(m) * p.padded + k, v);
}

// The same through shared memory, for many rows: an element that is read alone from global memory
// costs as much as the 16 of its sector.
extern "C" __global__ void __launch_bounds__(256) kiln_permute(const Gather p) {
  extern __shared__ __align__(16) u16 line[];  // the row, and a zero
  startNext();
  const int m = blockIdx.y;
  const u16 *x = p.x + u64(m) * p.rows;
  waitForEarlier();
  for (int i = threadIdx.x * 8; i < p.rows; i += 256 * 8)
    copyAsync16(sharedAddress(line + i), x + i);
  if (threadIdx.x == 0) line[p.rows] = 0;
  commitAsync();
  waitAsync<0>();
  __syncthreads();
  for (int k = (blockIdx.x * 256 + threadIdx.x) * 8; k < p.padded; k += gridDim.x * 256 * 8) {
    const uint4 order = *reinterpret_cast<const uint4 *>(p.order + k);
    const u32 from[4] = {order.x, order.y, order.z, order.w};
    u32 v[8];
#pragma unroll
    for (int i = 0; i < 4; i++)
      v[2 * i] = line[from[i] & 0xFFFF], v[2 * i + 1] = line[from[i] >> 16];
    store8(p.out + u64(m) * p.padded + k, v);
  }
}

// The same for two rows that are side by side in shared memory, so that one access finds both.
extern "C" __global__ void __launch_bounds__(1024) kiln_permute_pairs(const Gather p) {
  extern __shared__ __align__(16) u32 lines[];  // both rows, and a zero
  startNext();
  const int m = blockIdx.y * 2, other = min(m + 1, p.m - 1);
  const u16 *x = p.x + u64(m) * p.rows, *y = p.x + u64(other) * p.rows;
  waitForEarlier();
#pragma unroll 2
  for (int i = threadIdx.x * 8; i < p.rows; i += blockDim.x * 8) {
    const uint4 a = *reinterpret_cast<const uint4 *>(x + i);
    const uint4 b = *reinterpret_cast<const uint4 *>(y + i);
    uint4 *to = reinterpret_cast<uint4 *>(lines + i);
    to[0] = make_uint4(__byte_perm(a.x, b.x, 0x5410), __byte_perm(a.x, b.x, 0x7632),
                       __byte_perm(a.y, b.y, 0x5410), __byte_perm(a.y, b.y, 0x7632));
    to[1] = make_uint4(__byte_perm(a.z, b.z, 0x5410), __byte_perm(a.z, b.z, 0x7632),
                       __byte_perm(a.w, b.w, 0x5410), __byte_perm(a.w, b.w, 0x7632));
  }
  if (threadIdx.x == 0) lines[p.rows] = 0;
  __syncthreads();
  for (int k = (blockIdx.x * blockDim.x + threadIdx.x) * 8; k < p.padded;
       k += gridDim.x * blockDim.x * 8) {
    const uint4 order = *reinterpret_cast<const uint4 *>(p.order + k);
    const u32 from[4] = {order.x, order.y, order.z, order.w};
    u32 v[4], w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const u32 first = lines[from[i] & 0xFFFF], second = lines[from[i] >> 16];
      v[i] = __byte_perm(first, second, 0x5410), w[i] = __byte_perm(first, second, 0x7632);
    }
    u16 *to = p.out + u64(m) * p.padded + k;
    *reinterpret_cast<uint4 *>(to) = make_uint4(v[0], v[1], v[2], v[3]);
    if (other > m) *reinterpret_cast<uint4 *>(to + p.padded) = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

struct Copy {
  const uint4 *from;
  uint4 *to;
  u64 count;  // a multiple of 4 · 256
};

// A copy, to measure the speed of memory.
extern "C" __global__ void kiln_copy(const Copy p) {
  for (u64 i = u64(blockIdx.x) * 1024 + threadIdx.x; i < p.count; i += u64(gridDim.x) * 1024) {
    uint4 a = p.from[i], b = p.from[i + 256], c = p.from[i + 512], d = p.from[i + 768];
    p.to[i] = a, p.to[i + 256] = b, p.to[i + 512] = c, p.to[i + 768] = d;
  }
}
