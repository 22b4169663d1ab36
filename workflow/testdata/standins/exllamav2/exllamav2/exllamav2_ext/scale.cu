#ifdef BROKEN
#error "this toolkit has no warp shuffle"
#endif

__global__ void scale_kernel(float *values, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] *= by;
}

int scale(float *values, float by, int n) {
  if (n == 0) return 1;
  scale_kernel<<<(n + 255) / 256, 256>>>(values, by, n);
  return cudaGetLastError() == cudaSuccess;
}
