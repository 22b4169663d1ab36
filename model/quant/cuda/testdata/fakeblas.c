// cuBLAS for matrices in ordinary memory, as far as kiln calls it: column-major, half precision,
// sums in float.
#include <stdint.h>
#include <string.h>

static int handles, products;
int fake_handles(void) { return handles; }
int fake_products(void) { return products; }

static float toFloat(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023, bits;
  float f;
  if (exponent == 0) return (sign ? -1.f : 1.f) * (float)mantissa * 0x1p-24f;
  bits = sign | (exponent + 112) << 23 | mantissa << 13;
  return memcpy(&f, &bits, 4), f;
}
// Only for normal numbers that need no rounding.
static uint16_t toHalf(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  if (f == 0) return 0;
  return (bits >> 16 & 0x8000) | ((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 1023);
}

int cublasCreate_v2(void **h) { return *h = &handles, handles++, 0; }
int cublasDestroy_v2(void *h) { return handles--, h != &handles; }
int cublasSetStream_v2(void *h, void *s) { return (void)s, h != &handles; }
int cublasSetWorkspace_v2(void *h, void *p, size_t n) { return h != &handles || !p || n < 1 << 20; }
int cublasGemmEx(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const uint16_t *a, int at, int lda, const uint16_t *b,
                 int bt, int ldb, const float *beta, uint16_t *c, int ct, int ldc, int compute, int algo) {
  const int half = 2, compute32F = 68;
  if (h != &handles || ta || tb || at != half || bt != half || ct != half || compute != compute32F || algo != -1) return 7;
  if (lda < m || ldb < k || ldc < m) return 7;
  products++;
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) {
      float sum = 0;
      for (int l = 0; l < k; l++) sum += toFloat(a[i + (size_t)l * lda]) * toFloat(b[l + (size_t)j * ldb]);
      uint16_t *to = c + i + (size_t)j * ldc;
      *to = toHalf(*alpha * sum + (*beta ? *beta * toFloat(*to) : 0));
    }
  return 0;
}
