"""The matrix part of exllamav2's own extension exllamav2_ext, computed by kiln. See kiln.compat."""

import kiln.compat
from kiln import free_q_matrix, gemm_half_q_half, reconstruct
from kiln._quant import make_q_matrix as _make
from kiln._quant import make_q_matrix_split as _make_split

__all__ = ["free_q_matrix", "gemm_half_q_half", "make_q_matrix", "make_q_matrix_split", "reconstruct"]


def make_q_matrix(*args):
    return _make(*args, in_place=kiln.compat.in_place(__name__))


def make_q_matrix_split(*args):
    if kiln.compat.in_place(__name__):
        raise RuntimeError(
            "make_q_matrix_split takes pieces of weights as make_q_matrix has left them, and in place it leaves them "
            "as only kiln reads them; use kiln.compat.install(in_place=False)"
        )
    return _make_split(*args)


make_q_matrix.__doc__, make_q_matrix_split.__doc__ = _make.__doc__, _make_split.__doc__


def __getattr__(name):
    raise AttributeError(
        "exllamav2_ext is kiln's, which has no %r of exllamav2's extension: only %s. The rest needs the original; "
        "take kiln's compat folder out of the path" % (name, ", ".join(__all__))
    )
