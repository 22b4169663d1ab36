// One operator, and a module that can be imported to have it.
#include <Python.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

static at::Tensor twice(const at::Tensor &t) { return t.add(t); }

TORCH_LIBRARY(stock_torch, m) { m.def("twice", &twice); }

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "stock_torch_ops", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_stock_torch_ops(void) { return PyModule_Create(&module); }
