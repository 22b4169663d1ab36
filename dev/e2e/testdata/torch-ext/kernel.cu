__global__ void scale_kernel(float* data, int n, float factor) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) data[i] *= factor;
}

void scale_on_gpu(float* data, int n, float factor) { scale_kernel<<<(n + 255) / 256, 256>>>(data, n, factor); }
