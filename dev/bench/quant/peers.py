"""The programs that kiln's quantized products are compared with: numpy's OpenBLAS, and ggml of llama.cpp.

Reads one JSON request a line from standard input and answers with one line:

    {"peer": "openblas", "k": 4096, "n": 4096, "m": 8, "seconds": 1.0}  ->  {"seconds": 0.0123, "error": null}

The answer is the time of the fastest product and, the first time that ggml multiplies one row, the relative error of it. As in kiln, several matrices are used in turn, so that weights come from
memory. Arguments: the number of threads, and the folder with ggml's libraries or "" for none.
"""

import ctypes
import json
import os
import sys
import time

THREADS = int(sys.argv[1])
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[name] = str(THREADS)

import numpy as np  # noqa: E402  (reads the variables above)

CACHE_BYTES = 256 << 20
GROUP = 128


def best(seconds, products):
    """Runs the functions in turn for some time, at least three times, and returns the shortest time."""
    fastest = float("inf")
    products[0]()
    start, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - start < seconds:
        product = products[count % len(products)]
        begin = time.perf_counter()
        product()
        fastest = min(fastest, time.perf_counter() - begin)
        count += 1
    return fastest


class OpenBLAS:
    """Weights in float32, or packed 4-bit codes that are unpacked for every product."""

    def __init__(self, k, n):
        rng = np.random.default_rng(1)
        self.k, self.n = k, n
        self.codes = rng.integers(0, 1 << 32, (k // 8, n), dtype=np.uint32)
        self.scales = rng.random((k // GROUP, 1, n), dtype=np.float32)
        self.weights = [self.dequantize().copy() for _ in range(max(1, -(-CACHE_BYTES // (4 * k * n))))]
        self.buffer = np.empty((k // 8, 8, n), dtype=np.float32)
        self.integers = np.empty((k // 8, n), dtype=np.uint32)

    def dequantize(self):
        if not hasattr(self, "buffer"):
            self.buffer = np.empty((self.k // 8, 8, self.n), dtype=np.float32)
            self.integers = np.empty((self.k // 8, self.n), dtype=np.uint32)
        for i in range(8):
            np.right_shift(self.codes, 4 * i, out=self.integers)
            np.bitwise_and(self.integers, 15, out=self.integers)
            np.subtract(self.integers, np.float32(8), out=self.buffer[:, i, :])
        out = self.buffer.reshape(self.k // GROUP, GROUP, self.n)
        np.multiply(out, self.scales, out=out)
        return self.buffer.reshape(self.k, self.n)

    def run(self, m, seconds, dequantize):
        x = np.random.default_rng(2).standard_normal((m, self.k), dtype=np.float32)
        y = np.empty((m, self.n), dtype=np.float32)
        if dequantize:
            return best(seconds, [lambda: np.matmul(x, self.dequantize(), out=y)])
        return best(seconds, [lambda w=w: np.matmul(x, w, out=y) for w in self.weights])


class GGML:
    """Q4_0 weights: 4 bits and one half-precision scale for 32 of them. Activations become 8-bit integers."""

    F32, Q4_0 = 0, 2

    def __init__(self, folder):
        def library(name):
            return ctypes.CDLL(os.path.join(folder, f"lib{name}.so"), mode=ctypes.RTLD_GLOBAL)

        pointer, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
        base, cpu = library("ggml-base"), library("ggml-cpu")

        def function(lib, name, result, *arguments):
            f = getattr(lib, name)
            f.restype, f.argtypes = result, arguments
            return f

        class Params(ctypes.Structure):
            _fields_ = [("mem_size", size), ("mem_buffer", pointer), ("no_alloc", ctypes.c_bool)]

        self.Params = Params
        self.init = function(base, "ggml_init", pointer, Params)
        self.free = function(base, "ggml_free", None, pointer)
        self.tensor = function(base, "ggml_new_tensor_2d", pointer, pointer, ctypes.c_int, integer, integer)
        self.mul_mat = function(base, "ggml_mul_mat", pointer, pointer, pointer, pointer)
        self.graph = function(base, "ggml_new_graph", pointer, pointer)
        self.expand = function(base, "ggml_build_forward_expand", None, pointer, pointer)
        self.row_size = function(base, "ggml_row_size", size, ctypes.c_int, integer)
        self.quantize = function(
            base, "ggml_quantize_chunk", size, ctypes.c_int, pointer, pointer, integer, integer, integer, pointer)
        self.allocate = function(base, "ggml_backend_alloc_ctx_tensors_from_buft", pointer, pointer, pointer)
        self.free_buffer = function(base, "ggml_backend_buffer_free", None, pointer)
        self.set = function(base, "ggml_backend_tensor_set", None, pointer, pointer, size, size)
        self.get = function(base, "ggml_backend_tensor_get", None, pointer, pointer, size, size)
        self.compute = function(base, "ggml_backend_graph_compute", ctypes.c_int, pointer, pointer)
        plain = function(base, "ggml_backend_cpu_buffer_type", pointer)()
        self.backend = function(cpu, "ggml_backend_cpu_init", pointer)()
        function(cpu, "ggml_backend_cpu_set_n_threads", None, pointer, ctypes.c_int)(self.backend, THREADS)

        # The kinds of memory in which this processor wants its weights; one of them repacks them for fast products.
        register = function(cpu, "ggml_backend_cpu_reg", pointer)()
        device = function(base, "ggml_backend_reg_dev_get", pointer, pointer, size)(register, 0)
        address = function(base, "ggml_backend_reg_get_proc_address", pointer, pointer, ctypes.c_char_p)(
            register, b"ggml_backend_dev_get_extra_bufts")
        name = function(base, "ggml_backend_buft_name", ctypes.c_char_p, pointer)
        self.buffer_types = {"plain": plain}
        extra = ctypes.CFUNCTYPE(ctypes.POINTER(pointer), pointer)(address)(device)
        i = 0
        while extra and extra[i]:
            self.buffer_types[name(extra[i]).decode()] = extra[i]
            i += 1
        self.plain = plain
        self.checked = False

    def context(self):
        return self.init(self.Params(4 << 20, None, True))

    def upload(self, k, n, kind):
        """Returns contexts, buffers and weights, enough of them not to stay in a cache."""
        row = self.row_size(self.Q4_0, k)
        copies = max(1, -(-CACHE_BYTES // (row * n)))
        values = np.random.default_rng(3).standard_normal((n, k), dtype=np.float32)
        packed = np.empty(row * n, dtype=np.uint8)
        self.quantize(self.Q4_0, values.ctypes.data, packed.ctypes.data, 0, n, k, None)
        context = self.context()
        weights = [self.tensor(context, self.Q4_0, k, n) for _ in range(copies)]
        buffer = self.allocate(context, self.buffer_types[kind])
        if not buffer:
            self.free(context)
            return None
        for w in weights:
            self.set(w, packed.ctypes.data, 0, packed.nbytes)
        return context, buffer, weights, packed

    def run(self, uploaded, k, m, seconds):
        """Returns the shortest time and, of one row, the first time, the error."""
        _, _, weights, packed = uploaded
        x = np.random.default_rng(4).standard_normal((m, k), dtype=np.float32)
        context = self.context()
        inputs = self.tensor(context, self.F32, k, m)
        graphs, results = [], []
        for w in weights:
            graph = self.graph(context)
            results.append(self.mul_mat(context, w, inputs))
            self.expand(graph, results[-1])
            graphs.append(graph)
        buffer = self.allocate(context, self.plain)
        self.set(inputs, x.ctypes.data, 0, x.nbytes)

        def product(graph):
            if self.compute(self.backend, graph) != 0:
                raise RuntimeError("ggml: the product failed")

        result, error = best(seconds, [lambda g=g: product(g) for g in graphs]), None
        if m == 1 and not self.checked:
            self.checked = True
            want = self.dequantize(packed, k) @ x[0]
            got = np.empty_like(want)
            self.get(results[0], got.ctypes.data, 0, got.nbytes)
            error = float(np.linalg.norm(got - want) / np.linalg.norm(want))
        self.free_buffer(buffer)
        self.free(context)
        return result, error

    @staticmethod
    def dequantize(packed, k):
        """The weights: blocks of 32 with a float16 and 16 bytes, in each byte two codes that are 16 apart."""
        blocks = packed.reshape(-1, 18)
        codes = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1).astype(np.float32) - 8
        return (codes * blocks[:, :2].copy().view(np.float16).astype(np.float32)).reshape(-1, k)

    def release(self, uploaded):
        context, buffer, _, _ = uploaded
        self.free_buffer(buffer)
        self.free(context)


def main():
    ggml = GGML(sys.argv[2]) if sys.argv[2] else None
    print(json.dumps({
        "openblas": "numpy " + np.__version__,
        "ggml": sorted(ggml.buffer_types) if ggml else [],
    }), flush=True)
    blas, shape, uploads = None, None, {}
    for line in sys.stdin:
        request = json.loads(line)
        k, n, m, seconds, peer = (request[name] for name in ("k", "n", "m", "seconds", "peer"))
        if shape != (k, n):
            for uploaded in uploads.values():
                if uploaded:
                    ggml.release(uploaded)
            blas, shape, uploads = None, (k, n), {}
        if peer in ("openblas", "dequantize+openblas"):
            blas = blas or OpenBLAS(k, n)
            answer, error = blas.run(m, seconds, peer != "openblas"), None
        else:
            kind = peer.removeprefix("ggml ")
            if kind not in uploads:
                uploads[kind] = ggml.upload(k, n, kind)
            answer, error = ggml.run(uploads[kind], k, m, seconds) if uploads[kind] else (None, None)
        print(json.dumps({"seconds": answer, "error": error}), flush=True)


main()
