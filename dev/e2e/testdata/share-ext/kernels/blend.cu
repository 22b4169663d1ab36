#include "elementwise.cuh"

struct BlendOp {
  __device__ float operator()(float a, float b) const { return 0.25f * a + 0.75f * b; }
};

at::Tensor blend_cuda(const at::Tensor& a, const at::Tensor& b) { return elementwise<BlendOp>(a, b); }
