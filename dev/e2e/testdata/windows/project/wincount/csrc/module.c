#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "wincount.h"

static PyObject *count(PyObject *self, PyObject *arg) {
    const char *text = PyUnicode_AsUTF8(arg);
    return text == NULL ? NULL : PyLong_FromSize_t(count_words(text));
}

static PyObject *total(PyObject *self, PyObject *arg) {
    Py_ssize_t n = PySequence_Size(arg);
    long long *numbers = n < 0 ? NULL : PyMem_Malloc((size_t)(n ? n : 1) * sizeof *numbers);
    PyObject *sum = NULL;
    if (numbers == NULL)
        return n < 0 ? NULL : PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PySequence_GetItem(arg, i);
        if (item == NULL)
            goto done;
        numbers[i] = PyLong_AsLongLong(item);
        Py_DECREF(item);
        if (PyErr_Occurred())
            goto done;
    }
    sum = PyLong_FromLongLong(add_numbers(numbers, (size_t)n));
done:
    PyMem_Free(numbers);
    return sum;
}

static PyMethodDef methods[] = {
    {"count", count, METH_O, "Return the number of words."},
    {"total", total, METH_O, "Return the sum of integers."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods};

PyMODINIT_FUNC PyInit__native(void) {
    return PyModule_Create(&module);
}
