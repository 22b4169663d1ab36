"""What kiln asks of a GPU through Python, without one: libcuda.so.1 is a library that writes down its calls.

Its device memory is ordinary memory and it runs no kernel, so results mean nothing here; streams, copies, allocations
and errors do. Run by the Go tests, which compile it and put it on LD_LIBRARY_PATH.
"""

import ctypes
import gc
import os
import re
import sys
import threading
import time
import types
import unittest
import warnings
import weakref
from unittest import mock

import numpy as np
from support import DType, Tensor, random_exl2, random_gptq

import kiln

driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
driver.fake_log.restype = ctypes.c_char_p

STREAM = 7


class Torch(types.ModuleType):
    """As much of torch as kiln looks for where a tensor is torch's."""

    class _C:
        @staticmethod
        def _cuda_getCurrentRawStream(device):
            assert device == 0
            return STREAM

    float16 = DType("float16")
    emptied = 0
    on_empty = None

    def __init__(self):
        super().__init__("torch")
        self.cuda = types.SimpleNamespace(is_initialized=lambda: True, empty_cache=self._empty)

    def _empty(self):
        Torch.emptied += 1
        if Torch.on_empty:
            Torch.on_empty()


sys.modules["torch"] = Torch()


class Device(Tensor):
    """A tensor in the memory of the fake device."""

    is_cuda = True

    def __init__(self, array):
        super().__init__(array)
        self.device.type, self.device.index = "cuda", 0
        if array.dtype == np.float16:
            self.dtype = Torch.float16

    def get_device(self):
        return 0

    def new_empty(self, shape):
        return Device(np.zeros(shape, self.array.dtype))

    def reshape(self, *shape):
        return Device(self.array.reshape(*shape))

    def contiguous(self):
        return Device(np.ascontiguousarray(self.array))


Torch.Tensor, Torch.nn = Device, types.SimpleNamespace(Parameter=type("Parameter", (Device,), {}))


def aligned(array):
    """A copy at an address like those of device memory."""
    memory = np.empty(array.nbytes + 512, np.uint8)
    first = -memory.ctypes.data % 512
    copy = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def on_device(tensors):
    return {n: Device(aligned(t)) for n, t in tensors.items()}


def log():
    lines = driver.fake_log().decode().splitlines()
    driver.fake_clear()
    return lines


def arguments(k=256, n=64):
    t, none = on_device(random_gptq(k, n)), Tensor(np.empty((1, 1), np.float32), meta=True)
    return [t["qweight"], none, none, none, none, none, none, t["qzeros"], t["scales"], none, none]


def half(*shape):
    return Device(np.zeros(shape, np.float16))


class TestDriver(unittest.TestCase):
    def setUp(self):
        kiln.backend("cuda:0")  # opens the device
        log()

    def tearDown(self):
        driver.fake_work()
        Torch.on_empty = None
        self.assertEqual(driver.fake_contexts(), 0)

    def test_devices(self):
        (device,) = kiln.devices()
        self.assertEqual((device["device"], device["name"], device["capability"]), ("cuda:0", "Fake", (9, 0)))
        with self.assertRaises(kiln.NotSupported):
            kiln.backend("cuda:1")

    def test_make_reads_on_the_stream(self):
        tensors = on_device(random_exl2(256, 64))
        before = {n: t.array.copy() for n, t in tensors.items()}
        log()
        with kiln.QMatrix.from_exl2(tensors) as m:
            self.assertEqual((m.device, m.shape), (0, (256, 64)))
            asked = log()
        for n, t in tensors.items():
            np.testing.assert_array_equal(t.array, before[n])
        reads = [i for i, line in enumerate(asked) if line == "do upload stream %d" % STREAM]
        # All but the words of the weights, which are packed where they are; those are waited for too.
        self.assertEqual(len(reads), len(tensors) - 1, asked)
        for i in reads:
            self.assertEqual(asked[i + 1], "wait stream %d" % STREAM)
        self.assertEqual(asked.count("wait stream %d" % STREAM), len(tensors), asked)

    def test_products_only_launch(self):
        handle = kiln.make_q_matrix(*arguments())
        for rows in (1, 16, 100):
            for force in (False, True):
                x, out = half(rows, 256), half(rows, 64)
                kiln.gemm_half_q_half(x, handle, out, force)
                log()
                kiln.gemm_half_q_half(x, handle, out, force)
                asked = log()
                self.assertTrue(asked)
                for line in asked:
                    self.assertRegex(line, r"^launch kiln_\w+ stream %d " % STREAM)
        kiln.gemm_half_q_half(half(0, 256), handle, half(0, 64), False)
        self.assertEqual(log(), [])
        kiln.reconstruct(handle, half(256, 64))
        self.assertRegex(" ".join(log()), r"^launch kiln_dequantize stream %d " % STREAM)
        kiln.free_q_matrix(handle)

    def test_many(self):
        """Two matrices with one permutation share its work, and a third with another does not."""
        kinds = [random_exl2(256, 64), random_exl2(256, 64, bits=5), random_exl2(256, 64, seed=7)]
        kinds[1]["q_invperm"] = kinds[0]["q_invperm"]
        ws = [kiln.QMatrix.from_exl2(on_device(t)) for t in kinds]
        x = half(2, 3, 256)
        kiln.matmul_many(x, ws)
        log()
        self.assertEqual([y.shape for y in kiln.matmul_many(x, ws)], [(2, 3, 64)] * 3)
        asked = [line.split()[1] for line in log() if line.startswith("launch")]
        self.assertEqual(len([name for name in asked if name in ("kiln_gather", "kiln_permute")]), 2, asked)
        self.assertEqual(len(asked), 5, asked)
        with kiln.QMatrix.from_exl2(random_exl2(256, 64)) as host:
            with self.assertRaisesRegex(RuntimeError, "the matrix is on the CPU"):
                kiln.matmul_many(x, [ws[0], host])

    def test_capture(self):
        """As torch records, in the global mode, also before any product on the stream."""
        handle, graph = kiln.make_q_matrix(*arguments()), ctypes.c_void_p()
        driver.cuStreamBeginCapture_v2(ctypes.c_size_t(STREAM), 0)
        kiln.gemm_half_q_half(half(40, 256), handle, half(40, 64), False)
        self.assertEqual(driver.cuStreamEndCapture(ctypes.c_size_t(STREAM), ctypes.byref(graph)), 0)
        self.assertTrue(any(line.startswith("record kiln_") for line in log()))
        kiln.free_q_matrix(handle)

    def test_nothing_leaks(self):
        args = arguments()
        kiln.free_q_matrix(kiln.make_q_matrix(*args))
        before = driver.fake_live()
        for _ in range(300):
            kiln.free_q_matrix(kiln.make_q_matrix(*args))
        for _ in range(50):
            kiln.QMatrix.from_exl2(on_device(random_exl2(128, 32)))
        self.assertEqual(driver.fake_live(), before)

    def test_out_of_memory(self):
        args = arguments()
        kiln.free_q_matrix(kiln.make_q_matrix(*args))
        before, emptied = driver.fake_live(), Torch.emptied
        for after in range(5):
            Torch.on_empty = lambda after=after: driver.fake_fail(after)
            driver.fake_fail(after)
            with self.assertRaisesRegex(RuntimeError, "CUDA_ERROR_OUT_OF_MEMORY") as e:
                kiln.make_q_matrix(*args)
            self.assertIsInstance(e.exception, kiln.OutOfMemory)
            self.assertEqual(driver.fake_live(), before)
        self.assertEqual(Torch.emptied, emptied + 5)
        # torch gives its cache back, and then it works.
        driver.fake_fail(2)
        Torch.on_empty = driver.fake_work
        kiln.free_q_matrix(kiln.make_q_matrix(*args))
        self.assertEqual(driver.fake_live(), before)

    def test_places(self):
        handle = kiln.make_q_matrix(*arguments())
        x, out = half(2, 256), half(2, 64)
        with self.assertRaisesRegex(RuntimeError, "the matrix is on cuda:0, the tensors are on the CPU and cuda:0"):
            kiln.gemm_half_q_half(np.zeros((2, 256), np.float16), handle, out, False)
        with self.assertRaisesRegex(RuntimeError, "share memory"):
            kiln.gemm_half_q_half(x, handle, Device(x.array.reshape(-1)[:128].reshape(2, 64)), False)
        kiln.free_q_matrix(handle)
        # From main memory to the device, and from the device to the CPU.
        with kiln.QMatrix.from_gptq(random_gptq(256, 64), device="cuda:0") as m:
            self.assertEqual(m.device, 0)
        with kiln.QMatrix.from_gptq(on_device(random_gptq(256, 64)), device="cpu") as m:
            want = kiln.QMatrix.from_gptq(random_gptq(256, 64)).dequantize()
            np.testing.assert_array_equal(m.dequantize(), want)

    def test_raw_pointers(self):
        x, out, t = np.zeros((1, 256), np.float16), np.zeros((1, 64), np.float16), random_gptq(256, 64)
        at = lambda a: kiln.Pointer(a.ctypes.data, a.shape, str(a.dtype), "cuda:0")  # noqa: E731
        with kiln.QMatrix.from_gptq({n: at(a) for n, a in t.items()}) as m:
            self.assertEqual(m.device, 0)
            log()
            kiln._quant._gemm(m.handle, 0, at(x), at(out), 0)
            self.assertTrue(any(line.startswith("launch kiln_") for line in log()))


class TestFast(unittest.TestCase):
    """kiln._fast, or what stands in for it where it cannot be loaded (KILN_TEST_FAST=0)."""

    def setUp(self):
        kiln.backend("cuda:0")
        self.handle = kiln.make_q_matrix(*arguments())
        kiln.gemm_half_q_half(half(1, 256), self.handle, half(1, 64), False)  # the first one looks for it
        log()

    def tearDown(self):
        if self.handle is not None:
            kiln.free_q_matrix(self.handle)
        self.assertEqual(driver.fake_contexts(), 0)

    @staticmethod
    def alone():
        """Without the Python code."""
        return mock.patch.object(kiln._quant, "_gemm", side_effect=AssertionError("not the fast way"))

    @unittest.skipIf(os.environ.get("KILN_TEST_FAST") == "0", "without kiln._fast")
    def test_is_used(self):
        w = kiln.QMatrix.from_exl2(on_device(random_exl2(256, 64)))
        with self.alone():
            kiln.gemm_half_q_half(half(3, 256), self.handle, half(3, 64), False)
            kiln.gemm_half_q_half(half(3, 256), self.handle, half(3, 64))
            kiln.gemm_half_q_half(half(3, 256), w.handle, half(3, 64), True)
            kiln.gemm_half_q_half(Torch.nn.Parameter(np.zeros((3, 256), np.float16)), self.handle, half(3, 64))
            self.assertEqual(w(half(2, 5, 256)).shape, (2, 5, 64))
            self.assertEqual(w(half(256)).shape, (64,))
            out = half(2, 5, 64)
            self.assertIs(w(half(2, 5, 256), out=out, accumulate=True, bias=False, path="fused"), out)
        lines = log()
        products = [line for line in lines if re.match(r"launch kiln_(gemm|wide|tall)_\w+ stream %d " % STREAM, line)]
        self.assertEqual(len(products), 7, lines)

    @unittest.skipIf(os.environ.get("KILN_TEST_FAST") == "0", "without kiln._fast")
    def test_same_launches(self):
        """What it asks of the driver is what the Python code asks."""
        for rows in (1, 5, 40):
            x, out, asked = half(rows, 256), half(rows, 64), []
            for fast in (kiln._quant._fast_gemm, lambda *args: False):
                with mock.patch.object(kiln._quant, "_fast_gemm", fast):
                    log()
                    kiln.gemm_half_q_half(x, self.handle, out, False)
                    asked.append(log())
            self.assertEqual(*asked)

    @unittest.skipUnless(os.environ.get("KILN_TEST_FAST") == "0", "with kiln._fast")
    def test_does_without(self):
        self.assertIs(kiln._quant._fast_gemm, kiln._quant._disarmed)
        self.assertEqual(kiln.QMatrix.from_exl2(on_device(random_exl2(256, 64)))(half(2, 5, 256)).shape, (2, 5, 64))

    def test_errors(self):
        x, out = half(2, 256), half(2, 64)
        wrong = {
            "columns": (half(2, 128), self.handle, out),
            "result has 3 rows": (x, self.handle, half(3, 64)),
            "want two dimensions": (half(1, 2, 256), self.handle, out),
            "want float16": (Device(np.zeros((2, 256), np.float32)), self.handle, out),
            "not contiguous": (Device(np.zeros((256, 2), np.float16).T), self.handle, out),
            "share memory": (x, self.handle, Device(x.array.reshape(-1)[:128].reshape(2, 64))),
            "never made, or freed": (x, 10**9, out),
            "the tensors are on the CPU": (Tensor(np.zeros((2, 256), np.float16)), self.handle, out),
        }
        for text, args in wrong.items():
            with self.subTest(text), self.assertRaisesRegex(RuntimeError, text):
                kiln.gemm_half_q_half(*args)
        for handle in (None, "x", -1, 1.5, 2**70):
            with self.assertRaises(kiln.Error):
                kiln.gemm_half_q_half(x, handle, out)
        self.assertEqual(log(), [])
        kiln.free_q_matrix(self.handle)
        with self.assertRaisesRegex(kiln.Error, "freed"):
            kiln.gemm_half_q_half(x, self.handle, out)
        self.handle = None

    @unittest.skipUnless(hasattr(os, "fork"), "this system does not fork")
    def test_fork(self):
        """A child, which has none of the library's threads, gets an error, no hang."""
        read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 and later warn of what this is about
            child = os.fork()
        if not child:
            try:
                kiln.gemm_half_q_half(half(1, 256), self.handle, half(1, 64), False)
            except kiln.Error as e:
                os.write(write, str(e).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as f:
            self.assertIn("spawn", f.read())
        os.waitpid(child, 0)

    def test_threads(self):
        """A call lets other threads run, and a matrix that one of them frees is an error, no crash."""
        wrong = []

        def work():
            x, out = half(1, 256), half(1, 64)
            try:
                while True:
                    kiln.gemm_half_q_half(x, self.handle, out, False)
            except kiln.Error as e:
                if "freed" not in str(e):
                    wrong.append(e)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        time.sleep(0.2)
        kiln.free_q_matrix(self.handle)
        for t in threads:
            t.join(30)
        self.handle = None
        self.assertEqual(wrong, [])


class TestInPlace(unittest.TestCase):
    """The memory of the tensors becomes that of the matrix. The fake device packs nothing, but scales are copied."""

    def setUp(self):
        kiln.backend("cuda:0")
        log()

    def tearDown(self):
        driver.fake_work()
        Torch.on_empty = None
        self.assertEqual(kiln._quant._kept, {})

    def live(self, in_place, n=128):
        args, before = arguments(n=n), driver.fake_live()
        handle = kiln.make_q_matrix(*args, in_place=in_place)
        grown = driver.fake_live() - before
        kiln.free_q_matrix(handle)
        self.assertEqual(driver.fake_live(), before)
        return grown

    def test_memory(self):
        self.assertEqual(self.live(False) - self.live(True), 2)  # of the weights and of the scales
        # Three strips of columns: kernels may read behind the last, which is memory of others.
        self.assertEqual(self.live(False, n=96), self.live(True, n=96))

    def test_what_does_not_fit_stays(self):
        args = arguments(n=96)
        before = [args[0].array.copy(), args[8].array.copy()]
        handle = kiln.make_q_matrix(*args, in_place=True)
        self.assertEqual(kiln._quant._info(handle).in_place, 0)
        np.testing.assert_array_equal(args[0].array, before[0])
        np.testing.assert_array_equal(args[8].array, before[1])
        again = kiln.make_q_matrix(*args, in_place=True)
        kiln.free_q_matrix(handle)
        kiln.free_q_matrix(again)

    def test_kept_and_not_read_again(self):
        args = arguments(n=128)
        qweight = weakref.ref(args[0])
        scales = args[8].array.copy()
        handle = kiln.make_q_matrix(*args, in_place=True)
        self.assertEqual(kiln._quant._info(handle).in_place, 3)
        self.assertFalse(np.array_equal(args[8].array, scales), "the scales are not in their new order")
        for name, in_place in (("qweight", False), ("qweight", True)):
            with self.assertRaisesRegex(RuntimeError, "is in the memory of matrix %d, which was made in place" % handle):
                kiln.make_q_matrix(*args, in_place=in_place)
        del args
        gc.collect()
        self.assertIsNotNone(qweight())
        kiln.gemm_half_q_half(half(1, 256), handle, half(1, 128))
        kiln.reconstruct(handle, half(256, 128))
        kiln.free_q_matrix(handle)
        gc.collect()
        self.assertIsNone(qweight())

    def test_out_of_memory(self):
        """Nothing is lost where there was not enough memory."""
        args = arguments(n=128)
        before = [args[0].array.copy(), args[8].array.copy()]
        for after in range(3):
            Torch.on_empty = lambda after=after: driver.fake_fail(after)
            driver.fake_fail(after)
            with self.assertRaises(kiln.OutOfMemory):
                kiln.make_q_matrix(*args, in_place=True)
            np.testing.assert_array_equal(args[0].array, before[0])
            np.testing.assert_array_equal(args[8].array, before[1])
        driver.fake_work()
        kiln.free_q_matrix(kiln.make_q_matrix(*args, in_place=True))

    def test_free(self):
        for make, tensors, parts in (
            (kiln.QMatrix.from_gptq, on_device(random_gptq(256, 128)), 2), (kiln.QMatrix.from_exl2, on_device(random_exl2(256, 128)), 1),
        ):  # fmt: skip
            tensors = {"a." + n: t for n, t in tensors.items()}
            tensors["b"] = 1
            with make(tensors, key="a", free=True) as m:
                self.assertEqual(list(tensors), ["b"])
                self.assertTrue(m.in_place)
                self.assertEqual(len(kiln._quant._kept[m.handle]), parts)

    def test_compat(self):
        import kiln.compat

        kiln.compat.install()
        import exllamav2_ext
        import exllamav2_kernels

        none = Tensor(np.empty((1, 1), np.float32), meta=True)
        made = lambda module, *more: kiln._quant._info(module.make_q_matrix(*arguments(n=128), *more)).in_place  # noqa: E731
        self.assertEqual((made(exllamav2_kernels), made(exllamav2_ext, none, 0)), (3, 0))
        with mock.patch.dict(os.environ, {"KILN_IN_PLACE": "0"}):
            self.assertEqual(made(exllamav2_kernels), 0)
        try:
            kiln.compat.install(in_place=True)
            self.assertEqual((made(exllamav2_kernels), made(exllamav2_ext, none, 0)), (3, 3))
            with self.assertRaisesRegex(RuntimeError, "in_place=False"):
                exllamav2_ext.make_q_matrix_split(*[none] * 13)
            kiln.compat.install(in_place=False)
            self.assertEqual((made(exllamav2_kernels), made(exllamav2_ext, none, 0)), (0, 0))
        finally:
            kiln.compat._chosen = None
        for handle in list(kiln._quant._devices):
            kiln.free_q_matrix(handle)


def cost():
    """What a call takes here: everything but the launch by a real driver."""
    handle, x, out = kiln.make_q_matrix(*arguments()), half(1, 256), half(1, 64)
    best = min(_time(lambda: kiln.gemm_half_q_half(x, handle, out, False)) for _ in range(20))
    print("gemm_half_q_half: %.2f µs with a driver that does nothing" % (1e6 * best))


def _time(call, n=1000):
    driver.fake_clear()
    start = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - start) / n


if __name__ == "__main__":
    if sys.argv[1:] == ["cost"]:
        cost()
    else:
        unittest.main()
