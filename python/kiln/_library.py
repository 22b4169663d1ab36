"""Finds, loads and calls libkiln. Nothing is loaded before the first call, so importing kiln is cheap and safe before a fork."""

import ctypes
import importlib.machinery
import importlib.util
import os
import sys
import threading

from . import _abi

__all__ = ["Error", "FormatError", "NotSupported", "OutOfMemory"]


class Error(RuntimeError):
    """A call into libkiln ended with an error."""


class FormatError(Error):
    """A tensor breaks the rules of its format."""


class NotSupported(Error):
    """There is no NVIDIA driver, or no such device."""


class OutOfMemory(Error, MemoryError):
    """There is not enough memory on the device."""


_errors = {
    _abi.ERROR_FORMAT: FormatError,
    _abi.ERROR_NOT_SUPPORTED: NotSupported,
    _abi.ERROR_MEMORY: OutOfMemory,
}

_lock = threading.Lock()
_lib = None


def library():
    """The loaded library. KILN_LIBRARY names another file than the one of the package."""
    return _lib or _load()


def _load():
    global _lib
    with _lock:
        if _lib is not None:
            return _lib
        path = _path()
        try:
            lib = ctypes.CDLL(path)
        except OSError as e:
            raise Error("load libkiln: %s (KILN_LIBRARY can name it)" % e) from None
        _abi.declare(lib)
        if lib.kiln_abi_version() != _abi.ABI_VERSION:
            raise Error("%s has version %d of the interface: want %d" % (path, lib.kiln_abi_version(), _abi.ABI_VERSION))
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forked)
        _lib = lib
        return lib


def _path():
    name = "kiln.dll" if sys.platform == "win32" else "libkiln.so"
    return os.environ.get("KILN_LIBRARY") or os.path.join(os.path.dirname(os.path.abspath(__file__)), name)


def fast():
    """The module _fast from beside the library, None where this Python cannot load it (PyPy, free-threaded Python)."""
    suffix = ".abi3.so"
    path = os.path.join(os.path.dirname(_path()), "_fast" + suffix)
    if suffix not in importlib.machinery.EXTENSION_SUFFIXES or not os.path.exists(path):
        return None
    try:
        spec = importlib.util.spec_from_file_location("kiln._fast", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:  # made for another processor, for instance
        return None
    return module


class _Forked:
    """What the library becomes in a forked child, where its threads are gone: an error instead of a hang."""

    def __getattr__(self, name):
        raise Error(
            "kiln was used before this process was forked, and like CUDA it cannot be used in both; "
            'start processes with multiprocessing.get_context("spawn"), or use kiln only after the fork'
        )


def _forked():
    global _lib
    _lib = _Forked()


def check(status):
    """Raise the error of the last call of this thread, if it had one."""
    if status:
        raise _errors.get(status, Error)(_text(_lib.kiln_last_error))


def _text(f, *args):
    buffer = ctypes.create_string_buffer(4096)
    f(*args, buffer, len(buffer))
    return buffer.value.decode(errors="replace")


def library_version():
    """The version of libkiln."""
    return _text(library().kiln_version)


def backend(device="cpu"):
    """The name of what computes on a device ("cpu", "cuda:0" or a number), for people."""
    lib, buffer = library(), ctypes.create_string_buffer(1024)
    check(lib.kiln_describe(device_number(device), buffer, len(buffer)))
    return buffer.value.decode(errors="replace")


def device_number(device):
    """-1 for the CPU, the number of the GPU otherwise; takes names, numbers and torch devices."""
    if isinstance(device, int):
        return device
    name, _, number = str(device).partition(":")
    if name == "cpu":
        return _abi.HOST
    if name == "cuda" and (number.isdigit() or not number):
        return int(number or 0)
    raise ValueError("no device %s: want cpu or cuda:N" % device)


def devices():
    """The GPUs of this machine as a list of dictionaries. Without an NVIDIA driver it raises NotSupported."""
    lib, count, found = library(), ctypes.c_int32(), []
    check(lib.kiln_device_count(ctypes.byref(count)))
    for i in range(count.value):
        info = _abi.kiln_device_info(size=ctypes.sizeof(_abi.kiln_device_info))
        check(lib.kiln_device(i, ctypes.byref(info)))
        found.append(
            {
                "device": "cuda:%d" % i,
                "name": info.name.decode(errors="replace"),
                "capability": (info.major, info.minor),
                "multiprocessors": info.multiprocessors,
                "memory_bytes": info.memory_bytes,
            }
        )
    return found
