#include "elementwise.cuh"

struct MaxOp {
  __device__ float operator()(float a, float b) const { return a > b ? a : b; }
};

at::Tensor max_cuda(const at::Tensor& a, const at::Tensor& b) { return elementwise<MaxOp>(a, b); }
