#include "elementwise.cuh"

struct SinOp {
  __device__ float operator()(float a, float b) const { return __sinf(a) + b; }
};

at::Tensor sin_cuda(const at::Tensor& a, const at::Tensor& b) { return elementwise<SinOp>(a, b); }
