__global__ void softmax_kernel(float *row, int n) {
  float most = -3e38f, total = 0;
  for (int i = 0; i < n; i++) most = fmaxf(most, row[i]);
  for (int i = 0; i < n; i++) total += row[i] = __expf(row[i] - most);
  for (int i = 0; i < n; i++) row[i] /= total;
}

int softmax(float *row, int n) {
  if (n == 0) return 1;
  softmax_kernel<<<1, 1>>>(row, n);
  return cudaGetLastError() == cudaSuccess;
}
