__global__ void sum_kernel(const float *values, float *out, int n) {
  float total = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) total += values[i];
  for (int step = 16; step > 0; step /= 2) total += __shfl_down_sync(0xffffffff, total, step);
  if (threadIdx.x == 0) *out = total;
}

int sum(const float *values, float *out, int n) {
  if (n == 0) return 1;
  sum_kernel<<<1, 32>>>(values, out, n);
  return cudaGetLastError() == cudaSuccess;
}
