// What nvcc was told, as a number.
#include "header.h"
__global__ void twice(float *x) { x[threadIdx.x] *= 2; }

int kernel_value() {
  int v = HEADER;
#ifdef __CUDA_NO_HALF_OPERATORS__
  v += 1;
#endif
#ifdef __CUDA_NO_HALF2_OPERATORS__
  v += 2;
#endif
#ifdef Tmax
  v += Tmax;
#endif
#ifdef HIDDEN_SIZE
  v += HIDDEN_SIZE;
#endif
  // Without a GPU the error says whether the runtime is linked and the kernel registered.
  cudaFuncAttributes a;
  return v * 1000 + cudaFuncGetAttributes(&a, twice);
}
