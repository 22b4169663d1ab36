#include <torch/extension.h>

void scale_on_gpu(float* data, int n, float factor);

torch::Tensor scale(torch::Tensor x, double factor) {
  TORCH_CHECK(x.is_cuda(), "scale wants a CUDA tensor");
  auto y = x.to(torch::kFloat32).clone().contiguous();
  scale_on_gpu(y.data_ptr<float>(), static_cast<int>(y.numel()), static_cast<float>(factor));
  return y;
}

int twice(int n) { return torch::full({1}, n).mul(2).item<int>(); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("scale", &scale, "Multiplies on the GPU.");
  m.def("twice", &twice, "Multiplies by two with torch on the CPU.");
}
