"""Fused operators over batches of logits: docs/operator.md.

``top_k_top_p_sample`` follows the Ascend operator TopKTopPSampleV2; extensions have names of their own.
NumPy arrays and CPU tensors use the native kernel, CUDA tensors the Triton kernels, with the same bits.
"""

from aleator.ops.arguments import Sampled
from aleator.ops.sample import paths, top_k_top_p_draw, top_k_top_p_sample, top_k_top_p_sample_wide

__all__ = [
    "Sampled",
    "paths",
    "top_k_top_p_draw",
    "top_k_top_p_sample",
    "top_k_top_p_sample_wide",
]
