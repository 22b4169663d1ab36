"""Products of vectors, in a native library that ctypes loads."""

import ctypes
import pathlib
import sys

_name = "vectors.dll" if sys.platform == "win32" else "libvectors.so"
_library = ctypes.CDLL(str(pathlib.Path(__file__).with_name(_name)))
_library.vectors_dot.restype = ctypes.c_double
_library.vectors_dot.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def dot(a, b):
    """The sum of the products of two sequences of equal length."""
    if len(a) != len(b):
        raise ValueError(f"lengths differ: {len(a)} and {len(b)}")
    array = ctypes.c_double * len(a)
    return _library.vectors_dot(array(*a), array(*b), len(a))
