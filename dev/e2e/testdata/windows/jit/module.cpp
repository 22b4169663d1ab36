#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "answer.h"
static PyObject *f(PyObject *, PyObject *) { return PyLong_FromLong(answer_of_device()); }
static PyMethodDef methods[] = {{"answer", f, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "winjit", nullptr, 0, methods};
PyMODINIT_FUNC PyInit_winjit() { return PyModule_Create(&def); }
