#include <torch/csrc/utils/pybind.h>

at::Tensor add_cuda(const at::Tensor& a, const at::Tensor& b);
at::Tensor sub_cuda(const at::Tensor& a, const at::Tensor& b);
at::Tensor mul_cuda(const at::Tensor& a, const at::Tensor& b);
at::Tensor max_cuda(const at::Tensor& a, const at::Tensor& b);
at::Tensor min_cuda(const at::Tensor& a, const at::Tensor& b);

void bind_arithmetic(pybind11::module_& m) {
  m.def("add", &add_cuda);
  m.def("sub", &sub_cuda);
  m.def("mul", &mul_cuda);
  m.def("max", &max_cuda);
  m.def("min", &min_cuda);
}
