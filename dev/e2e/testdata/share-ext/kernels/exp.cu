#include "elementwise.cuh"

struct ExpOp {
  __device__ float operator()(float a, float b) const { return __expf(-a * a) * b; }
};

at::Tensor exp_cuda(const at::Tensor& a, const at::Tensor& b) { return elementwise<ExpOp>(a, b); }
