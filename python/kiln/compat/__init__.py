"""Lets programs that were written for `exllamav2_kernels`, the extension of LoRAX, or for the matrix part of `exllamav2_ext`,
that of exllamav2 itself, run on kiln unchanged.

From Python, before the program imports one of them:

    import kiln.compat
    kiln.compat.install()

From outside, also for the processes that the program starts:

    PYTHONPATH="$(python -m kiln.compat)" lorax-launcher ...

Extensions that are installed are not touched; kiln's are found before them.

Both originals rewrite the weights that make_q_matrix gets. kiln's exllamav2_kernels does so too, so that a process has its
weights in memory once; exllamav2_ext does not, for exllamav2 cuts weights into pieces afterwards. in_place of install, or
KILN_IN_PLACE=0 or 1 in the environment, says otherwise for both.
"""

import importlib
import os
import sys

__all__ = ["in_place", "install", "path"]

_in_place = {"exllamav2_kernels": True, "exllamav2_ext": False}
_chosen = None


def path():
    """The folder with the modules exllamav2_kernels and exllamav2_ext, for PYTHONPATH."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "modules")


def in_place(module):
    """Whether make_q_matrix of one of the modules packs weights into the memory that it was given."""
    if _chosen is not None:
        return _chosen
    said = os.environ.get("KILN_IN_PLACE", "")
    if said not in ("", "0", "1"):
        raise ValueError("KILN_IN_PLACE is %r: want 0 or 1" % said)
    return said == "1" if said else _in_place[module]


def install(in_place=None):
    """Make `import exllamav2_kernels` and `import exllamav2_ext` find kiln's in this process. Returns the first of them.

    in_place says whether make_q_matrix of both packs weights into the memory that it was given, where they fit; None leaves
    that as it is, by default true of exllamav2_kernels alone.
    """
    global _chosen
    for name in _in_place:
        loaded = sys.modules.get(name)
        if loaded is not None and not _ours(loaded):
            raise ImportError("%s was imported before, from %s" % (name, getattr(loaded, "__file__", None)))
    if in_place is not None:
        _chosen = bool(in_place)
    if path() not in sys.path:
        sys.path.insert(0, path())
    importlib.invalidate_caches()
    return importlib.import_module("exllamav2_kernels")


def _ours(module):
    file = getattr(module, "__file__", None)
    return file is not None and os.path.samefile(os.path.dirname(file), path())
