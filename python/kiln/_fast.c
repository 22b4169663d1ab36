// kiln._fast: a product with tensors of torch on a GPU, without ctypes. It is what kiln._quant
// calls first; where anything is out of the ordinary it says False and does nothing, and the Python
// code finds out what is wrong. A Python that cannot load it goes without.
//
// It is written against CPython's stable ABI, whose declarations it has itself: no header of a
// Python is needed to build it, and the one file serves every CPython since 3.9 that has a global
// interpreter lock.

#include <stddef.h>
#include <stdint.h>

typedef struct object {
	intptr_t references;
	struct object *type;
} object;

typedef struct {
	const char *name;
	object *(*call)(object *self, object *const *args, intptr_t count);
	int flags;
	const char *doc;
} method;

typedef struct {
	object base;
	object *(*init)(void);
	intptr_t index;
	object *copy;
	const char *name, *doc;
	intptr_t size;
	method *methods;
	void *slots, *traverse, *clear, *free;
} module;

enum { FASTCALL = 0x80, ABI_VERSION = 3 };

extern object *PyModule_Create2(module *def, int version);
extern object *PyUnicode_InternFromString(const char *text);
extern object *PyObject_GetAttr(object *o, object *name);
extern object *PyObject_CallMethodObjArgs(object *o, object *name, ...);
extern object *PyObject_CallFunctionObjArgs(object *f, ...);
extern int PyObject_IsTrue(object *o);
extern object *PyDict_GetItemWithError(object *dict, object *key);
extern intptr_t PyTuple_Size(object *tuple);
extern object *PyTuple_GetItem(object *tuple, intptr_t i);
extern object *PyTuple_New(intptr_t size);
extern int PyTuple_SetItem(object *tuple, intptr_t i, object *o);
extern object *PyBool_FromLong(long v);
extern long long PyLong_AsLongLong(object *o);
extern unsigned long long PyLong_AsUnsignedLongLong(object *o);
extern void *PyLong_AsVoidPtr(object *o);
extern object *PyErr_Occurred(void);
extern void PyErr_Clear(void);
extern void PyErr_SetString(object *kind, const char *text);
extern object *PyExc_TypeError;
extern void *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *thread);
extern void Py_IncRef(object *o);
extern void Py_DecRef(object *o);

// kiln_gemm of libkiln, see kiln.h.
typedef int32_t gemm_function(uint64_t matrix, const void *x, int64_t x_rows, int64_t x_cols, void *out, int64_t out_rows,
                              int64_t out_cols, uint32_t flags, void *stream);

static gemm_function *kiln_gemm;  // NULL: everything is out of the ordinary
static object *devices;           // dict of all matrices: handle to number of the device
static object *half;              // torch.float16
static object *stream_of;         // function: number of a device to its current stream
static object *types[2];          // torch.Tensor and torch.nn.Parameter

static object *name_dtype, *name_shape, *name_device, *name_contiguous, *name_data, *name_new;

enum { MOST_DIMS = 8 };

typedef struct {
	void *data;
	int64_t rows, cols;
	intptr_t dims;
	int64_t shape[MOST_DIMS];
} matrix;

// number takes a reference to an integer. -2 is none: no device has it.
static long long number(object *o) {
	if (!o) return -2;
	long long v = PyLong_AsLongLong(o);
	Py_DecRef(o);
	return v;
}

static int read_data(object *t, void **data) {
	object *o = PyObject_CallMethodObjArgs(t, name_data, NULL);
	if (!o) return 0;
	*data = PyLong_AsVoidPtr(o);
	Py_DecRef(o);
	return !PyErr_Occurred();
}

// read reads a dense half-precision tensor on a device, the columns being its last dimension. An
// exception may be set. Where shape is not NULL it becomes a new reference, also if the answer is
// no.
static int read(object *t, long long device, matrix *m, object **shape) {
	if (t->type != types[0] && t->type != types[1]) return 0;
	object *kind = PyObject_GetAttr(t, name_dtype);
	if (!kind) return 0;
	Py_DecRef(kind);
	if (kind != half || number(PyObject_CallMethodObjArgs(t, name_device, NULL)) != device) return 0;
	object *dense = PyObject_CallMethodObjArgs(t, name_contiguous, NULL);
	if (!dense) return 0;
	int yes = PyObject_IsTrue(dense);
	Py_DecRef(dense);
	if (yes != 1) return 0;
	object *size = PyObject_GetAttr(t, name_shape);
	if (!size) return 0;
	m->dims = PyTuple_Size(size);
	m->rows = 1, m->cols = -1;
	for (intptr_t i = 0; i < m->dims && i < MOST_DIMS; i++) {
		object *n = PyTuple_GetItem(size, i);  // borrowed
		if (i) m->rows *= m->cols;
		m->shape[i] = m->cols = n ? PyLong_AsLongLong(n) : -1;
	}
	if (shape) *shape = size;
	else Py_DecRef(size);
	return m->dims >= 1 && m->dims <= MOST_DIMS && !PyErr_Occurred() && read_data(t, &m->data);
}

// place returns a new reference to the number of a matrix's device, NULL for none and for the CPU.
static object *place(object *handle, long long *device) {
	object *o = kiln_gemm ? PyDict_GetItemWithError(devices, handle) : NULL;  // borrowed
	if (!o) return NULL;
	Py_IncRef(o);
	*device = PyLong_AsLongLong(o);
	if (*device >= 0) return o;
	Py_DecRef(o);
	return NULL;
}

// queue calls kiln_gemm and returns whether it did what it was asked for.
static int queue(object *handle, const matrix *x, const matrix *out, object *flags, object *where) {
	uint64_t number = PyLong_AsUnsignedLongLong(handle);
	long long bits = PyLong_AsLongLong(flags);
	object *current = PyErr_Occurred() ? NULL : PyObject_CallFunctionObjArgs(stream_of, where, NULL);
	if (!current) return 0;
	void *stream = PyLong_AsVoidPtr(current);
	Py_DecRef(current);
	if (PyErr_Occurred()) return 0;
	gemm_function *f = kiln_gemm;
	void *thread = PyEval_SaveThread();
	int done = f(number, x->data, x->rows, x->cols, out->data, out->rows, out->cols, (uint32_t)bits, stream) == 0;
	PyEval_RestoreThread(thread);
	return done;
}

// alike says whether all dimensions but the last are the same.
static int alike(const matrix *a, const matrix *b) {
	int same = a->dims == b->dims;
	for (intptr_t i = 0; same && i + 1 < a->dims; i++) same = a->shape[i] == b->shape[i];
	return same;
}

// multiply returns whether the product was queued. dims is how many dimensions there must be, 0 for
// any number.
static int multiply(object *const *args, intptr_t count, intptr_t dims) {
	long long device;
	object *where = count == 4 ? place(args[1], &device) : NULL;
	if (!where) return 0;
	matrix x, out;
	int done = read(args[0], device, &x, NULL) && read(args[2], device, &out, NULL) &&
	           (dims ? x.dims == dims && out.dims == dims : alike(&x, &out)) && queue(args[1], &x, &out, args[3], where);
	Py_DecRef(where);
	return done;
}

// result returns a new tensor of the shape of x, with other columns.
static object *result(object *x, object *shape, intptr_t dims, object *cols) {
	object *size = PyTuple_New(dims);
	if (!size) return NULL;
	for (intptr_t i = 0; i < dims; i++) {
		object *n = i + 1 < dims ? PyTuple_GetItem(shape, i) : cols;
		Py_IncRef(n);
		PyTuple_SetItem(size, i, n);  // takes the reference
	}
	object *t = PyObject_CallMethodObjArgs(x, name_new, size, NULL);
	Py_DecRef(size);
	return t;
}

static object *answer(int done) {
	if (!done) PyErr_Clear();
	return PyBool_FromLong(done);
}

static object *gemm(object *self, object *const *args, intptr_t count) { return (void)self, answer(multiply(args, count, 2)); }
static object *gemm_any(object *self, object *const *args, intptr_t count) { return (void)self, answer(multiply(args, count, 0)); }

static object *product(object *self, object *const *args, intptr_t count) {
	(void)self;
	long long device;
	object *where = count == 4 ? place(args[1], &device) : NULL, *shape = NULL, *out = NULL;
	int done = 0;
	if (where) {
		matrix x, y;
		if (read(args[0], device, &x, &shape) && (out = result(args[0], shape, x.dims, args[2]))) {
			y.rows = x.rows, y.cols = PyLong_AsLongLong(args[2]);
			done = !PyErr_Occurred() && read_data(out, &y.data) && queue(args[1], &x, &y, args[3], where);
		}
		Py_DecRef(where);
	}
	if (shape) Py_DecRef(shape);
	if (done) return out;
	if (out) Py_DecRef(out);
	return answer(0);
}

static void set(object **to, object *from) {
	object *old = *to;
	Py_IncRef(from);
	*to = from;
	if (old) Py_DecRef(old);
}

static object *setup(object *self, object *const *args, intptr_t count) {
	(void)self;
	if (count != 6) {
		PyErr_SetString(PyExc_TypeError, "setup takes 6 arguments");
		return NULL;
	}
	void *f = PyLong_AsVoidPtr(args[0]);
	if (PyErr_Occurred()) return NULL;
	set(&devices, args[1]), set(&half, args[2]), set(&stream_of, args[3]), set(&types[0], args[4]), set(&types[1], args[5]);
	kiln_gemm = (gemm_function *)f;
	return PyBool_FromLong(f != NULL);
}

static method methods[] = {
	{"gemm", gemm, FASTCALL, "gemm(x, handle, out, flags): whether the product was queued; tensors of two dimensions."},
	{"gemm_any", gemm_any, FASTCALL, "The same for tensors that differ in nothing but their last dimension."},
	{"product", product, FASTCALL, "product(x, handle, columns, flags): a new tensor with the product, or False."},
	{"setup", setup, FASTCALL, "setup(address of kiln_gemm or 0, devices, float16, stream, Tensor, Parameter)"},
	{0, 0, 0, 0},
};

static module definition = {{1, 0}, 0, 0, 0, "_fast", "Products with tensors of torch, without ctypes.", -1, methods, 0, 0, 0, 0};

__attribute__((visibility("default"))) object *PyInit__fast(void) {
	name_dtype = PyUnicode_InternFromString("dtype"), name_shape = PyUnicode_InternFromString("shape");
	name_device = PyUnicode_InternFromString("get_device"), name_contiguous = PyUnicode_InternFromString("is_contiguous");
	name_data = PyUnicode_InternFromString("data_ptr"), name_new = PyUnicode_InternFromString("new_empty");
	if (!name_dtype || !name_shape || !name_device || !name_contiguous || !name_data || !name_new) return NULL;
	return PyModule_Create2(&definition, ABI_VERSION);
}
