"""The interface of LoRAX's extension exllamav2_kernels, computed by kiln. See kiln.compat."""

from kiln import free_q_matrix, gemm_half_q_half, make_q_matrix

__all__ = ["free_q_matrix", "gemm_half_q_half", "make_q_matrix"]
