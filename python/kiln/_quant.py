"""Products with quantized matrices: the class QMatrix, and the functions of exllamav2 and LoRAX under their own names."""

import os
import sys
from ctypes import byref, c_uint64, c_void_p, cast, sizeof

from . import _abi, _library, _tensor
from ._library import check, library

__all__ = ["QMatrix", "free_q_matrix", "gemm_half_q_half", "make_q_matrix", "matmul_many", "reconstruct"]

_dialects = {"exllamav2": _abi.EXLLAMAV2, "lorax": _abi.LORAX}
_zeros = {None: _abi.ZERO_DIALECT, "plus-one": _abi.ZERO_PLUS_ONE, "plus-one-wrap": _abi.ZERO_PLUS_ONE_WRAP,
          "as-stored": _abi.ZERO_AS_STORED}  # fmt: skip
_paths = {"auto": 0, "fused": _abi.FUSED, "reconstruct": _abi.RECONSTRUCT}

_exl2 = ("q_weight", "q_groups", "q_scale", "q_scale_max", "q_invperm", "bias")
_gptq = ("qweight", "qzeros", "scales", "g_idx", "bias")
_lent = {"q_weight": _abi.WEIGHT_IN_PLACE, "qweight": _abi.WEIGHT_IN_PLACE, "scales": _abi.SCALES_IN_PLACE}

_FUSED = _abi.FUSED
_devices = {}  # of all matrices, by handle
_kept = {}  # by handle: the tensors whose memory a matrix uses
_half = None  # torch.float16, once a tensor of torch was seen


def _matrix(t, what):
    """The address, rows, columns and device number of a half-precision matrix."""
    global _half
    address, shape, kind, device = _tensor.view(t, what)
    if kind != _abi.F16:
        raise RuntimeError("%s has the type %s: want float16" % (what, t.dtype))
    if len(shape) != 2:
        raise RuntimeError("%s has the shape %s: want two dimensions" % (what, tuple(shape)))
    if _half is None and hasattr(t, "data_ptr") and "torch" in sys.modules:
        _half = sys.modules["torch"].float16
    if _fast_gemm is _unarmed and device >= 0 and _half is not None:
        _arm(device)
    return address, shape[0], shape[1], device


def _unarmed(*args):
    return False


def _disarmed(*args):
    return False


# What takes a product without ctypes and says whether it did: of kiln._fast, once a tensor of torch
# on a GPU was seen.
_fast_gemm = _fast_gemm_any = _fast_product = _unarmed
_torch_tensor = None  # torch.Tensor then


def _arm(device):
    """Let kiln._fast have the products of torch's tensors, if this Python can load it."""
    global _fast_gemm, _fast_gemm_any, _fast_product, _torch_tensor
    torch, fast = sys.modules["torch"], _library.fast()
    _tensor.current_stream(device)  # finds _raw_stream
    if fast is None or _tensor._raw_stream is None:
        _disarm()
        return
    fast.setup(
        cast(library().kiln_gemm, c_void_p).value, _devices, torch.float16, _tensor._raw_stream, torch.Tensor, torch.nn.Parameter
    )
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_disarm)
    _fast_gemm, _fast_gemm_any, _fast_product, _torch_tensor = fast.gemm, fast.gemm_any, fast.product, torch.Tensor


def _disarm():
    global _fast_gemm, _fast_gemm_any, _fast_product, _torch_tensor
    _fast_gemm = _fast_gemm_any = _fast_product = _disarmed
    _torch_tensor = None


def _make(function, request, tensors, device, in_place=False):
    """Call a function that makes a matrix; returns its number and device. With in_place it uses the memory of tensors where it can."""
    request.size = sizeof(request)
    request.flags = _abi.IN_PLACE if in_place else 0
    for name, t in tensors.items():
        setattr(request, name, _tensor.describe(t, name))
    if device is None:  # where the weights are, which come first
        weights = getattr(request, next(iter(tensors)))
        device = weights.device if weights.data else _abi.HOST
    request.device = device = _library.device_number(device)
    gpus = {t.device for t in (getattr(request, name) for name in tensors) if t.data and t.device >= 0}
    if len(gpus) > 1:
        raise RuntimeError("the tensors are on several GPUs")
    request.stream = _tensor.current_stream(gpus.pop()) if gpus else None
    handle = c_uint64()
    status = function(byref(request), byref(handle))
    if status == _abi.ERROR_MEMORY and "torch" in sys.modules:
        # torch keeps freed memory to itself; give kiln a chance to have it.
        sys.modules["torch"].cuda.empty_cache()
        status = function(byref(request), byref(handle))
    check(status)
    if in_place:
        parts = _info(handle.value).in_place
        kept = [name for name, part in _lent.items() if name in tensors and parts & part]
        if kept:
            _kept[handle.value] = [tensors[name] for name in kept]
    _devices[handle.value] = device
    return handle.value, device


def _info(handle):
    info = _abi.kiln_info(size=sizeof(_abi.kiln_info))
    check(library().kiln_matrix_info(handle, byref(info)))
    return info


class QMatrix:
    """A quantized matrix W of K rows and N columns on a device.

    Make one with from_exl2 or from_gptq; call it with activations of shape [..., K] to get [..., N]. The tensors it
    is made from are copied and not changed, so they may be freed and used again. With free=True they are taken out of the
    mapping instead, and on a GPU their memory becomes that of the matrix where it fits. Its memory is freed with the
    object, or earlier by close.
    """

    __slots__ = ("_handle", "_info", "device")

    def __init__(self, handle, device):
        self._handle, self.device, self._info = handle, device, _info(handle)

    @classmethod
    def from_exl2(cls, tensors, key="", device=None, prescale=1.0, dialect="exllamav2", free=False):
        """The layer `key` of EXL2 tensors as they are on disk (a mapping from names to tensors of torch, numpy or CuPy,
        or Pointers). device is where products are computed, by default where the weights are."""
        request = _abi.kiln_exl2(prescale=prescale, dialect=_lookup(_dialects, dialect, "dialect"))
        return cls(*_take(library().kiln_make_exl2, request, tensors, key, _exl2, device, free))

    @classmethod
    def from_gptq(cls, tensors, key="", device=None, bits=0, group_size=0, zero=None, dialect="exllamav2", free=False):
        """The layer `key` of GPTQ tensors. zero is "as-stored" for checkpoints in the format gptq_v2; bits and
        group_size are found out where they are 0."""
        request = _abi.kiln_gptq(
            bits=bits, group_size=group_size, zero=_lookup(_zeros, zero, "zero point"),
            dialect=_lookup(_dialects, dialect, "dialect"),
        )  # fmt: skip
        return cls(*_take(library().kiln_make_gptq, request, tensors, key, _gptq, device, free))

    @property
    def handle(self):
        """Its number, which gemm_half_q_half, reconstruct and free_q_matrix take as they do those of make_q_matrix."""
        if self._handle is None:
            raise _library.Error("the matrix is closed")
        return self._handle

    rows = property(lambda self: self._info.rows, doc="K, the input features.")
    cols = property(lambda self: self._info.cols, doc="N, the output features.")
    shape = property(lambda self: (self._info.rows, self._info.cols), doc="(K, N).")
    nbytes = property(lambda self: self._info.bytes, doc="Bytes on the device.")
    bits_per_weight = property(lambda self: self._info.bits_per_weight, doc="Of the tensors, scales included.")
    groups = property(lambda self: self._info.groups, doc="Number of quantization groups.")
    in_place = property(
        lambda self: bool(self._info.in_place & _abi.WEIGHT_IN_PLACE), doc="Whether the weights are in memory of the tensors they came from."
    )
    format = property(lambda self: "gptq" if self._info.gptq else "exl2", doc='"exl2" or "gptq".')

    def __call__(self, x, out=None, *, accumulate=False, bias=True, path="auto"):
        """x·W, plus the bias of the matrix if it has one. x is half precision, [..., K], and on the matrix's device.

        out is written, or with accumulate added to. On a GPU the product is queued on torch's current stream.
        path is "fused" (weights never rounded), "reconstruct" (weights rounded to half precision) or "auto".
        """
        if accumulate and out is None:
            raise ValueError("accumulate needs out")
        flags = 0
        if accumulate or not bias or path != "auto":
            flags = _lookup(_paths, path, "path") | (_abi.ACCUMULATE if accumulate else 0) | (0 if bias else _abi.NO_BIAS)
        if type(x) is _torch_tensor:
            if out is None:
                out = _fast_product(x, self._handle, self._info.cols, flags)
                if out is not False:
                    return out
                out = None
            elif _fast_gemm_any(x, self._handle, out, flags):
                return out
        lead = tuple(x.shape[:-1])
        flat = _contiguous(x.reshape(-1, x.shape[-1]))
        if out is None:
            to = _empty_like(flat, (flat.shape[0], self.cols))
        else:
            if tuple(out.shape) != lead + (self.cols,):
                raise RuntimeError("out has the shape %s: want %s" % (tuple(out.shape), lead + (self.cols,)))
            to = out if len(lead) == 1 else _flat(out, self.cols)
        _gemm(self.handle, self.device, flat, to, flags)
        return to.reshape(lead + (self.cols,)) if out is None else out

    def dequantize(self, out=None, like=None):
        """The weights, half precision, [K, N]. Without out it is a numpy array on the CPU, a torch tensor on a GPU; `like` is
        a tensor to make one like."""
        if out is None:
            if like is not None:
                out = _empty_like(like, self.shape)
            elif self.device == _abi.HOST:
                import numpy

                out = numpy.empty(self.shape, numpy.float16)
            else:
                import torch

                out = torch.empty(self.shape, dtype=torch.float16, device="cuda:%d" % self.device)
        _reconstruct(self.handle, self.device, out)
        return out

    def close(self):
        """Free the memory. Closing twice does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None and handle in _devices:  # free_q_matrix may have been before
            free_q_matrix(handle)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __del__(self):
        # The interpreter may be half gone, and the process may be a fork of the one that made the
        # matrix.
        try:
            self.close()
        except Exception:
            pass

    def __repr__(self):
        place = "cpu" if self.device == _abi.HOST else "cuda:%d" % self.device
        closed = ", closed" if self._handle is None else ""
        return "<kiln.QMatrix %s %d×%d, %.2f bits per weight, %s%s>" % (
            self.format, self.rows, self.cols, self.bits_per_weight, place, closed,
        )  # fmt: skip


def _lookup(table, value, what):
    if value not in table:
        raise ValueError("no %s %r: want one of %s" % (what, value, ", ".join(repr(v) for v in table)))
    return table[value]


def _take(function, request, tensors, key, names, device, free):
    """Make a matrix of the tensors of a layer; with free they are gone from the mapping afterwards."""
    prefix = key + "." if key else ""
    if free and not hasattr(tensors, "__delitem__"):
        raise TypeError("free takes tensors out of their mapping, and nothing can be taken out of a %s" % type(tensors).__name__)
    picked = {name: tensors[prefix + name] if prefix + name in tensors else None for name in names}
    made = _make(function, request, picked, device, in_place=free)
    if free:
        for name in names:
            if prefix + name in tensors:
                del tensors[prefix + name]
    return made


def _empty_like(t, shape):
    if hasattr(t, "new_empty"):
        return t.new_empty(shape)
    module = sys.modules[type(t).__module__.partition(".")[0]]  # numpy or cupy
    return module.empty(shape, module.float16)


def _contiguous(x):
    if hasattr(x, "contiguous"):
        return x.contiguous()
    if hasattr(x, "flags") and not x.flags.c_contiguous:
        return x.copy()
    return x


def _flat(out, cols):
    """A view of out with two dimensions; a copy would be written in its place."""
    flat = out.reshape(-1, cols)
    if _tensor.view(flat, "out")[0] != _tensor.view(out, "out")[0]:
        raise RuntimeError("out is not contiguous")
    return flat


def _gemm(handle, device, a, c, flags):
    # Tensors of torch on the right GPU, which is almost always: nothing is called that does not
    # have to be.
    if _half is not None and getattr(a, "dtype", None) is _half and getattr(c, "dtype", None) is _half:
        if a.get_device() == device == c.get_device() and device >= 0 and a.is_contiguous() and c.is_contiguous():
            try:
                (x_rows, x_cols), (y_rows, y_cols) = a.shape, c.shape
            except ValueError:
                _matrix(a, "a"), _matrix(c, "c")  # one of them says what is wrong
            stream = (_tensor._raw_stream or _tensor.current_stream)(device)
            status = _library._lib.kiln_gemm(handle, a.data_ptr(), x_rows, x_cols, c.data_ptr(), y_rows, y_cols, flags, stream)
            if status:
                check(status)
            return
    x, x_rows, x_cols, x_device = _matrix(a, "a")
    y, y_rows, y_cols, y_device = _matrix(c, "c")
    if x_device != device or y_device != device:
        _misplaced(device, x_device, y_device)
    status = library().kiln_gemm(
        handle, x, x_rows, x_cols, y, y_rows, y_cols, flags, None if device < 0 else _tensor.current_stream(device)
    )
    if status:
        check(status)


def matmul_many(x, weights, out=None, *, bias=True, path="auto"):
    """[w(x) for w in weights], for matrices of one device that take the same input, as those of one layer do.

    Activations are brought into the order of the matrices' rows once for all that have the same. out is a list of tensors to write.
    """
    weights = list(weights)
    lead = tuple(x.shape[:-1])
    flat = _contiguous(x.reshape(-1, x.shape[-1]))
    if out is not None and len(out) != len(weights):
        raise ValueError("%d results for %d matrices" % (len(out), len(weights)))
    address, rows, cols, place = _matrix(flat, "x")
    results, products = [], (_abi.kiln_product * len(weights))()
    for i, (w, p) in enumerate(zip(weights, products)):
        shape = lead + (w.cols,)
        to = _empty_like(flat, shape) if out is None else out[i]
        if tuple(to.shape) != shape:
            raise RuntimeError("out %d has the shape %s: want %s" % (i, tuple(to.shape), shape))
        at, _, kind, there = _tensor.view(to, "out %d" % i)
        if kind != _abi.F16:
            raise RuntimeError("out %d has the type %s: want float16" % (i, to.dtype))
        if not place == there == w.device:
            _misplaced(w.device, place, there)
        p.matrix, p.out, p.out_cols = w.handle, at, w.cols
        results.append(to)
    flags = _lookup(_paths, path, "path") | (0 if bias else _abi.NO_BIAS)
    check(library().kiln_gemm_many(products, len(weights), address, rows, cols, flags, _tensor.current_stream(place)))
    return results


def _misplaced(device, *places):
    name = lambda d: "the CPU" if d < 0 else "cuda:%d" % d  # noqa: E731
    raise RuntimeError("the matrix is on %s, the tensors are on %s" % (name(device), " and ".join(map(name, places))))


def _reconstruct(handle, device, out):
    to, rows, cols, place = _matrix(out, "out")
    if place != device:
        _misplaced(device, place)
    check(library().kiln_dequantize(handle, to, rows, cols, _tensor.current_stream(device)))


# The functions of exllamav2 (13 arguments) and of LoRAX (11, or 10 in its older releases without
# q_group_map).

_arguments = {
    13: ("q_weight", "q_perm", "q_invperm", "q_scale", "q_scale_max", "q_groups", "q_group_map", "qzeros", "scales", "g_idx",
         "bias", "temp_dq", "max_dq_rows"),
    11: ("q_weight", "q_perm", "q_invperm", "q_scale", "q_scale_max", "q_groups", "q_group_map", "qzeros", "scales", "g_idx",
         "temp_dq"),
    10: ("q_weight", "q_perm", "q_invperm", "q_scale", "q_scale_max", "q_groups", "qzeros", "scales", "g_idx", "temp_dq"),
}  # fmt: skip
_types = {"q_weight": _abi.I32, "q_perm": _abi.I16, "q_invperm": _abi.I16, "q_scale": _abi.I32, "q_scale_max": _abi.F16,
          "q_groups": _abi.I16, "q_group_map": _abi.I16, "qzeros": _abi.I32, "scales": _abi.F16, "g_idx": _abi.I32,
          "bias": _abi.F16}  # fmt: skip
_type_names = {_abi.F16: "float16", _abi.I16: "int16", _abi.I32: "int32"}


def make_q_matrix(*args, in_place=False):
    """A matrix from tensors that were prepared for exllamav2's kernels; returns its handle, an integer.

    Takes the 13 arguments of exllamav2 or the 11 (or 10) of LoRAX. A tensor on the meta device, or None, is absent.
    The tensors are copied and left as they are; temp_dq and max_dq_rows are not needed and not looked at. Free the
    matrix with free_q_matrix. With in_place, on a GPU, the matrix is packed into the memory of q_weight and, for GPTQ, of
    scales where it fits, and keeps them alive; their contents are then kiln's.
    """
    names = _arguments.get(len(args))
    if names is None:
        raise TypeError("make_q_matrix takes the 13 arguments of exllamav2 or the 11 or 10 of LoRAX: got %d" % len(args))
    given = {name: t for name, t in zip(names, args) if name in _types and not _tensor.absent(t)}
    shapes = {}
    for name, t in given.items():
        _, shapes[name], kind, _ = _tensor.view(t, name)
        if kind != _types[name]:
            raise RuntimeError("%s has the type %s: want %s" % (name, t.dtype, _type_names[_types[name]]))
    if shapes.get("q_perm") != shapes.get("q_invperm"):
        raise RuntimeError("q_perm has the shape %s, q_invperm %s" % (shapes.get("q_perm"), shapes.get("q_invperm")))
    dialect = _abi.EXLLAMAV2 if len(args) == 13 else _abi.LORAX
    if "q_weight" not in given:
        raise RuntimeError("q_weight is absent")
    # The size of q_group_map is checked against the matrix, so what it is made from must still be
    # there then.
    in_place = in_place and not ("q_scale" in given and "q_group_map" in given and "q_invperm" not in given)
    if "q_scale" in given:
        if "q_invperm" in given:
            _check_group_map(shapes, shapes["q_invperm"][0])
        # Callers have divided q_scale_max by 256, as the original wants it.
        request = _abi.kiln_exl2(prescale=256, dialect=dialect)
        handle, _ = _make(library().kiln_make_exl2, request, {name: given.get(name) for name in _exl2}, None, in_place)
        try:
            _check_group_map(shapes, _info(handle).rows)
        except RuntimeError:
            free_q_matrix(handle)
            raise
    else:
        # With act-order, q_perm and q_invperm are for the original's notes; nothing is written
        # there.
        given["qweight"] = given.pop("q_weight")
        request = _abi.kiln_gptq(bits=4, dialect=dialect)
        handle, _ = _make(library().kiln_make_gptq, request, {name: given.get(name) for name in _gptq}, None, in_place)
    return handle


def _check_group_map(shapes, rows):
    if shapes.get("q_group_map", (2 * rows,)) != (2 * rows,):
        raise RuntimeError("q_group_map has the shape %s: want %d elements" % (shapes["q_group_map"], 2 * rows))


def make_q_matrix_split(*args):
    """The same of a piece of a larger matrix, EXL2 with exllamav2's 13 arguments, cut from tensors that make_q_matrix has left as they were."""
    if len(args) != 13:
        raise TypeError("make_q_matrix_split takes 13 arguments: got %d" % len(args))
    if _tensor.absent(args[3]):
        raise RuntimeError("make_q_matrix_split takes EXL2 tensors alone: q_scale is absent")
    return make_q_matrix(*args)


def _device_of(handle):
    device = _devices.get(handle)
    if device is None:
        raise _library.Error("matrix %s: never made, or freed" % (handle,))
    return device


def gemm_half_q_half(a, handle, c, force_cuda=False):
    """c = a·W, with the bias of the matrix. On a GPU it is queued on torch's current stream of that device."""
    flags = _FUSED if force_cuda else 0
    if not _fast_gemm(a, handle, c, flags):
        _gemm(handle, _device_of(handle), a, c, flags)


def reconstruct(handle, out):
    """Write the weights, half precision, [K, N], into out."""
    _reconstruct(handle, _device_of(handle), out)


def free_q_matrix(handle):
    """Free a matrix. Using its handle afterwards is an error."""
    _device_of(handle)
    del _devices[handle]
    try:
        check(library().kiln_free(handle))
    finally:
        _kept.pop(handle, None)  # after the matrix, which reads their memory
