"""The interface of LoRAX's extension exllamav2_kernels, computed by kiln. See kiln.compat."""

import kiln.compat
from kiln import free_q_matrix, gemm_half_q_half
from kiln._quant import make_q_matrix as _make

__all__ = ["free_q_matrix", "gemm_half_q_half", "make_q_matrix"]


def make_q_matrix(*args):
    return _make(*args, in_place=kiln.compat.in_place(__name__))


make_q_matrix.__doc__ = _make.__doc__


def __getattr__(name):
    raise AttributeError("exllamav2_kernels is kiln's, which has no %r: only %s" % (name, ", ".join(__all__)))
