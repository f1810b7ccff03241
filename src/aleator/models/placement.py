"""Where a model computes, and in what type."""

from __future__ import annotations

import torch

from aleator.cache.devices import checked_device
from aleator.core.errors import ParameterError

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def placement(device: str | None, dtype: torch.dtype | str | None) -> tuple[str, torch.dtype]:
    """The device and the type to compute in.

    Args:
        device: "cpu", "cuda" or "cuda:N"; None: CUDA where there is one, else the CPU.
        dtype: a type or its name; None: float32 on the CPU, bfloat16 on CUDA.

    Raises:
        ParameterError: another device or type, or a CUDA device that is not there.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = checked_device("device", device).type
    if dtype is None:
        return str(device), torch.float32 if kind == "cpu" else torch.bfloat16
    found = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in DTYPES.values():
        raise ParameterError("dtype", f"dtype={dtype!r}: give {', '.join(DTYPES)}")
    return str(device), found
