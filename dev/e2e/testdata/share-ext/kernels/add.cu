#include "elementwise.cuh"

struct AddOp {
  __device__ float operator()(float a, float b) const { return a + b; }
};

at::Tensor add_cuda(const at::Tensor& a, const at::Tensor& b) { return elementwise<AddOp>(a, b); }
