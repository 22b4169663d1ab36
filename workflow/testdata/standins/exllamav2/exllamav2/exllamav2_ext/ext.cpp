#include <Python.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

int scale(float *values, float by, int n);
int sum(const float *values, float *out, int n);

static at::Tensor twice(const at::Tensor &t) { return t.add(t); }

// With no values the kernels are not started: a machine without a GPU has the functions all the same.
static int64_t kernels() { return scale(nullptr, 1, 0) + sum(nullptr, nullptr, 0); }

TORCH_LIBRARY(exllamav2, m) {
  m.def("twice", &twice);
  m.def("kernels", &kernels);
}

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "exllamav2_ext", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_exllamav2_ext(void) { return PyModule_Create(&module); }
