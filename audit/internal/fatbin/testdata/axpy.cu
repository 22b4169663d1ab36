// The kernels of every object in this folder and of the live tests.
extern "C" __global__ void axpy(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}

extern "C" __global__ void fill(float a, float *y, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = a;
}
