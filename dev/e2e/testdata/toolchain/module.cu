#include <Python.h>
#include <cuda_runtime.h>
__global__ void twice(int *x) { *x *= 2; }
static PyObject *answer(PyObject *, PyObject *) {
  cudaFuncAttributes attributes;
  cudaFuncGetAttributes(&attributes, twice); // fails without a GPU, and has to be linked
  return PyLong_FromLong(42);
}
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "cuda", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_cuda() { return PyModule_Create(&module); }
