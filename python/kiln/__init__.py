"""kiln for Python: quantized matrices, and native modules on demand."""

from ._jit import BuildError, load
from ._library import Error, FormatError, NotSupported, OutOfMemory, backend, devices, library_version
from ._quant import QMatrix, free_q_matrix, gemm_half_q_half, make_q_matrix, matmul_many, reconstruct
from ._tensor import Pointer

__all__ = [
    "BuildError",
    "Error",
    "FormatError",
    "NotSupported",
    "OutOfMemory",
    "Pointer",
    "QMatrix",
    "backend",
    "devices",
    "free_q_matrix",
    "gemm_half_q_half",
    "library_version",
    "load",
    "make_q_matrix",
    "matmul_many",
    "reconstruct",
]
