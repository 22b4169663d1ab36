#include "elementwise.cuh"

struct MulOp {
  __device__ float operator()(float a, float b) const { return a * b; }
};

at::Tensor mul_cuda(const at::Tensor& a, const at::Tensor& b) { return elementwise<MulOp>(a, b); }
