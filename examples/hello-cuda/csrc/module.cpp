// hello_cuda._native: the Python side. Plain CPython API, 3.9 and later; no state, so
// it is safe in subinterpreters and without the GIL.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "saxpy.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

// FloatBuffer holds one argument of saxpy for the length of the call.
class FloatBuffer {
public:
    FloatBuffer() = default;
    FloatBuffer(const FloatBuffer &) = delete;
    FloatBuffer &operator=(const FloatBuffer &) = delete;
    ~FloatBuffer() { PyBuffer_Release(&view_); } // does nothing if acquire failed

    // acquire takes obj's memory. If that is not one dimension of contiguous float32, or
    // is to be written and cannot be, it sets an exception naming the argument. It asks
    // for any layout and judges by itself, because exporters word their refusals differently.
    bool acquire(PyObject *obj, const char *name, bool write)
    {
        if (!PyObject_CheckBuffer(obj)) {
            PyErr_Format(PyExc_TypeError,
                         "saxpy(): %s must be a float32 buffer such as array.array('f'), not %s", name,
                         Py_TYPE(obj)->tp_name);
            return false;
        }
        if (PyObject_GetBuffer(obj, &view_, PyBUF_FULL_RO) < 0)
            return false;
        if (!is_float32()) {
            PyErr_Format(PyExc_TypeError, "saxpy(): %s must hold float32 (buffer format 'f'), not format '%s'", name,
                         view_.format ? view_.format : "B");
            return false;
        }
        if (write && view_.readonly) {
            PyErr_Format(PyExc_TypeError, "saxpy(): %s is read-only, and the result is written to it", name);
            return false;
        }
        if (view_.ndim != 1) {
            PyErr_Format(PyExc_ValueError, "saxpy(): %s must have one dimension, not %d", name, view_.ndim);
            return false;
        }
        if (!PyBuffer_IsContiguous(&view_, 'C')) {
            PyErr_Format(PyExc_ValueError, "saxpy(): %s must be contiguous", name);
            return false;
        }
        // The memory of an empty buffer may be anywhere.
        if (view_.len > 0 && reinterpret_cast<std::uintptr_t>(view_.buf) % alignof(float) != 0) {
            PyErr_Format(PyExc_ValueError, "saxpy(): %s must be aligned to %zu bytes", name, alignof(float));
            return false;
        }
        return true;
    }

    float *data() const { return static_cast<float *>(view_.buf); }
    std::size_t size() const { return static_cast<std::size_t>(view_.len) / sizeof(float); }

    // overlaps_partly: the same memory is fine, since element i meets only element i.
    bool overlaps_partly(const FloatBuffer &o) const
    {
        const auto a = reinterpret_cast<std::uintptr_t>(view_.buf), b = reinterpret_cast<std::uintptr_t>(o.view_.buf);
        return a != b && a < b + static_cast<std::size_t>(o.view_.len) && b < a + static_cast<std::size_t>(view_.len);
    }

private:
    // is_float32 accepts 'f' in the byte order of the machine, in any of its spellings.
    bool is_float32() const
    {
        const char *f = view_.format;
        if (f == nullptr || view_.itemsize != sizeof(float))
            return false;
        if (*f == '@' || *f == '=' || *f == (PY_LITTLE_ENDIAN ? '<' : '>'))
            f++;
        return std::strcmp(f, "f") == 0;
    }

    Py_buffer view_{};
};

enum class Device { best, cpu, gpu };

bool parse_device(const char *text, Device *device)
{
    if (std::strcmp(text, "auto") == 0)
        *device = Device::best;
    else if (std::strcmp(text, "cpu") == 0)
        *device = Device::cpu;
    else if (std::strcmp(text, "gpu") == 0)
        *device = Device::gpu;
    else {
        PyErr_Format(PyExc_ValueError, "saxpy(): device must be 'auto', 'cpu' or 'gpu', not '%s'", text);
        return false;
    }
    return true;
}

#ifndef HELLO_TOOLKIT
#define HELLO_TOOLKIT "cuda"
#endif
constexpr char no_cuda[] = "this build has no CUDA code (it was made for BUILD_TARGET=cpu)";

// compute runs without the GIL where it can take long. It returns false with an exception set.
bool compute(Device device, float a, const FloatBuffer &x, const FloatBuffer &y)
{
#ifdef HELLO_WITH_CUDA
    if (device != Device::cpu) {
        hello::Probe probe;
        hello::Status status = hello::Status::ok;
        char message[320] = "";
        Py_BEGIN_ALLOW_THREADS
        probe = hello::probe();
        if (probe.usable)
            status = hello::saxpy_cuda(y.size(), a, x.data(), y.data(), message, sizeof message);
        Py_END_ALLOW_THREADS
        if (!probe.usable && device == Device::gpu) {
            PyErr_Format(PyExc_RuntimeError, "saxpy(): no usable GPU: %s", probe.reason);
            return false;
        }
        if (status != hello::Status::ok) {
            PyErr_Format(status == hello::Status::out_of_memory ? PyExc_MemoryError : PyExc_RuntimeError,
                         "saxpy(): %s", message);
            return false;
        }
        if (probe.usable)
            return true;
    }
#else
    if (device == Device::gpu) {
        PyErr_Format(PyExc_RuntimeError, "saxpy(): no usable GPU: %s", no_cuda);
        return false;
    }
#endif
    Py_BEGIN_ALLOW_THREADS
    hello::saxpy_cpu(y.size(), a, x.data(), y.data());
    Py_END_ALLOW_THREADS
    return true;
}

PyObject *saxpy(PyObject *, PyObject *args, PyObject *kwargs)
{
    static const char *keywords[] = {"", "", "", "device", nullptr};
    double a;
    PyObject *x_obj, *y_obj;
    const char *device_text = "auto";
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "dOO|$s:saxpy", const_cast<char **>(keywords), &a, &x_obj, &y_obj,
                                     &device_text))
        return nullptr;

    Device device;
    if (!parse_device(device_text, &device))
        return nullptr;
    const float a32 = static_cast<float>(a);
    if (std::isinf(a32) && !std::isinf(a)) {
        PyErr_SetString(PyExc_OverflowError, "saxpy(): a is too large for float32");
        return nullptr;
    }

    FloatBuffer x, y;
    if (!x.acquire(x_obj, "x", false) || !y.acquire(y_obj, "y", true))
        return nullptr;
    if (x.size() != y.size()) {
        PyErr_Format(PyExc_ValueError, "saxpy(): x has %zu elements, y has %zu", x.size(), y.size());
        return nullptr;
    }
    if (x.overlaps_partly(y)) {
        PyErr_SetString(PyExc_ValueError, "saxpy(): x and y overlap in memory without being the same");
        return nullptr;
    }
    if (!compute(device, a32, x, y))
        return nullptr;
    Py_RETURN_NONE;
}

PyObject *backend(PyObject *, PyObject *)
{
#ifdef HELLO_WITH_CUDA
    // The build passes the list bare (7.5,9.0+PTX): quotes do not survive every compiler driver.
#define HELLO_TEXT(...) #__VA_ARGS__
#define HELLO_EXPAND(...) HELLO_TEXT(__VA_ARGS__)
    hello::Probe probe;
    Py_BEGIN_ALLOW_THREADS
    probe = hello::probe();
    Py_END_ALLOW_THREADS
    PyObject *text = PyUnicode_FromString(HELLO_EXPAND(HELLO_CUDA_ARCHS));
    PyObject *comma = PyUnicode_FromString(",");
    PyObject *archs = text && comma ? PyUnicode_Split(text, comma, -1) : nullptr;
    Py_XDECREF(text);
    Py_XDECREF(comma);
    if (archs == nullptr)
        return nullptr;
    const int version = hello::toolkit_version();
    return Py_BuildValue("{s:N,s:N,s:N,s:s,s:s}",
                         "toolkit", PyUnicode_FromFormat(HELLO_TOOLKIT " %d.%d", version / 1000, version % 1000 / 10),
                         "archs", archs,
                         "gpu", PyBool_FromLong(probe.usable),
                         "device", probe.device[0] ? probe.device : nullptr,
                         "reason", probe.reason[0] ? probe.reason : nullptr);
#else
    return Py_BuildValue("{s:s,s:[],s:O,s:O,s:s}",
                         "toolkit", "none",
                         "archs",
                         "gpu", Py_False,
                         "device", Py_None,
                         "reason", no_cuda);
#endif
}

PyMethodDef methods[] = {
    {"saxpy", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(saxpy)), METH_VARARGS | METH_KEYWORDS,
     "saxpy($module, a, x, y, /, *, device='auto')\n--\n\n"
     "Set y[i] = a * x[i] + y[i], rounded once.\n\n"
     "x and y are float32 buffers of one length; y is written. device 'auto' takes the\n"
     "GPU if one is usable, else the CPU; 'gpu' raises RuntimeError instead."},
    {"backend", backend, METH_NOARGS,
     "backend($module, /)\n--\n\n"
     "Describe this build and the GPU as it is now.\n\n"
     "toolkit: 'cuda X.Y', 'rocm X.Y' or 'none'; archs: what was compiled in; gpu: whether saxpy runs\n"
     "on one; device: its name or None; reason: why gpu is False, or None."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot slots[] = {
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "hello_cuda._native", nullptr, 0, methods, slots, nullptr, nullptr, nullptr,
};

} // namespace

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&definition); }
