#include <Python.h>
#include <string>
static PyObject *answer(PyObject *, PyObject *) { return PyLong_FromLong(std::stol("42")); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "plain", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_plain() { return PyModule_Create(&module); }
