#include <Python.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

void scale(float *x, long long n, float by);
double sum(const float *x, long long n);

static void call_scale(StableIValue *stack, uint64_t, uint64_t) {
    auto t = to<torch::stable::Tensor>(stack[0]);
    scale(static_cast<float *>(t.data_ptr()), t.numel(), static_cast<float>(to<double>(stack[1])));
    stack[0] = from(t);
}

static void call_sum(StableIValue *stack, uint64_t, uint64_t) {
    auto t = to<torch::stable::Tensor>(stack[0]);
    stack[0] = from(sum(static_cast<float *>(t.data_ptr()), t.numel()));
}

STABLE_TORCH_LIBRARY(exllamav2_ext, m) {
    m.def("scale(Tensor(a!) x, float by) -> Tensor(a!)");
    m.def("sum(Tensor x) -> float");
}

STABLE_TORCH_LIBRARY_IMPL(exllamav2_ext, CPU, m) {
    m.impl("scale", &call_scale);
    m.impl("sum", &call_sum);
}

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "exllamav2_ext"};
PyMODINIT_FUNC PyInit_exllamav2_ext(void) { return PyModule_Create(&module); }
