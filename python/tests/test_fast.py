"""kiln._fast alone: which products it takes, what it hands to kiln_gemm, and that it keeps no references. Needs no package and no GPU."""

import ctypes
import gc
import sys
import unittest

import kiln

HALF, FLOAT = object(), object()

GEMM = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
    ctypes.c_uint32, ctypes.c_void_p,
)  # fmt: skip


class Tensor:
    """What _fast reads of a tensor of torch."""

    made = 0

    def __init__(self, address, shape, dtype=HALF, device=0, contiguous=True):
        self.address, self.shape, self.dtype, self.device, self.contiguous = address, tuple(shape), dtype, device, contiguous

    def get_device(self):
        return self.device

    def is_contiguous(self):
        return self.contiguous

    def data_ptr(self):
        return self.address

    def new_empty(self, shape):
        Tensor.made += 1
        return Tensor(0x9000, shape)


class Parameter(Tensor):
    pass


class Broken(Tensor):
    def get_device(self):
        raise KeyError("no device")


fast = kiln._library.fast()


class TestFast(unittest.TestCase):
    def setUp(self):
        self.assertIsNotNone(fast, "no module _fast beside the library, or this Python cannot load it")
        self.calls, self.status = [], 0
        self.callback = GEMM(self.gemm)
        self.devices = {7: 0, 8: -1, 9: 1}
        fast.setup(ctypes.cast(self.callback, ctypes.c_void_p).value, self.devices, HALF, lambda device: 0x500 + device, Tensor, Parameter)

    def tearDown(self):
        fast.setup(0, {}, None, None, Tensor, Parameter)

    def gemm(self, *args):
        self.calls.append(args)
        return self.status

    def test_takes(self):
        self.assertIs(fast.gemm(Tensor(0x1000, (2, 64)), 7, Tensor(0x2000, (2, 32)), 4), True)
        self.assertEqual(self.calls.pop(), (7, 0x1000, 2, 64, 0x2000, 2, 32, 4, 0x500))
        self.assertIs(fast.gemm(Tensor(0x1000, (2, 64), device=1), 9, Parameter(0x2000, (3, 16), device=1), 0), True)
        self.assertEqual(self.calls.pop(), (9, 0x1000, 2, 64, 0x2000, 3, 16, 0, 0x501))
        self.assertIs(fast.gemm_any(Tensor(0x1000, (2, 3, 64)), 7, Tensor(0x2000, (2, 3, 32)), 0), True)
        self.assertEqual(self.calls.pop(), (7, 0x1000, 6, 64, 0x2000, 6, 32, 0, 0x500))
        self.assertIs(fast.gemm_any(Tensor(0x1000, (64,)), 7, Tensor(0x2000, (32,)), 0), True)
        self.assertEqual(self.calls.pop(), (7, 0x1000, 1, 64, 0x2000, 1, 32, 0, 0x500))
        # None is the address of a tensor without elements.
        self.assertIs(fast.gemm(Tensor(0, (0, 64)), 7, Tensor(0, (0, 32)), 0), True)
        self.assertEqual(self.calls.pop(), (7, None, 0, 64, None, 0, 32, 0, 0x500))
        y = fast.product(Tensor(0x1000, (5, 2, 64)), 7, 48, 1)
        self.assertEqual((y.shape, y.address), ((5, 2, 48), 0x9000))
        self.assertEqual(self.calls.pop(), (7, 0x1000, 10, 64, 0x9000, 10, 48, 1, 0x500))

    def test_leaves(self):
        x, out = Tensor(0x1000, (2, 64)), Tensor(0x2000, (2, 32))
        for name, args in {
            "three dimensions": (Tensor(0x1000, (1, 2, 64)), 7, out, 0),
            "no dimensions": (Tensor(0x1000, ()), 7, out, 0),
            "another type": (Tensor(0x1000, (2, 64), dtype=FLOAT), 7, out, 0),
            "another device": (x, 9, out, 0),
            "the CPU": (x, 8, out, 0),
            "no such matrix": (x, 6, out, 0),
            "no number": (x, None, out, 0),
            "a fraction": (x, 7.0, out, 0),
            "not dense": (x, 7, Tensor(0x2000, (2, 32), contiguous=False), 0),
            "a subclass": (Broken(0x1000, (2, 64)), 7, out, 0),
            "no tensor": (x, 7, "out", 0),
            "flags": (x, 7, out, "0"),
            "arguments": (x, 7, out),
        }.items():
            with self.subTest(name):
                self.assertIs(fast.gemm(*args), False)
                self.assertEqual(self.calls, [])
        for shape in ((6, 32), (3, 2, 32), (2, 3, 1, 32), (1,) * 8 + (32,)):
            self.assertIs(fast.gemm_any(Tensor(0x1000, (2, 3, 64)), 7, Tensor(0x2000, shape), 0), False)
        self.assertIs(fast.product(Tensor(0x1000, (1,) * 8 + (64,)), 7, 32, 0), False)
        self.assertEqual(self.calls, [])
        fast.setup(ctypes.cast(self.callback, ctypes.c_void_p).value, self.devices, HALF, lambda device: 1 // 0, Tensor, Broken)
        self.assertIs(fast.gemm(x, 7, out, 0), False)  # the stream
        self.assertIs(fast.gemm(Broken(0x1000, (2, 64)), 7, out, 0), False)  # a method
        self.assertIs(fast.product(x, 7, "columns", 0), False)
        self.assertEqual(self.calls, [])
        with self.assertRaises(TypeError):
            fast.setup(0)
        fast.setup(0, self.devices, HALF, lambda device: 0, Tensor, Parameter)
        self.assertIs(fast.gemm(x, 7, out, 0), False)
        self.assertIs(fast.product(x, 7, 32, 0), False)

    def test_refused(self):
        self.status = 1
        self.assertIs(fast.gemm(Tensor(0x1000, (2, 64)), 7, Tensor(0x2000, (2, 32)), 0), False)
        self.assertIs(fast.product(Tensor(0x1000, (2, 64)), 7, 32, 0), False)
        self.assertEqual(len(self.calls), 2)

    def test_no_references(self):
        """All that a call takes is given back, whichever way it ends."""
        self.gemm = lambda *args: 0
        big, columns = 10**6, 10**7  # not among the small integers, which are never counted
        x, out, bad = Tensor(0x1000, (2, big)), Tensor(0x2000, (2, columns)), Tensor(0x2000, (2, big), dtype=FLOAT)
        watched = [x, out, bad, x.shape, out.shape, HALF, FLOAT, self.devices, columns, Tensor]

        def calls(n):
            for _ in range(n):
                fast.gemm(x, 7, out, 0), fast.gemm(x, 7, bad, 0), fast.gemm(x, 6, out, 0), fast.gemm(x, 8, out, 0)
                fast.product(x, 7, columns, 0), fast.product(bad, 7, columns, 0), fast.product(x, 7, "", 0)

        calls(10)
        gc.collect()
        before = [sys.getrefcount(o) for o in watched]
        calls(1000)
        gc.collect()
        for o, count in zip(watched, before):
            self.assertLess(abs(sys.getrefcount(o) - count), 10, o)


if __name__ == "__main__":
    unittest.main()
