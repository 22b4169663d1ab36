"""The calls that LoRAX's Python code makes, in its order, with `exllamav2_kernels` found under its own name.

A layer notes its scratch size when it is made; when all are there, one buffer for the largest is allocated and every
layer makes its matrix with a piece of it; then products of any number of leading dimensions run, and the layer adds its
bias itself. With KILN_TEST_DEVICE=cuda tensors are torch's, on the GPU; otherwise they only look so.
"""

import os
import subprocess
import sys
import unittest

import numpy as np
from support import activations, error, goldens, random_gptq, tensors

import kiln
import kiln.compat

kiln.compat.install()

from exllamav2_kernels import gemm_half_q_half, make_q_matrix  # noqa: E402

T = tensors()


class Layer:
    """As LoRAX's QuantLinear uses the extension."""

    scratch_bytes = 0
    arguments = 11

    def __init__(self, qweight, qzeros, scales, g_idx=None, bias=None):
        self.tensors = [T.tensor(a) for a in (qweight, qzeros, scales)]
        self.g_idx, self.bias = g_idx, bias
        self.rows, self.cols = qweight.shape[0] * 8, qweight.shape[1]
        Layer.scratch_bytes = max(Layer.scratch_bytes, 2 * self.rows * self.cols + 128)

    def post_init(self, scratch):
        none = T.meta()
        qweight, qzeros, scales = self.tensors
        perm = inverse = index = none
        if self.g_idx is not None and self.g_idx.any():
            perm, inverse = T.empty((self.rows,), np.int16), T.empty((self.rows,), np.int16)
            index = kind_of_host(self.g_idx)
        groups = [none, none] if self.arguments == 11 else [none]
        self.handle = make_q_matrix(qweight, perm, inverse, none, none, *groups, qzeros, scales, index, scratch)

    def forward(self, x, force_cuda=False):
        lead = tuple(x.shape[:-1])
        x = x.reshape(-1, x.shape[-1])
        out = T.empty((x.shape[0], self.cols), np.float16)
        gemm_half_q_half(x, self.handle, out, force_cuda)
        y = T.numpy(out).reshape(lead + (self.cols,))
        return y if self.bias is None else (y + self.bias).astype(np.float16)


def kind_of_host(array):
    """g_idx stays in main memory: the original reads it there."""
    if T.device == "cpu":
        return T.tensor(array)
    import torch

    return torch.from_numpy(array)


def unpacked(t, zero_of_15):
    """The weights of GPTQ tensors with 4 bits in float64, from the definition."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    codes = ((t["qweight"].view(np.uint32)[:, None, :] >> shifts[None, :, None]) & 15).reshape(-1, t["qweight"].shape[1])
    zeros = ((t["qzeros"].view(np.uint32)[:, :, None] >> shifts) & 15).reshape(t["qzeros"].shape[0], -1).astype(int) + 1
    zeros[zeros == 16] = zero_of_15
    rows = codes.shape[0]
    group = t.get("g_idx")
    if group is None:
        group = np.arange(rows) // (rows // zeros.shape[0])
    return (codes.astype(int) - zeros[group]) * t["scales"].astype(np.float64)[group]


class TestLoRAX(unittest.TestCase):
    def test_model(self):
        for arguments in (11, 10):
            Layer.arguments = arguments
            layers = []
            for i, (k, n, act_order, bias) in enumerate(((256, 64, False, None), (512, 96, True, None), (128, 32, True, 1))):
                t = random_gptq(k, n, act_order=act_order, seed=i)
                b = None if bias is None else np.linspace(-1, 1, n).astype(np.float16)
                layers.append((t, Layer(t["qweight"], t["qzeros"], t["scales"], t.get("g_idx"), b)))
            scratch = T.empty((Layer.scratch_bytes // 2,), np.float16)
            for _, layer in layers:
                layer.post_init(scratch)
            self.assertEqual(len({layer.handle for _, layer in layers}), 3)
            for t, layer in layers:
                for lead in ((1,), (7,), (2, 3), (60,)):
                    for force in (False, True):
                        x = activations(int(np.prod(lead)), layer.rows).reshape(lead + (layer.rows,))
                        got = layer.forward(T.tensor(x), force)
                        want = x.astype(np.float64) @ unpacked(t, zero_of_15=0)  # LoRAX's reading
                        if layer.bias is not None:
                            want = want + layer.bias
                        self.assertLess(error(got, want), 5e-4, (lead, force))
                kiln.free_q_matrix(layer.handle)

    def test_repeated(self):
        # The original rewrites qweight, so that a second matrix of it is wrong; here it is the same
        # again.
        t = random_gptq(256, 64)
        layer = Layer(t["qweight"], t["qzeros"], t["scales"])
        x = T.tensor(activations(3, 256))
        results = set()
        for _ in range(3):
            layer.post_init(None)
            results.add(layer.forward(x).tobytes())
        self.assertEqual(len(results), 1)

    def test_goldens(self):
        """What LoRAX itself has reconstructed."""
        checked = 0
        for name, t in goldens():
            if "recon_lorax" not in t:
                continue
            none = T.meta()
            index = kind_of_host(t["g_idx"]) if "g_idx" in t else none
            q, z, s = (T.tensor(t[n]) for n in ("qweight", "qzeros", "scales"))
            perm = none if "g_idx" not in t else T.empty((q.shape[0] * 8,), np.int16)
            handle = make_q_matrix(q, perm, perm, none, none, none, none, z, s, index, none)
            out = T.empty(t["recon_lorax"].shape, np.float16)
            kiln.reconstruct(handle, out)
            self.assertEqual(T.numpy(out).tobytes(), t["recon_lorax"].tobytes(), name)
            kiln.free_q_matrix(handle)
            checked += 1
        self.assertGreater(checked, 0)


class TestExllamav2(unittest.TestCase):
    """The 13 arguments, with tensors as exllamav2's loader prepares them."""

    def prepared(self, t):
        none = T.meta()
        if "q_weight" in t:
            scale_max = (t["q_scale_max"].astype(np.float32) / 256).astype(np.float16)
            inverse = t["q_invperm"].astype(np.uint16).view(np.int16) if "q_invperm" in t else None
            perm = np.argsort(t["q_invperm"]).astype(np.uint16).view(np.int16) if "q_invperm" in t else None
            some = lambda a: none if a is None else T.tensor(a)  # noqa: E731
            return [T.tensor(t["q_weight"]), some(perm), some(inverse), T.tensor(t["q_scale"]), T.tensor(scale_max),
                    T.tensor(t["q_groups"]), none, none, none, none, some(t.get("bias")), none, 0]  # fmt: skip
        index = kind_of_host(t["g_idx"]) if "g_idx" in t else none
        perm = none if "g_idx" not in t else T.empty((t["qweight"].shape[0] * 8,), np.int16)
        bias = T.tensor(t["bias"]) if "bias" in t else none
        return [T.tensor(t["qweight"]), perm, perm, none, none, none, none, T.tensor(t["qzeros"]), T.tensor(t["scales"]), index,
                bias, none, 0]  # fmt: skip

    def test_goldens(self):
        checked = 0
        for name, t in goldens():
            handle = make_q_matrix(*self.prepared(t))
            out = T.empty(t["recon"].shape, np.float16)
            kiln.reconstruct(handle, out)
            self.assertEqual(T.numpy(out).tobytes(), t["recon"].tobytes(), name)
            y = T.empty((t["x"].shape[0], t["recon"].shape[1]), np.float16)
            gemm_half_q_half(T.tensor(t["x"]), handle, y, True)
            self.assertLess(error(T.numpy(y), t["y_exact"]), 3e-4, name)
            kiln.free_q_matrix(handle)
            checked += 1
        self.assertEqual(checked, 21)

    def test_errors(self):
        name, t = next((n, t) for n, t in goldens() if n.startswith("exl2") and "q_invperm" in t)
        good = self.prepared(t)
        wrong = {
            "q_weight has the type": (0, T.tensor(np.zeros(t["q_weight"].shape, np.float16))),
            "q_perm has the shape": (1, T.meta()),
            "q_scale_max": (4, T.tensor(t["q_scale_max"][1:])),
            "q_group_map": (6, T.tensor(np.zeros(4, np.int16))),
            "bias": (10, T.tensor(np.zeros(3, np.float16))),
            "q_weight is absent": (0, T.meta()),
        }
        for text, (i, value) in wrong.items():
            args = list(good)
            args[i] = value
            with self.subTest(text), self.assertRaisesRegex(RuntimeError, text):
                make_q_matrix(*args)
        with self.assertRaises(TypeError):
            make_q_matrix(*good[:5])
        handle = make_q_matrix(*good)
        k, n = t["recon"].shape
        x, y = T.empty((2, k), np.float16), T.empty((2, n), np.float16)
        bad = (
            (T.empty((2, k + 32), np.float16), y), (x, T.empty((2, n + 8), np.float16)), (x, T.empty((3, n), np.float16)),
            (T.empty((2, k), np.float32), y), (x, T.empty((2, n), np.float32)),
        )  # fmt: skip
        for a, c in bad:
            with self.assertRaises(RuntimeError):
                gemm_half_q_half(a, handle, c, False)
        gemm_half_q_half(T.empty((0, k), np.float16), handle, T.empty((0, n), np.float16), False)
        kiln.free_q_matrix(handle)
        for call in (lambda: gemm_half_q_half(x, handle, y, False), lambda: kiln.free_q_matrix(handle)):
            with self.assertRaisesRegex(RuntimeError, "freed"):
                call()


class TestCompat(unittest.TestCase):
    def test_python_path(self):
        """The module is found from outside, in a program that does not know kiln."""
        path = subprocess.run([sys.executable, "-m", "kiln.compat"], check=True, capture_output=True, text=True).stdout.strip()
        code = "from exllamav2_kernels import make_q_matrix, gemm_half_q_half; print(make_q_matrix.__module__)"
        env = {**os.environ, "PYTHONPATH": path + os.pathsep + os.environ.get("PYTHONPATH", "")}
        out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env).stdout
        self.assertEqual(out.strip(), "exllamav2_kernels")

    def test_exllamav2_ext(self):
        """The name that exllamav2's own users import, with the functions of its matrix part."""
        import exllamav2_ext

        name, t = next((n, t) for n, t in goldens() if n.startswith("exl2") and "q_invperm" in t)
        args = TestExllamav2().prepared(t)
        handles = [exllamav2_ext.make_q_matrix(*args), exllamav2_ext.make_q_matrix_split(*args)]
        for handle in handles:
            out, y = T.empty(t["recon"].shape, np.float16), T.empty((t["x"].shape[0], t["recon"].shape[1]), np.float16)
            exllamav2_ext.reconstruct(handle, out)
            self.assertEqual(T.numpy(out).tobytes(), t["recon"].tobytes(), name)
            exllamav2_ext.gemm_half_q_half(T.tensor(t["x"]), handle, y, False)
            self.assertLess(error(T.numpy(y), t["y_exact"]), 3e-4)
            exllamav2_ext.free_q_matrix(handle)
        name, t = next((n, t) for n, t in goldens() if n.startswith("gptq"))
        with self.assertRaisesRegex(RuntimeError, "EXL2 tensors alone"):
            exllamav2_ext.make_q_matrix_split(*TestExllamav2().prepared(t))
        with self.assertRaises(TypeError):
            exllamav2_ext.make_q_matrix_split(*args[:12])

    def test_what_is_missing(self):
        import exllamav2_ext
        import exllamav2_kernels

        with self.assertRaisesRegex(AttributeError, "no 'rms_norm' of exllamav2's extension: only free_q_matrix, gemm_half_q_half"):
            exllamav2_ext.rms_norm  # noqa: B018
        with self.assertRaisesRegex(ImportError, "q_attn_forward_1"):
            from exllamav2_ext import q_attn_forward_1  # noqa: F401
        with self.assertRaisesRegex(AttributeError, "no 'reconstruct': only"):
            exllamav2_kernels.reconstruct  # noqa: B018
        self.assertFalse(hasattr(exllamav2_ext, "sample_basic"))

    def test_another_was_there(self):
        """What is loaded already is not replaced behind the program's back."""
        code = "import sys, types, kiln.compat\nsys.modules[%r] = types.ModuleType('x')\ntry: kiln.compat.install()\nexcept ImportError as e: print(e)"
        for name in ("exllamav2_kernels", "exllamav2_ext"):
            out = subprocess.run([sys.executable, "-c", code % name], check=True, capture_output=True, text=True).stdout
            self.assertIn(name + " was imported before", out)


if __name__ == "__main__":
    unittest.main()
