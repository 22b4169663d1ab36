"""Lets programs that were written for `exllamav2_kernels`, the extension of LoRAX, run on kiln unchanged.

From Python, before the program imports it:

    import kiln.compat
    kiln.compat.install()

From outside, also for the processes that the program starts:

    PYTHONPATH="$(python -m kiln.compat)" lorax-launcher ...

An `exllamav2_kernels` that is installed is not touched; kiln's is found before it.
"""

import importlib
import os
import sys

__all__ = ["install", "path"]


def path():
    """The folder with the module exllamav2_kernels, for PYTHONPATH."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "modules")


def install():
    """Make `import exllamav2_kernels` find kiln's in this process. Returns the module."""
    loaded = sys.modules.get("exllamav2_kernels")
    if loaded is not None and not os.path.samefile(os.path.dirname(loaded.__file__), path()):
        raise ImportError("exllamav2_kernels was imported before, from %s" % loaded.__file__)
    if path() not in sys.path:
        sys.path.insert(0, path())
    importlib.invalidate_caches()
    return importlib.import_module("exllamav2_kernels")
