#include "elementwise.cuh"

struct SubOp {
  __device__ float operator()(float a, float b) const { return a - b; }
};

at::Tensor sub_cuda(const at::Tensor& a, const at::Tensor& b) { return elementwise<SubOp>(a, b); }
