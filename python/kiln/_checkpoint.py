"""The tensors of a model's safetensors files, read to where they are needed. Headers say what there is; no index is looked at."""

import concurrent.futures
import json
import os
import struct
import threading

import torch

from ._library import FormatError

_types = {
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "I8": torch.int8, "U8": torch.uint8,
    "I16": torch.int16, "I32": torch.int32, "I64": torch.int64, "BOOL": torch.bool,
}  # fmt: skip
_PIECE = 16 << 20  # bytes on the way to a GPU; each reader has as much pinned memory
_READERS = 8


class Checkpoint:
    """The tensors of several files by name. shapes and sizes (in bytes) are known without reading them."""

    def __init__(self, files):
        self.shapes, self.sizes, self._where = {}, {}, {}
        self._readers, self._pinned = concurrent.futures.ThreadPoolExecutor(_READERS), threading.local()
        for path in files:
            for name, (kind, shape, begin, end) in _header(path).items():
                if name in self._where:
                    raise FormatError(
                        "the tensor %s is in both %s and %s: remove the file that is left over" % (name, self._where[name][0], path)
                    )
                self._where[name], self.shapes[name], self.sizes[name] = (path, kind, begin), shape, end - begin

    def __iter__(self):
        return iter(self._where)

    def __contains__(self, name):
        return name in self._where

    def read(self, name, device="cpu"):
        """A tensor on a device. Through pinned memory to a GPU, in pieces, so that main memory does not grow with the model."""
        path, kind, begin = self._where[name]
        if kind not in _types:
            raise FormatError("%s: the tensor %s has the type %s, which kiln cannot read" % (path, name, kind))
        size, device = self.sizes[name], torch.device(device)
        data = torch.empty(size, dtype=torch.uint8, device=device)
        if size and device.type == "cuda":
            self._send(path, begin, size, data)
        elif size:
            _pread(path, begin, data)
        return data.view(_types[kind]).view(self.shapes[name])

    def _send(self, path, begin, size, data):
        stream = torch.cuda.current_stream(data.device)

        def piece(at):
            mine, length = self._pinned, min(_PIECE, size - at)
            if not hasattr(mine, "memory"):
                mine.memory, mine.done = torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()
            mine.done.synchronize()
            _pread(path, begin + at, mine.memory[:length])
            with torch.cuda.stream(stream):
                data[at : at + length].copy_(mine.memory[:length], non_blocking=True)
                mine.done.record()

        for job in [self._readers.submit(piece, at) for at in range(0, size, _PIECE)]:
            job.result()

    def close(self):
        self._readers.shutdown()
        self._pinned = None


class _Shared:
    """Main memory that is page-locked, so that a GPU reads it in the place of its own."""

    def __init__(self, tensor):
        self.tensor, self.calls = tensor, torch.cuda.cudart()
        torch.cuda.check_error(int(self.calls.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 2)))  # 2: mapped
        self.__cuda_array_interface__ = {"version": 2, "shape": (tensor.nbytes,), "typestr": "|u1", "data": (tensor.data_ptr(), False)}

    def __del__(self):
        self.calls.cudaHostUnregister(self.tensor.data_ptr())


def shared(tensor, device):
    """A tensor of a GPU whose memory is that of one in main memory: each row that is looked up goes through the bus."""
    return torch.as_tensor(_Shared(tensor), device=device).view(tensor.dtype).view(tensor.shape)


def _pread(path, at, data):
    """Fill a tensor of bytes in main memory from a file."""
    view = memoryview(data.numpy())
    with open(path, "rb", buffering=0) as f:
        f.seek(at)
        while len(view):
            n = f.readinto(view)
            if not n:
                raise FormatError("%s ends too early: copy it again" % path)
            view = view[n:]


def _header(path):
    """Of a safetensors file: for each tensor its type, shape, and where it begins and ends in the file."""
    try:
        with open(path, "rb") as f:
            size = os.fstat(f.fileno()).st_size
            (length,) = struct.unpack("<Q", f.read(8))
            if length > min(size - 8, 100 << 20):
                raise ValueError("a header of %d bytes" % length)
            header = json.loads(f.read(length))
        header.pop("__metadata__", None)
        found = {
            name: (t["dtype"], tuple(t["shape"]), 8 + length + t["data_offsets"][0], 8 + length + t["data_offsets"][1])
            for name, t in header.items()
        }
        if any(not 8 + length <= begin <= end <= size for _, _, begin, end in found.values()):
            raise ValueError("tensors behind the end of the file")
        return found
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error) as e:
        raise FormatError("%s is no whole safetensors file (%s): copy it again" % (path, e)) from None
