"""Turns off torch's comparison of the CUDA toolkit with its own CUDA, from outside.

Loaded by a .pth file of the build environment. It waits for the module that has the
check, replaces the function and writes how often that happened to the file named by
KILN_CUDA_CHECK_LOG: nothing changed is an error for kiln.
"""

import importlib.abc
import importlib.machinery
import os
import sys

_MODULE = "torch.utils.cpp_extension"
_FUNCTION = "_check_cuda_version"


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            if callable(getattr(module, _FUNCTION, None)):
                setattr(module, _FUNCTION, lambda *args, **kwargs: None)
                log = os.environ.get("KILN_CUDA_CHECK_LOG")
                if log:
                    with open(log, "a", encoding="utf-8") as f:
                        f.write("1\n")

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("KILN_CUDA_CHECK_LOG"):
    sys.meta_path.insert(0, _Finder())
