// What all kernels share: the layout of a weight on the device, and instructions that CUDA C++ has
// no functions for.
//
// No header of the toolkit is included, so that NVRTC compiles the same text.
//
// Layout. Rows are in stored order, each quantization group padded to a multiple of 32 rows, so a
// block of 32 rows has one width. A strip is 32 columns, a panel 8 strips (the last may have
// fewer). Panel after panel, block after block, strip after strip, a unit of 32 rows and 32 columns
// takes 128 bytes for each bit of its width: 32 codes for each lane of the warp that will multiply
// with them, b words a lane. So the units of a block in a panel are one piece of memory. The words
// of a lane lie in planes of 4, 2 and 1 words, so that they are read with the widest loads there
// are.
//
// Codes of a lane: with g = lane/4 and t = lane%4, pair q = 8·f + 4·s + 2·p + h (f, s, p, h are
// bits) holds rows 16s + 8p + 2t and the one after, in column 16f + 8h + g. These are the operands
// of mma.m16n8k16 with the weight as A, columns as M: f counts the fragments of 16 columns, s the
// steps of 16 rows. The activations of a lane are those of the same rows, pairs 2s + p.
#pragma once

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

template <int N> struct Number {
  static constexpr int value = N;
};

// The first code of a pair is in the low half of a word, the second in the high half. Or-ed into
// the mantissa of 1024, a field at bit s gives 1024 + code·2^s without a conversion, as long as it
// lies in the lower 10 bits.
constexpr u32 half1024 = 0x64006400;

__host__ __device__ constexpr u32 twice(u32 h) { return h | h << 16; }

// pow2 returns the bits of 2^e in both halves, and integer those of a number up to 2048: exact.
__host__ __device__ constexpr u32 pow2(int e) { return twice(u32(e + 15) << 10); }
__host__ __device__ constexpr u32 integer(u32 v) {
  int e = 0;
  while ((v >> e) > 1) e++;
  return twice(u32(e + 15) << 10 | ((v << 10) >> e & 0x3FF));
}

__device__ __forceinline__ u32 hsub2(u32 a, u32 b) {
  u32 d;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ u32 hmul2(u32 a, u32 b) {
  u32 d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ u32 hfma2(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ float toFloat(u32 h) {
  float f;
  asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(f) : "r"(h & 0xFFFF));
  return f;
}
__device__ __forceinline__ u32 toHalf(float f) {
  u32 h;
  asm("{ .reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.u32.u16 %0, h; }" : "=r"(h) : "f"(f));
  return h;
}

// orMasked is (w & mask) | base, one instruction.
__device__ __forceinline__ u32 orMasked(u32 w, u32 mask, u32 base) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(w), "r"(mask), "r"(base));
  return d;
}

__device__ __forceinline__ u32 sharedAddress(const void *p) {
  return u32(__cvta_generic_to_shared(p));
}

// Copies of 16 bytes to shared memory that are waited for. Before compute capability 8.0 they are
// ordinary copies, which are there when the warp, or the thread block, is synchronized.
__device__ __forceinline__ void copyAsync16(u32 shared, const void *global) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
#else
  asm volatile("{ .reg .b32 a, b, c, d; ld.global.v4.b32 {a, b, c, d}, [%1];\n"
               "st.shared.v4.b32 [%0], {a, b, c, d}; }" ::"r"(shared),
               "l"(global)
               : "memory");
#endif
}
__device__ __forceinline__ void commitAsync() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N> __device__ __forceinline__ void waitAsync() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// waitForEarlier waits for the kernels before this one in the stream, which is necessary before
// anything that they write is read or written; startNext lets the next one begin. Both do nothing
// unless the launch asked for overlap.
__device__ __forceinline__ void waitForEarlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void startNext() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Zeros are the zero points of the four columns of a lane in a unit: 1024 + zero and zero, in both
// halves. A symmetric weight has constants instead.
struct Zeros {
  u32 with1024[4], plain[4];
};

// field returns code − zero of a pair as two halves, exactly. The codes are at bit S of both halves
// of w.
template <int B, int S, bool Asym>
__device__ __forceinline__ u32 field(u32 w, const Zeros &z, int q) {
  u32 h = orMasked(w, twice(((1u << B) - 1) << S), half1024);
  int column = (q >> 3) * 2 + (q & 1);
  if (S == 0) return hsub2(h, Asym ? z.with1024[column] : integer(1024 + (1 << (B - 1))));
  if (!Asym) return hfma2(h, pow2(-S), integer((1024 >> S) + (1 << (B - 1))) | 0x80008000);
  return hsub2(hfma2(h, pow2(-S), integer(1024 >> S) | 0x80008000), z.plain[column]);
}

// eachPair calls f(Number<S>(), word, q) for each of the 16 pairs of a lane: the codes of pair q
// are at bit S of both halves of the word. What is above and below them is not zero.
template <int B, class F> __device__ __forceinline__ void eachPair(const u32 *w, F f) {
  if constexpr (B == 2) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
      const u32 high = w[j] >> 8;
      f(Number<0>(), w[j], 8 * j + 0), f(Number<2>(), w[j], 8 * j + 1);
      f(Number<4>(), w[j], 8 * j + 2), f(Number<6>(), w[j], 8 * j + 3);
      f(Number<0>(), high, 8 * j + 4), f(Number<2>(), high, 8 * j + 5);
      f(Number<4>(), high, 8 * j + 6), f(Number<6>(), high, 8 * j + 7);
    }
  } else if constexpr (B == 3) {
#pragma unroll
    for (int j = 0; j < 3; j++) {
      const u32 high = w[j] >> 9;
      f(Number<0>(), w[j], 5 * j + 0), f(Number<3>(), w[j], 5 * j + 1);
      f(Number<6>(), w[j], 5 * j + 2);
      f(Number<0>(), high, 5 * j + 3), f(Number<3>(), high, 5 * j + 4);
    }
    const u32 last =
        (w[0] >> 15 & 0x00010001) | (w[1] >> 14 & 0x00020002) | (w[2] >> 13 & 0x00040004);
    f(Number<0>(), last, 15);
  } else if constexpr (B == 4) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const u32 other = __byte_perm(w[j], 0, 0x2301);
      f(Number<2>(), w[j], 4 * j + 0), f(Number<6>(), w[j], 4 * j + 1);
      f(Number<2>(), other, 4 * j + 2), f(Number<6>(), other, 4 * j + 3);
    }
  } else if constexpr (B == 5) {
    u32 last = 0;
#pragma unroll
    for (int j = 0; j < 5; j++) {
      f(Number<0>(), w[j], 3 * j + 0), f(Number<5>(), w[j], 3 * j + 1);
      f(Number<0>(), w[j] >> 10, 3 * j + 2);
      last |= w[j] >> (15 - j) & twice(1u << j);
    }
    f(Number<0>(), last, 15);
  } else if constexpr (B == 6) {
#pragma unroll
    for (int j = 0; j < 6; j++) {
      f(Number<0>(), w[j], 2 * j + 0), f(Number<0>(), w[j] >> 6, 2 * j + 1);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const u32 high = w[4 + j / 2] >> (8 + 2 * (j & 1)) & 0x00300030;
      f(Number<0>(), (w[j] >> 12 & 0x000F000F) | high, 12 + j);
    }
  } else if constexpr (B == 8) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      f(Number<0>(), w[j], 2 * j + 0), f(Number<0>(), w[j] >> 8, 2 * j + 1);
    }
  }
}

// Four bits are where a mantissa takes them without a shift: at bit 2 of 256, and at bit 6 of 16, a
// code counts ones. Even pairs, columns with h = 0, give 256 + code, odd ones 16 + code.
constexpr u32 half256 = pow2(8), half16 = pow2(4);

template <int S> __device__ __forceinline__ u32 rawField(u32 w) {
  return orMasked(w, twice(15u << S), S == 2 ? half256 : half16);
}
__device__ __forceinline__ void unpackRaw(const u32 *w, u32 (&q)[16]) {
  eachPair<4>(w, [&](auto at, u32 word, int i) { q[i] = rawField<decltype(at)::value>(word); });
}

// unpack turns the B words of a lane into 16 pairs code − zero.
template <int B, bool Asym>
__device__ __forceinline__ void unpack(const u32 *w, const Zeros &z, u32 (&q)[16]) {
  if constexpr (B == 4) {
    u32 zero[4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
      if (Asym) zero[c] = hsub2(z.plain[c], (c & 1 ? half16 : half256) | 0x80008000);
      else zero[c] = integer((c & 1 ? 16 : 256) + 8);
    }
    unpackRaw(w, q);
#pragma unroll
    for (int i = 0; i < 16; i++) q[i] = hsub2(q[i], zero[(i >> 3) * 2 + (i & 1)]);
  } else {
    eachPair<B>(w, [&](auto at, u32 word, int i) {
      q[i] = field<B, decltype(at)::value, Asym>(word, z, i);
    });
  }
}

// loadWords reads the B words of a lane from a unit.
template <int B>
__device__ __forceinline__ void loadWords(const unsigned char *unit, int lane, u32 *w) {
  int at = 0, j = 0;
#pragma unroll
  for (; j + 4 <= B; j += 4, at += 512) {
    uint4 v = *reinterpret_cast<const uint4 *>(unit + at + 16 * lane);
    w[j] = v.x, w[j + 1] = v.y, w[j + 2] = v.z, w[j + 3] = v.w;
  }
  if (B & 2) {
    uint2 v = *reinterpret_cast<const uint2 *>(unit + at + 8 * lane);
    w[j] = v.x, w[j + 1] = v.y;
    j += 2, at += 256;
  }
  if (B & 1) w[j] = *reinterpret_cast<const u32 *>(unit + at + 4 * lane);
}

// wordOffset is where word j of a lane is in a unit of width b, in bytes.
__device__ __forceinline__ int wordOffset(int b, int j, int lane) {
  int fours = b & ~3;
  if (j < fours) return (j >> 2) * 512 + 16 * lane + 4 * (j & 3);
  int at = fours * 128;
  if (b & 2) {
    if (j < fours + 2) return at + 8 * lane + 4 * (j - fours);
    at += 256;
  }
  return at + 4 * lane;
}

// Block describes 32 rows: the sum of the widths of all blocks before and their width, offset·16 +
// width; and their group and how many blocks it has from this one on, rest·65536 + group.
struct Block {
  u32 place;
  u32 part;
};

__device__ __forceinline__ u32 widthOf(Block b) { return b.place & 15; }
__device__ __forceinline__ u32 offsetOf(Block b) { return b.place >> 4; }
__device__ __forceinline__ int groupOf(Block b) { return b.part & 0xFFFF; }
__device__ __forceinline__ int restOf(Block b) { return b.part >> 16; }

// Weight is what a matrix is on the device. Scales and zero points are half precision,
// [group][strip][32], and the four of a lane's column g (16f + 8h + g) are next to each other: at
// 4g + 2f + h. No zeros means symmetric widths.
struct Weight {
  const unsigned char *words;
  const Block *blocks;
  const u16 *scales;
  const u16 *zeros;
  const int *perm;    // natural row of each padded row, −1 for padding; null if they are the same
  int rows, columns;  // K and N
  int blockCount;     // padded rows / 32
  int strips;
  u32 stride;  // sum of the widths of all blocks
  int maxWidth;
  int wider, fours;  // how many blocks have more than four bits, and four
};
static_assert(sizeof(Weight) == 72, "as in Go");

// Gemm is what a product is to gemm.cu and simt.cu.
struct Gemm {
  Weight w;
  const u16 *x;      // [m][32·blockCount] in stored order; Direct: [m][rows] in natural order
  u16 *out;          // [m][columns]
  const u16 *bias;   // null for none
  float *work;       // [tile][split][tile size], where there are no clusters
  u32 *arrivals;     // [tile], zeros before and after
  const u16 *order;  // natural row of each padded row, that behind the last for padding
  int m, columnWarps, splits, accumulate;
};
static_assert(sizeof(Gemm) == 136, "as in Go");

constexpr int panelStrips = 8;

__device__ __forceinline__ int stripsOfPanel(const Weight &w, int panel) {
  return min(panelStrips, w.strips - panel * panelStrips);
}

// blockAt is where the units of a block in a panel begin; those of a strip are width · 128 bytes
// further each.
__device__ __forceinline__ u64 blockAt(const Weight &w, int panel, u32 offset) {
  return (u64(panel * panelStrips) * w.stride + u64(offset) * stripsOfPanel(w, panel)) * 128;
}
__device__ __forceinline__ u64 unitAt(const Weight &w, int strip, Block block) {
  return blockAt(w, strip / panelStrips, offsetOf(block)) +
         strip % panelStrips * widthOf(block) * 128;
}

// columnPairs returns the scales (or zeros) of a lane's four columns, each in both halves of a
// word.
__device__ __forceinline__ void columnPairs(uint2 v, u32 (&out)[4]) {
  out[0] = __byte_perm(v.x, 0, 0x1010);
  out[1] = __byte_perm(v.x, 0, 0x3232);
  out[2] = __byte_perm(v.y, 0, 0x1010);
  out[3] = __byte_perm(v.y, 0, 0x3232);
}
__device__ __forceinline__ const uint2 *columnsAt(const u16 *table, const Weight &w, int group,
                                                  int strip, int lane) {
  return reinterpret_cast<const uint2 *>(table + (u64(group) * w.strips + strip) * 32 +
                                         4 * (lane >> 2));
}
__device__ __forceinline__ void expandZeros(uint2 v, Zeros &z) {
  columnPairs(v, z.plain);
#pragma unroll
  for (int i = 0; i < 4; i++) z.with1024[i] = hsub2(z.plain[i], 0xE400E400);  // − (−1024)
}

// mma adds the product of 16 columns, 16 rows of the weight and 8 rows of activations.
__device__ __forceinline__ void mma(float (&c)[4], const u32 *a, u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

// addProducts multiplies 32 rows of 32 columns by the activations.
template <int NB>
__device__ __forceinline__ void addProducts(const u32 (&q)[16], const uint4 (&x)[NB],
                                            float (&acc)[2][NB][4]) {
#pragma unroll
  for (int f = 0; f < 2; f++)
#pragma unroll
    for (int n = 0; n < NB; n++) mma(acc[f][n], q + 8 * f, x[n].x, x[n].y);
#pragma unroll
  for (int f = 0; f < 2; f++)
#pragma unroll
    for (int n = 0; n < NB; n++) mma(acc[f][n], q + 8 * f + 4, x[n].z, x[n].w);
}

// multiply unpacks a unit and multiplies it. With Round, weights are rounded to half precision as
// in a reconstructed matrix; without, codes are multiplied and the sum is scaled when the group
// ends.
template <int B, int NB, bool Round, bool Asym>
__device__ __forceinline__ void multiply(const unsigned char *unit, int lane, const Zeros &z,
                                         const u32 (&scale)[4], const uint4 (&x)[NB],
                                         float (&acc)[2][NB][4]) {
  u32 w[8], q[16];
  loadWords<B>(unit, lane, w);
  unpack<B, Asym>(w, z, q);
  if (Round) {
#pragma unroll
    for (int i = 0; i < 16; i++) q[i] = hmul2(q[i], scale[(i >> 3) * 2 + (i & 1)]);
  }
  addProducts<NB>(q, x, acc);
}

// multiplyRaw multiplies a unit of 4 bits as unpackRaw gives it. The excess of the result is that
// of addOffsets times 1 + zero/256, or 1 + zero/16.
template <int NB>
__device__ __forceinline__ void multiplyRaw(const u32 (&w)[4], const uint4 (&x)[NB],
                                            float (&acc)[2][NB][4]) {
  u32 q[16];
  unpackRaw(w, q);
  addProducts<NB>(q, x, acc);
}

// addOffsets multiplies 256, and 16, by all activations of a block, with the same instructions as
// multiplyRaw, so that both are rounded alike.
template <int NB>
__device__ __forceinline__ void addOffsets(const uint4 (&x)[NB], float (&offsets)[NB][4]) {
  const u32 a[4] = {half256, half16, half256, half16};
#pragma unroll
  for (int n = 0; n < NB; n++) mma(offsets[n], a, x[n].x, x[n].y);
#pragma unroll
  for (int n = 0; n < NB; n++) mma(offsets[n], a, x[n].z, x[n].w);
}
