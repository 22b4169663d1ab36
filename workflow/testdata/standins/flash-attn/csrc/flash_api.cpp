#include <Python.h>

int softmax(float *row, int n);

static PyObject *has_kernel(PyObject *, PyObject *) { return PyBool_FromLong(softmax(nullptr, 0)); }

static PyMethodDef methods[] = {{"has_kernel", has_kernel, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "flash_attn_2_cuda", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit_flash_attn_2_cuda(void) { return PyModule_Create(&module); }
