#include <torch/csrc/utils/pybind.h>

at::Tensor hypot_cuda(const at::Tensor& a, const at::Tensor& b);
at::Tensor blend_cuda(const at::Tensor& a, const at::Tensor& b);
at::Tensor sin_cuda(const at::Tensor& a, const at::Tensor& b);
at::Tensor exp_cuda(const at::Tensor& a, const at::Tensor& b);

void bind_functions(pybind11::module_& m) {
  m.def("hypot", &hypot_cuda);
  m.def("blend", &blend_cuda);
  m.def("sin", &sin_cuda);
  m.def("exp", &exp_cuda);
}
