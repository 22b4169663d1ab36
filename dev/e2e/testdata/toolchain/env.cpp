#include <Python.h>
#include <c10/util/env.h>
static PyObject *answer(PyObject *, PyObject *) { return PyLong_FromLong(c10::utils::has_env("PATH") ? 42 : 0); } // new in torch 2.6
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "env", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_env() { return PyModule_Create(&module); }
