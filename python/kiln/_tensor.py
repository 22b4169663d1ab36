"""What kiln has to know of a tensor, made by torch, numpy, CuPy, or the caller with a bare address."""

import sys

from . import _abi

_names = {"float16": _abi.F16, "bfloat16": _abi.BF16, "float32": _abi.F32, "int16": _abi.I16, "uint16": _abi.I16,
          "int32": _abi.I32, "uint32": _abi.I32}  # fmt: skip
_typestr = {"<f2": _abi.F16, "<f4": _abi.F32, "<i2": _abi.I16, "<u2": _abi.I16, "<i4": _abi.I32, "<u4": _abi.I32}


class Pointer:
    """A tensor by its address: dense, row-major memory that the caller keeps alive.

    dtype is "float16", "int32" and so on; device is "cpu" or "cuda:N".
    """

    __slots__ = ("address", "device", "dtype", "shape")

    def __init__(self, address, shape, dtype="float16", device="cpu"):
        from ._library import device_number

        if dtype not in _names:
            raise ValueError("no type %s: want one of %s" % (dtype, ", ".join(_names)))
        self.address, self.shape, self.dtype = int(address), tuple(int(n) for n in shape), dtype
        self.device = device_number(device)


def absent(t):
    """Whether an argument stands for "none": None, or a tensor on torch's meta device."""
    return t is None or getattr(t, "is_meta", False)


def view(t, what="tensor"):
    """The address, shape, type and device number of a tensor."""
    if hasattr(t, "data_ptr"):  # torch
        if not t.is_contiguous():
            raise RuntimeError("%s is not contiguous" % what)
        kind = _names.get(str(t.dtype).rpartition(".")[2])
        if t.is_cuda:
            device = t.device.index
        elif t.device.type == "cpu":
            device = _abi.HOST
        else:
            raise RuntimeError("%s is on %s: want cpu or cuda" % (what, t.device))
        address, shape = t.data_ptr(), tuple(t.shape)
    elif isinstance(t, Pointer):
        address, shape, kind, device = t.address, t.shape, _names[t.dtype], t.device
    elif hasattr(t, "__cuda_array_interface__"):  # CuPy, Numba
        facts = t.__cuda_array_interface__
        address, shape, kind, device = facts["data"][0], tuple(facts["shape"]), _typestr.get(facts["typestr"]), t.device.id
        if facts.get("strides") is not None:
            raise RuntimeError("%s is not contiguous" % what)
    elif hasattr(t, "__array_interface__"):  # numpy
        facts = t.__array_interface__
        address, shape, kind, device = facts["data"][0], tuple(facts["shape"]), _typestr.get(facts["typestr"]), _abi.HOST
        if facts.get("strides") is not None and t.size:
            raise RuntimeError("%s is not contiguous" % what)
    else:
        raise TypeError("%s is a %s: want a tensor of torch, numpy or CuPy, or a kiln.Pointer" % (what, type(t).__name__))
    if kind is None:
        raise RuntimeError("%s has the type %s, which no quantized matrix has" % (what, getattr(t, "dtype", "?")))
    return address, shape, kind, device


def describe(t, what):
    """A tensor as C sees it."""
    if absent(t):
        return _abi.kiln_tensor()
    address, shape, kind, device = view(t, what)
    if not 1 <= len(shape) <= 2:
        raise RuntimeError("%s has the shape %s: want one or two dimensions" % (what, shape))
    c = _abi.kiln_tensor(data=address, dims=len(shape), dtype=kind, device=device)
    c.shape[: len(shape)] = shape
    return c


def _find_raw_stream():
    global _raw_stream
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    # What torch's own compiled code calls; it takes a tenth of the time of
    # torch.cuda.current_stream.
    _raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
        lambda device: torch.cuda.current_stream(device).cuda_stream
    )
    return _raw_stream


_raw_stream = None


def current_stream(device):
    """The stream of the caller: torch's current one if torch is loaded, CuPy's, else the default stream."""
    if device < 0:
        return None
    raw = _raw_stream or _find_raw_stream()
    if raw is not None:
        return raw(device)
    cupy = sys.modules.get("cupy")
    return cupy.cuda.get_current_stream().ptr if cupy is not None else None
