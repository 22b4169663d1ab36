"""The Python interface on the CPU, with numpy."""

import ctypes
import gc
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock

import numpy as np
from support import Tensor, activations, error, random_exl2, random_gptq

import kiln


def _in_child(pipe):
    try:
        kiln.backend()
        pipe.send("no error")
    except kiln.Error as e:
        pipe.send(str(e))


class TestQMatrix(unittest.TestCase):
    def test_shapes_and_paths(self):
        for make, tensors in ((kiln.QMatrix.from_exl2, random_exl2(256, 64)), (kiln.QMatrix.from_gptq, random_gptq(256, 64, act_order=True))):
            with make(tensors) as m:
                w = m.dequantize().astype(np.float64)
                self.assertEqual((m.rows, m.cols, m.shape, m.device), (256, 64, (256, 64), -1))
                for shape in ((256,), (1, 256), (5, 256), (2, 3, 256), (0, 256)):
                    x = np.random.default_rng(3).standard_normal(shape).astype(np.float16)
                    y = m(x)
                    self.assertEqual(y.shape, shape[:-1] + (64,))
                    self.assertEqual(y.dtype, np.float16)
                    if y.size:
                        self.assertLess(error(y, x.astype(np.float64) @ w), 5e-4)
                x = activations(256, 3).T  # not contiguous
                self.assertLess(error(m(x), x.astype(np.float64) @ w), 5e-4)
                x = activations(3, 256)
                out = np.ones((3, 64), np.float16)
                self.assertIs(m(x, out=out, accumulate=True), out)
                self.assertLess(error(out, x.astype(np.float64) @ w + 1), 5e-4)
                self.assertLess(error(m(x, path="reconstruct"), x.astype(np.float64) @ w), 3e-4)

    def test_bias(self):
        tensors = random_gptq(128, 32)
        tensors["bias"] = np.arange(32, dtype=np.float16)
        x = activations(2, 128)
        with kiln.QMatrix.from_gptq(tensors) as m:
            self.assertTrue(np.allclose(m(x) - m(x, bias=False), tensors["bias"], atol=0.1))

    def test_key_and_zero_points(self):
        tensors = random_gptq(128, 32)
        tensors["qzeros"][:] = -1  # all nibbles 15
        keyed = {"model.layer." + n: t for n, t in tensors.items()}
        kinds = {"plus-one": 16, "plus-one-wrap": 0, "as-stored": 15}
        weights = {z: kiln.QMatrix.from_gptq(keyed, key="model.layer", zero=z).dequantize() for z in kinds}
        scale = tensors["scales"][0].astype(np.float64)
        for zero, value in kinds.items():
            got = weights["plus-one-wrap"].astype(np.float64) - weights[zero]
            self.assertTrue(np.allclose(got / scale, value, atol=0.02), zero)

    def test_inputs_stay(self):
        tensors = random_exl2(128, 32)
        before = {n: t.copy() for n, t in tensors.items()}
        a, b = kiln.QMatrix.from_exl2(tensors), kiln.QMatrix.from_exl2(tensors)
        for n in tensors:
            np.testing.assert_array_equal(tensors[n], before[n])
        w = a.dequantize()
        np.testing.assert_array_equal(w, b.dequantize())
        for t in tensors.values():
            t[:] = 0  # nothing of them is needed any more
        np.testing.assert_array_equal(w, a.dequantize())

    def test_raw_pointers(self):
        tensors = random_gptq(128, 32)
        raw = {n: kiln.Pointer(t.ctypes.data, t.shape, str(t.dtype)) for n, t in tensors.items()}
        x = activations(2, 128)
        np.testing.assert_array_equal(kiln.QMatrix.from_gptq(raw)(x), kiln.QMatrix.from_gptq(tensors)(x))

    def test_memory_is_freed(self):
        m = kiln.QMatrix.from_gptq(random_gptq(128, 32))
        handle = m.handle
        del m
        gc.collect()
        with self.assertRaisesRegex(kiln.Error, "never made, or freed"):
            kiln._quant._info(handle)
        m = kiln.QMatrix.from_gptq(random_gptq(128, 32))
        m.close()
        m.close()
        self.assertIn("closed", repr(m))
        with self.assertRaisesRegex(kiln.Error, "closed"):
            m(activations(1, 128))

    def test_handles_are_one_space(self):
        tensors, x = random_gptq(128, 32), activations(2, 128)
        m, y = kiln.QMatrix.from_gptq(tensors), np.zeros((2, 32), np.float16)
        want = m(x)
        kiln.gemm_half_q_half(x, m.handle, y)
        np.testing.assert_array_equal(y, want)
        w = np.zeros((128, 32), np.float16)
        kiln.reconstruct(m.handle, w)
        np.testing.assert_array_equal(w, m.dequantize())
        handle = m.handle
        m.close()
        for call in (lambda: kiln.gemm_half_q_half(x, handle, y), lambda: kiln.reconstruct(handle, w), lambda: kiln.free_q_matrix(handle)):
            with self.assertRaisesRegex(kiln.Error, "matrix %d: never made, or freed" % handle):
                call()
        # And the other way round.
        m = kiln.QMatrix.from_gptq(tensors)
        kiln.free_q_matrix(m.handle)
        with self.assertRaisesRegex(kiln.Error, "never made, or freed"):
            m(x)
        m.close()

    def test_many(self):
        tensors = [random_exl2(256, 64), random_exl2(256, 32, bits=3), random_gptq(256, 96, act_order=True)]
        tensors[0]["bias"] = np.arange(64, dtype=np.float16)
        ws = [kiln.QMatrix.from_exl2(t) for t in tensors[:2]] + [kiln.QMatrix.from_gptq(tensors[2])]
        for shape in ((256,), (3, 256), (2, 3, 256), (0, 256)):
            x = np.random.default_rng(3).standard_normal(shape).astype(np.float16)
            for kind in ({}, {"bias": False}, {"path": "reconstruct"}):
                for got, w in zip(kiln.matmul_many(x, ws, **kind), ws):
                    np.testing.assert_array_equal(got, w(x, **kind))
        x, out = activations(2, 256), [np.full((2, w.cols), np.nan, np.float16) for w in ws]
        for got, to, w in zip(kiln.matmul_many(x, ws, out=out), out, ws):
            self.assertIs(got, to)
            np.testing.assert_array_equal(got, w(x))
        self.assertEqual(kiln.matmul_many(x, []), [])
        other = kiln.QMatrix.from_gptq(random_gptq(128, 32))
        wrong = {
            "product 1: activations have 256 columns": lambda: kiln.matmul_many(x, [ws[0], other]),
            "out 1 has the shape": lambda: kiln.matmul_many(x, ws[:2], out=[out[0], out[0]]),
            "out 0 has the type": lambda: kiln.matmul_many(x, ws[:1], out=[out[0].astype(np.float32)]),
            "want float16": lambda: kiln.matmul_many(x.astype(np.float32), ws),
        }
        for text, call in wrong.items():
            with self.subTest(text), self.assertRaisesRegex(RuntimeError, text):
                call()
        with self.assertRaisesRegex(ValueError, "3 results for 2"):
            kiln.matmul_many(x, ws[:2], out=out)
        ws[1].close()
        with self.assertRaisesRegex(kiln.Error, "closed"):
            kiln.matmul_many(x, ws)

    def test_free(self):
        """In main memory nothing is in place, but the tensors are gone from the mapping."""
        tensors = random_exl2(128, 32)
        want = kiln.QMatrix.from_exl2(tensors).dequantize()
        with kiln.QMatrix.from_exl2(tensors, free=True) as m:
            self.assertEqual((tensors, m.in_place), ({}, False))
            np.testing.assert_array_equal(m.dequantize(), want)
        broken = {**random_gptq(128, 32), "qzeros": np.zeros((1, 1), np.int32)}
        with self.assertRaises(kiln.FormatError):
            kiln.QMatrix.from_gptq(broken, free=True)
        self.assertEqual(len(broken), 3)
        with self.assertRaisesRegex(TypeError, "mappingproxy"):
            kiln.QMatrix.from_gptq(types.MappingProxyType(random_gptq(128, 32)), free=True)

    def test_errors(self):
        m = kiln.QMatrix.from_gptq(random_gptq(128, 32))
        x = activations(2, 128)
        cases = {
            "columns": lambda: m(activations(2, 96)),
            "want float16": lambda: m(x.astype(np.float32)),
            "result has 3 rows": lambda: kiln._quant._gemm(m.handle, -1, x, np.empty((3, 32), np.float16), 0),
            "not contiguous": lambda: kiln._quant._gemm(m.handle, -1, x, np.empty((32, 2), np.float16).T, 0),
            "out has the shape": lambda: m(x, out=np.empty((3, 32), np.float16)),
            "share memory|overlap": lambda: kiln._quant._gemm(m.handle, -1, x, x.reshape(-1)[:64].reshape(2, 32), 0),
            "result is 4×4": lambda: m.dequantize(out=np.empty((4, 4), np.float16)),
        }
        for text, call in cases.items():
            with self.subTest(text), self.assertRaisesRegex(RuntimeError, text):
                call()
        with self.assertRaisesRegex(kiln.FormatError, "qzeros"):
            kiln.QMatrix.from_gptq({n: t for n, t in random_gptq(128, 32).items() if n != "qzeros"})
        with self.assertRaises(kiln.FormatError):
            kiln.QMatrix.from_exl2({**random_exl2(128, 32), "q_invperm": np.zeros(128, np.int32)})
        with self.assertRaises(TypeError):
            kiln._tensor.view([1, 2, 3])
        with self.assertRaisesRegex(ValueError, "no path"):
            m(x, path="quick")
        with self.assertRaisesRegex(ValueError, "no device"):
            kiln.QMatrix.from_gptq(random_gptq(128, 32), device="tpu")

    def test_threads(self):
        tensors, x = random_exl2(256, 64), activations(4, 256)
        m = kiln.QMatrix.from_exl2(tensors)
        want, wrong = m(x).tobytes(), []

        def work(i):
            for _ in range(20):
                if m(x).tobytes() != want:
                    wrong.append("result")
                # Each thread has the text of its own error.
                with self.assertRaisesRegex(kiln.Error, "matrix %d:" % (10**6 + i)):
                    kiln._quant._info(10**6 + i)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])

    @unittest.skipUnless(hasattr(os, "fork"), "this system does not fork")
    def test_fork(self):
        kiln.backend()
        context = multiprocessing.get_context("fork")
        mine, other = context.Pipe()
        child = context.Process(target=_in_child, args=(other,))
        child.start()
        self.assertTrue(mine.poll(60))
        self.assertIn("spawn", mine.recv())
        child.join()


class TestNoGPU(unittest.TestCase):
    def setUp(self):
        try:
            kiln.devices()
        except kiln.NotSupported:
            return
        self.skipTest("there is a GPU on this machine")

    def test_clear_error(self):
        for call in (kiln.devices, lambda: kiln.backend("cuda:0"), lambda: kiln.QMatrix.from_gptq(random_gptq(128, 32), device="cuda")):
            with self.assertRaisesRegex(kiln.NotSupported, "no NVIDIA driver.*(libcuda.so.1|nvcuda.dll)"):
                call()

    def test_cpu_works(self):
        self.assertIn("cpu", kiln.backend())


class TestLibrary(unittest.TestCase):
    def test_import_loads_nothing(self):
        code = "import kiln, sys; assert kiln._library._lib is None; assert 'numpy' not in sys.modules and 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_missing_library(self):
        code = "import kiln\ntry: kiln.backend()\nexcept kiln.Error as e: print(e)"
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                             env={**os.environ, "KILN_LIBRARY": "/nowhere/libkiln.so"}).stdout  # fmt: skip
        self.assertIn("/nowhere/libkiln.so", out.replace(os.sep, "/"))
        self.assertIn("KILN_LIBRARY", out)

    def test_names(self):
        """On Windows the library has another name, and no process is forked."""
        with mock.patch.dict(os.environ, {"KILN_LIBRARY": ""}):
            for platform, name in (("linux", "libkiln.so"), ("win32", "kiln.dll")):
                with mock.patch.object(sys, "platform", platform):
                    self.assertEqual(os.path.basename(kiln._library._path()), name)

    def test_fast_is_optional(self):
        """Where there is no module of the stable ABI beside the library, and where Python takes none."""
        with mock.patch.dict(os.environ, {"KILN_LIBRARY": "/nowhere/libkiln.so"}):
            self.assertIsNone(kiln._library.fast())
        with mock.patch.object(kiln._library.importlib.machinery, "EXTENSION_SUFFIXES", [".so"]):
            self.assertIsNone(kiln._library.fast())
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "_fast.abi3.so"), "w") as f:
                f.write("no library")
            with mock.patch.dict(os.environ, {"KILN_LIBRARY": os.path.join(folder, "libkiln.so")}):
                self.assertIsNone(kiln._library.fast())

    def test_texts_are_cut(self):
        lib = kiln._library.library()
        buffer = ctypes.create_string_buffer(b"xxxxxxxx", 8)
        self.assertEqual(lib.kiln_describe(-1, buffer, 4), 0)
        self.assertEqual(buffer.raw, b"cpu\x00xxxx")
        self.assertNotEqual(lib.kiln_describe(-1, None, 4), 0)

    def test_struct_of_another_version(self):
        info = kiln._abi.kiln_info(size=1)
        self.assertEqual(kiln._library.library().kiln_matrix_info(1, ctypes.byref(info)), kiln._abi.ERROR_ARGUMENT)


class TestTensor(unittest.TestCase):
    def test_absent(self):
        self.assertTrue(kiln._tensor.absent(None))
        self.assertTrue(kiln._tensor.absent(Tensor(np.empty((1, 1)), meta=True)))
        self.assertFalse(kiln._tensor.absent(np.empty(1)))


if __name__ == "__main__":
    unittest.main()
