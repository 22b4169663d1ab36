"""What kiln asks of a GPU through Python, without one: libcuda.so.1 is a library that writes down its calls.

Its device memory is ordinary memory and it runs no kernel, so results mean nothing here; streams, copies, allocations
and errors do. Run by the Go tests, which compile it and put it on LD_LIBRARY_PATH.
"""

import ctypes
import sys
import time
import types
import unittest

import numpy as np
from support import DType, Tensor, random_exl2, random_gptq

import kiln

driver = ctypes.CDLL("libcuda.so.1")
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


def on_device(tensors):
    return {n: Device(t) for n, t in tensors.items()}


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
        self.assertEqual(len(reads), len(tensors), asked)
        for i in reads:
            self.assertEqual(asked[i + 1], "wait stream %d" % STREAM)

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
