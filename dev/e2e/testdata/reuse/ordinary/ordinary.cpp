// An extension as most are: pybind11, C++ names and inline code of torch. torch/extension.h is these
// headers and those of the C++ frontend. With WITH_CUDA it is one for GPUs, as far as code of the
// host goes.
#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>
#ifdef WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#endif

static std::vector<std::vector<int64_t>> facts(const at::Tensor &t) {
  return {t.sizes().vec(), t.strides().vec(), {t.storage_offset(), t.numel(), t.dim(), static_cast<int64_t>(t.element_size())}};
}

static at::Tensor twice(const at::Tensor &t) {
  at::Tensor in = t.contiguous(), out = at::empty(t.sizes(), t.options());
  const float *from = in.data_ptr<float>();
  float *to = out.data_ptr<float>();
  for (int64_t i = 0; i < in.numel(); i++) to[i] = 2 * from[i];
  return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("facts", &facts);
  m.def("twice", &twice);
  m.def("contiguous", [](const at::Tensor &t) { return t.is_contiguous(); });
  m.def("references", [](const at::Tensor &t) { return static_cast<int64_t>(t.use_count()); });
  m.def("bytes", [](const at::Tensor &t) { return static_cast<int64_t>(t.storage().nbytes()); });
#ifdef WITH_CUDA
  m.def("gpus", [] { return static_cast<int64_t>(c10::cuda::device_count()); });
  m.def("stream", [] { return reinterpret_cast<int64_t>(c10::cuda::getCurrentCUDAStream(0).stream()); });
  m.def("cuda_fails", [] { C10_CUDA_CHECK(cudaErrorInvalidDevice); });
  m.def("synchronize", [] { C10_CUDA_CHECK(cudaDeviceSynchronize()); });
#endif
  m.def("fails", [] { TORCH_CHECK(false, "as it should"); });
}
