#include <Python.h>
#include <hip/hip_runtime.h>
int half(int x);
__global__ void twice(int *x) { *x *= 2; }
static PyObject *answer(PyObject *, PyObject *) {
  hipFuncAttributes attributes;
  (void)hipFuncGetAttributes(&attributes, reinterpret_cast<const void *>(twice)); // fails without a GPU, and has to be linked
  return PyLong_FromLong(half(84));
}
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "hip", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_hip() { return PyModule_Create(&module); }
