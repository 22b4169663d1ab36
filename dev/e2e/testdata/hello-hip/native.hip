#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <hip/hip_runtime.h>

extern "C" __global__ void saxpy(int n, float a, const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}

static PyObject* targets(PyObject*, PyObject*) { return PyUnicode_FromString(TARGETS); }

static PyMethodDef methods[] = {{"targets", targets, METH_NOARGS, "The GPUs that this module has code for."}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", nullptr, -1, methods};

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
