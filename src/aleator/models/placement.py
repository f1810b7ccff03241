"""Where a model computes, and in what type."""

from __future__ import annotations

import os
import sys

from aleator.cache.devices import Device, checked_device, cuda_devices
from aleator.core.errors import ParameterError

DTYPES = ("float32", "float16", "bfloat16")
DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Files of drivers: for CUDA, for CUDA under Windows, and for AMD's devices, which PyTorch calls CUDA too."""


def placement(device: object, dtype: object, n_gpu_layers: int | None = None) -> tuple[Device, str]:
    """The device and the type to compute in.

    Args:
        device: "cpu", "cuda" or "cuda:N", or PyTorch's object for it; None: CUDA where there is one, else the
            CPU.
        dtype: a type's name, or PyTorch's object for it; None: float32 on the CPU, bfloat16 on CUDA.
        n_gpu_layers: 0: the CPU computes; more: a CUDA device does; None: whatever ``device`` says.

    Raises:
        ParameterError: another device or type, or a CUDA device that is not there; ``n_gpu_layers`` and the
            device contradict each other.
        ImportError: a device or a type that needs PyTorch, which is not installed.
    """
    if device is None:
        device = "cuda" if n_gpu_layers != 0 and _has_cuda() else "cpu"
    place = checked_device("device", device)
    if n_gpu_layers is not None and (n_gpu_layers == 0) != (place.type == "cpu"):
        remedy = (
            "leave out device"
            if n_gpu_layers == 0
            else "give 0, or device='cuda' where there is one"
        )
        raise ParameterError(
            "n_gpu_layers", f"n_gpu_layers={n_gpu_layers} with device={str(place)!r}: {remedy}"
        )
    return place, checked_dtype(dtype) or ("float32" if place.type == "cpu" else "bfloat16")


def checked_dtype(dtype: object) -> str | None:
    """The name of a type to compute in; None stays None, ParameterError for what is none."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ParameterError("dtype", f"dtype={dtype!r}: give {', '.join(DTYPES)}")
    return name


def check_layers(n_gpu_layers: int | None, n_layers: int) -> None:
    """Refuse to divide a model between a device and the CPU.

    Args:
        n_gpu_layers: layers that the device is to compute; None: nothing is said.
        n_layers: layers of the model.

    Raises:
        ParameterError: some and not all.
    """
    if n_gpu_layers is not None and 0 < n_gpu_layers < n_layers:
        raise ParameterError(
            "n_gpu_layers",
            f"n_gpu_layers={n_gpu_layers}: the model has {n_layers} layers, and one device computes all of "
            f"them: give 0 or {n_layers}",
        )


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
