"""What the tests share: goldens, random matrices, and tensors that look like torch's where there is no torch."""

import json
import os
import struct

import numpy as np

_types = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "I16": np.int16, "I32": np.int32, "I64": np.int64}


def read_safetensors(path):
    """All tensors of a file, by name."""
    with open(path, "rb") as f:
        data = f.read()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(body[slice(*t["data_offsets"])], _types[t["dtype"]]).reshape(t["shape"]).copy()
        for name, t in header.items()
    }


def goldens():
    """Pairs of a name, like "gptq/a", and the tensors of that case without their prefix. KILN_GOLDENS is their folder."""
    folder = os.environ.get("KILN_GOLDENS") or os.path.join(os.path.dirname(__file__), "../../model/quant/testdata")
    for kind in ("exl2", "gptq"):
        tensors = read_safetensors(os.path.join(folder, kind + ".safetensors"))
        for key in sorted(name[: -len(".recon")] for name in tensors if name.endswith(".recon")):
            yield kind + "/" + key, {n[len(key) + 1 :]: t for n, t in tensors.items() if n.startswith(key + ".")}


def random_gptq(k, n, group=128, act_order=False, seed=1):
    rng = np.random.default_rng(seed)
    groups = k // group
    word = lambda *shape: rng.integers(-(2**31), 2**31, shape, np.int64).astype(np.int32)  # noqa: E731
    out = {
        "qweight": word(k // 8, n),
        "qzeros": word(groups, n // 8),
        "scales": (0.001 + 0.02 * rng.random((groups, n))).astype(np.float16),
    }
    if act_order:
        out["g_idx"] = rng.permutation(np.repeat(np.arange(groups, dtype=np.int32), group)).astype(np.int32)
    return out


def random_exl2(k, n, bits=4, group=128, seed=1):
    rng = np.random.default_rng(seed)
    groups, rows = k // group, group // 32 * bits
    word = lambda *shape: rng.integers(-(2**31), 2**31, shape, np.int64).astype(np.int32)  # noqa: E731
    return {
        "q_weight": word(groups * rows, n),
        "q_groups": np.array([[bits, i * rows] for i in range(groups)], np.int16).reshape(-1),
        "q_scale": word(groups, n // 8),
        "q_scale_max": (0.002 + 0.048 * rng.random(groups)).astype(np.float16),
        "q_invperm": rng.permutation(k).astype(np.int32),
    }


def activations(m, k, seed=2):
    return np.random.default_rng(seed).standard_normal((m, k)).astype(np.float16)


def error(got, want):
    """‖got − want‖ / ‖want‖."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return np.linalg.norm(got - want) / np.linalg.norm(want)


class _Device:
    def __init__(self, kind):
        self.type, self.index = kind, None

    def __str__(self):
        return self.type


class DType:
    def __init__(self, name):
        self.name = name

    def __str__(self):
        return "torch." + self.name


class Tensor:
    """A tensor with those attributes of torch's that kiln uses, in main memory or on the meta device."""

    is_cuda = False

    def __init__(self, array, meta=False):
        self.array, self.is_meta = array, meta
        self.device = _Device("meta" if meta else "cpu")
        self.dtype = DType(str(array.dtype))

    shape = property(lambda self: self.array.shape)

    def dim(self):
        return self.array.ndim

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def data_ptr(self):
        return 0 if self.is_meta else self.array.__array_interface__["data"][0]

    def get_device(self):
        return -1

    def reshape(self, *shape):
        return Tensor(self.array.reshape(*shape))

    def new_empty(self, shape):
        return Tensor(np.full(shape, np.nan, self.array.dtype))

    def numpy(self):
        return self.array


class StandIn:
    """The part of torch that the tests of LoRAX's calls need, without torch."""

    device = "cpu"

    @staticmethod
    def tensor(array):
        return Tensor(array)

    @staticmethod
    def empty(shape, dtype):
        return Tensor(np.full(shape, -1, dtype))

    @staticmethod
    def meta():
        return Tensor(np.empty((1, 1), np.float32), meta=True)

    @staticmethod
    def numpy(t):
        return t.array


class Torch:
    """The same with torch, on a GPU."""

    device = "cuda:0"

    @staticmethod
    def tensor(array):
        import torch

        return torch.from_numpy(np.ascontiguousarray(array)).to("cuda:0")

    @staticmethod
    def empty(shape, dtype):
        import torch

        return torch.full(shape, -1, dtype=getattr(torch, np.dtype(dtype).name), device="cuda:0")

    @staticmethod
    def meta():
        import torch

        return torch.empty((1, 1), device="meta")

    @staticmethod
    def numpy(t):
        return t.cpu().numpy()


def tensors():
    """StandIn, or Torch where KILN_TEST_DEVICE says cuda."""
    return Torch if os.environ.get("KILN_TEST_DEVICE") == "cuda" else StandIn
