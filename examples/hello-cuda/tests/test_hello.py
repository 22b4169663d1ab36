"""Tests of an installed hello_cuda: python -m unittest tests.test_hello

The tests that need a GPU are skipped without one; HELLO_CUDA_REQUIRE_GPU=1 makes
them fail instead, so that a GPU machine cannot pass by not looking.
"""

import math
import os
import random
import re
import struct
import threading
import unittest
from array import array

import hello_cuda
from hello_cuda import backend, saxpy


def bits(values):
    """Return float32 values as integers, every NaN as one: IEEE 754 leaves its payload open."""
    return [
        0x7FC00000 if math.isnan(value) else word
        for value, word in zip(values, memoryview(values).cast("B").cast("I"))
    ]


def hard_values(n):
    """Return n float32 values drawn by bit pattern: subnormals, infinities and NaN are among them."""
    rng = random.Random(n)
    values = array("f")
    values.frombytes(struct.pack(f"={n}I", *(rng.getrandbits(32) for _ in range(n))))
    return values


class Saxpy(unittest.TestCase):
    def test_result(self):
        x, y = array("f", [1, 2, 3]), array("f", [10, 20, 30])
        self.assertIsNone(saxpy(2, x, y))
        self.assertEqual(y.tolist(), [12, 24, 36])
        self.assertEqual(x.tolist(), [1, 2, 3])

    def test_rounds_once(self):
        # a * x is 1 + 2^-11 + 2^-24. Rounded before the addition it loses the last term.
        a = 1 + 2**-12
        y = array("f", [-(1 + 2**-11)])
        saxpy(a, array("f", [a]), y)
        self.assertEqual(y[0], 2**-24)

    def test_subnormals_are_kept(self):
        tiny = 2.0**-149
        y = array("f", [tiny])
        saxpy(1, array("f", [tiny]), y)
        self.assertEqual(y[0], 2 * tiny)

    def test_empty(self):
        for device in ("auto", "cpu"):
            saxpy(1, array("f"), array("f"), device=device)

    def test_same_buffer_twice(self):
        y = array("f", [1, 2, 3])
        saxpy(2, y, y)
        self.assertEqual(y.tolist(), [3, 6, 9])

    def test_buffer_kinds(self):
        x = struct.pack("=3f", 1, 2, 3)
        y = bytearray(12)
        saxpy(1, memoryview(x).cast("f"), memoryview(y).cast("f"))
        self.assertEqual(bytes(y), x)

    def test_numpy(self):
        try:
            import numpy as np
        except ImportError:
            self.skipTest("numpy is not installed")
        x, y = np.arange(5, dtype=np.float32), np.ones(5, dtype=np.float32)
        saxpy(3, x, y)
        self.assertEqual(y.tolist(), [1, 4, 7, 10, 13])
        with self.assertRaisesRegex(TypeError, "y must hold float32"):
            saxpy(3, x, np.ones(5))
        with self.assertRaisesRegex(ValueError, "x must be contiguous"):
            saxpy(3, x[::2], y[:3])
        with self.assertRaisesRegex(ValueError, "x must have one dimension, not 2"):
            saxpy(3, np.ones((1, 5), np.float32), y)
        y.flags.writeable = False
        with self.assertRaisesRegex(TypeError, "y is read-only"):
            saxpy(3, x, y)

    def test_threads(self):
        x = hard_values(4096)
        results = [array("f", x) for _ in range(8)]
        threads = [threading.Thread(target=saxpy, args=(0.5, x, y)) for y in results]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for y in results[1:]:
            self.assertEqual(bits(y), bits(results[0]))


class Misuse(unittest.TestCase):
    def check(self, error, message, a, x, y, **kwargs):
        before = bytes(y) if isinstance(y, array) else None
        with self.assertRaisesRegex(error, message):
            saxpy(a, x, y, **kwargs)
        if before is not None:
            self.assertEqual(bytes(y), before)

    def test_types(self):
        x = array("f", [1, 2])
        self.check(TypeError, "x must be a float32 buffer such as array.array\\('f'\\), not list", 1, [1, 2], x)
        self.check(TypeError, "y must be a float32 buffer .* not NoneType", 1, x, None)
        self.check(TypeError, "x must hold float32 .* not format 'd'", 1, array("d", [1, 2]), x)
        self.check(TypeError, "x must hold float32 .* not format 'i'", 1, array("i", [1, 2]), x)
        self.check(TypeError, "y must hold float32 .* not format 'B'", 1, x, bytearray(8))
        self.check(TypeError, "real number|float", "1", x, x)

    def test_sizes(self):
        x, y = array("f", [1, 2]), array("f", [1, 2, 3])
        self.check(ValueError, "x has 2 elements, y has 3", 1, x, y)

    def test_read_only(self):
        x = array("f", [1, 2])
        self.check(TypeError, "y is read-only", 1, x, memoryview(bytes(8)).cast("f"))

    def test_layout(self):
        x, y = array("f", [1, 2, 3, 4]), array("f", [1, 2])
        self.check(ValueError, "x must be contiguous", 1, memoryview(x)[::2], y)
        self.check(ValueError, "x must have one dimension, not 2", 1, memoryview(x).cast("B").cast("f", (2, 2)), x)
        odd = memoryview(bytearray(9))[1:].cast("f")
        self.check(ValueError, "x must be aligned to 4 bytes", 1, odd, y)

    def test_overlap(self):
        memory = memoryview(array("f", [1, 2, 3]))
        self.check(ValueError, "overlap", 1, memory[:2], memory[1:])

    def test_arguments(self):
        x = array("f", [1])
        self.check(OverflowError, "too large for float32", 1e300, x, x)
        self.check(ValueError, "device must be 'auto', 'cpu' or 'gpu', not 'tpu'", 1, x, x, device="tpu")
        for args in ((), (1,), (1, x), (1, x, x, "cpu")):
            with self.assertRaises(TypeError):
                saxpy(*args)

    def test_buffers_are_released(self):
        x, y = array("f", [1]), array("f", [1, 2])
        self.check(ValueError, "elements", 1, x, y)
        x.append(1)  # BufferError if saxpy still held it
        saxpy(1, x, y)
        y.append(1)


class Backend(unittest.TestCase):
    def test_shape(self):
        info = backend()
        self.assertEqual(sorted(info), ["archs", "device", "gpu", "reason", "toolkit"])
        self.assertRegex(info["toolkit"], r"^(none|cuda \d+\.\d)$")
        for arch in info["archs"]:
            self.assertRegex(arch, r"^\d+\.\d[af]?(\+PTX)?$")
        self.assertEqual(info["toolkit"] == "none", info["archs"] == [])
        self.assertIs(type(info["gpu"]), bool)
        self.assertEqual(info["gpu"], info["reason"] is None)
        if info["gpu"]:
            self.assertIsNotNone(info["device"])

    def test_gpu_is_refused_where_there_is_none(self):
        info = backend()
        if info["gpu"]:
            self.skipTest("there is a GPU")
        with self.assertRaisesRegex(RuntimeError, re.escape(info["reason"])):
            saxpy(1, array("f", [1]), array("f", [1]), device="gpu")

    def test_version(self):
        self.assertRegex(hello_cuda.__version__, r"^0\.1\.0(\+[a-z0-9.]+)?$")


class Gpu(unittest.TestCase):
    def setUp(self):
        info = backend()
        if not info["gpu"]:
            if os.environ.get("HELLO_CUDA_REQUIRE_GPU"):
                self.fail(info["reason"])
            self.skipTest(info["reason"])

    def test_same_bits_as_cpu(self):
        for n in (1, 255, 256, 257, 100_003):
            with self.subTest(n=n):
                x = hard_values(n)
                on_cpu = x[::-1]
                on_gpu = array("f", on_cpu)
                saxpy(-1.7, x, on_cpu, device="cpu")
                saxpy(-1.7, x, on_gpu, device="gpu")
                self.assertEqual(bits(on_cpu), bits(on_gpu))

    def test_more_elements_than_threads(self):
        n = 256 * 65536 + 5  # the largest grid has to walk over them twice
        x = (array("f", [i / 7 for i in range(10_007)]) * (n // 10_007 + 1))[:n]
        on_cpu = x[::-1]
        on_gpu = array("f", on_cpu)
        saxpy(-1.7, x, on_cpu, device="cpu")
        saxpy(-1.7, x, on_gpu, device="gpu")
        self.assertTrue(on_cpu == on_gpu)  # assertEqual would print both

    def test_rounds_once(self):
        a = 1 + 2**-12
        y = array("f", [-(1 + 2**-11)])
        saxpy(a, array("f", [a]), y, device="gpu")
        self.assertEqual(y[0], 2**-24)

    def test_out_of_memory_is_an_error_not_a_crash(self):
        # An address range that is only reserved, larger than any GPU: nothing is read before
        # the allocation fails.
        import mmap

        try:
            memory = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
        except (OSError, OverflowError, AttributeError) as reason:
            self.skipTest(f"no terabyte of address space: {reason}")
        huge = memoryview(memory).cast("f")
        with self.assertRaises(MemoryError):
            saxpy(1, huge, huge, device="gpu")
        y = array("f", [1])
        saxpy(1, array("f", [1]), y, device="gpu")  # the error does not stick
        self.assertEqual(y[0], 2)


if __name__ == "__main__":
    unittest.main()
