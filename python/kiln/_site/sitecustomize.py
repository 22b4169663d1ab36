"""Puts kiln's loader in the place of torch's as soon as a program imports torch.utils.cpp_extension.

`python -m kiln.torch` has this folder on PYTHONPATH, so that Python runs this file before the program, also in the processes
that the program starts. Nothing is imported here that a program without extensions would not import.
"""

import importlib.machinery
import importlib.util
import os
import sys

TARGET = "torch.utils.cpp_extension"


class Finder:
    """Finds TARGET as Python would, and calls a function after it was imported."""

    def __init__(self, then):
        self.then = then

    def find_spec(self, name, path=None, target=None):
        if name != TARGET:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            self.then()

        spec.loader.exec_module = exec_module
        return spec


def _install():
    if "kiln" not in sys.modules and importlib.util.find_spec("kiln") is None:
        # Another Python, whose packages are its own: only kiln is taken from here.
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        spec = importlib.util.spec_from_file_location("kiln", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
        sys.modules["kiln"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["kiln"])
    import kiln.torch

    kiln.torch.install()


def _hidden():
    """Run the sitecustomize that this one hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [p for p in sys.path if os.path.abspath(p) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Finder(_install))
    _hidden()
