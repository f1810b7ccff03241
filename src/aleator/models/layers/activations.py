"""What is computed of single numbers between two matrices, in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def activation(kind: str, x: torch.Tensor) -> torch.Tensor:
    """An activation of every number.

    Args:
        kind: "silu", "gelu" (its approximation by tanh), "gelu_exact", "relu_squared", or "gelu_rounded": as
            llama.cpp computes it, from a table of float16 values (ggml_vec_gelu_f32): arguments and results are
            rounded to float16, except beyond -10 and 10, where GELU is 0 or the identity.
        x: the numbers.
    """
    if kind == "silu":
        return F.silu(x)
    if kind == "gelu_rounded":
        inside = F.gelu(x.half().float(), approximate="tanh").half().to(x)
        return torch.where(x.abs() < 10.0, inside, x.clamp_min(0.0))
    if kind == "relu_squared":
        return F.relu(x).square()
    return F.gelu(x, approximate="none" if kind == "gelu_exact" else "tanh")
