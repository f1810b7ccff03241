"""Where a model computes, and in what type."""

from __future__ import annotations

import os
import sys

from aleator.cache.devices import Device, checked_device, cuda_devices
from aleator.core.errors import ParameterError

DTYPES = ("float32", "float16", "bfloat16")
DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Files of drivers: for CUDA, for CUDA under Windows, and for AMD's devices, which PyTorch calls CUDA too."""


def placement(device: object, dtype: object) -> tuple[Device, str]:
    """The device and the type to compute in.

    Args:
        device: "cpu", "cuda" or "cuda:N", or PyTorch's object for it; None: CUDA where there is one, else the
            CPU.
        dtype: a type's name, or PyTorch's object for it; None: float32 on the CPU, bfloat16 on CUDA.

    Raises:
        ParameterError: another device or type, or a CUDA device that is not there.
        ImportError: a device or a type that needs PyTorch, which is not installed.
    """
    chosen = ("cuda" if _has_cuda() else "cpu") if device is None else device
    place = checked_device("device", chosen)
    if dtype is None:
        return place, "float32" if place.type == "cpu" else "bfloat16"
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ParameterError("dtype", f"dtype={dtype!r}: give {', '.join(DTYPES)}")
    return place, name


def _has_cuda() -> bool:
    """Whether PyTorch finds a CUDA device; it is imported only where a driver is."""
    if sys.platform not in ("linux", "win32"):
        return False
    if sys.platform == "linux" and not any(map(os.path.exists, DRIVERS)):
        return False
    try:
        return cuda_devices("device=None") > 0
    except ImportError:
        return False
