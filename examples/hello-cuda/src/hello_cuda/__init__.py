"""saxpy on the GPU if there is one, on the CPU if not, with the same bits."""

from importlib.metadata import version as _version

from ._native import backend, saxpy

__all__ = ["backend", "saxpy"]
__version__ = _version("hello-cuda")
