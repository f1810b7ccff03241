"""Names of devices, checked before anything is put there; the CPU needs no PyTorch."""

from __future__ import annotations

import re

from aleator.core.errors import ParameterError
from aleator.core.packages import required_torch
from aleator.core.records import dataclass


@dataclass(frozen=True)
class Device:
    """Where something is computed or kept.

    Attributes:
        type: "cpu" or "cuda".
        index: number of the CUDA device; None: the current one.

    """

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


CPU = Device("cpu")

_NAME = re.compile(r"([a-z]+)(?::(\d{1,4}))?")


def checked_device(name: str, device: object) -> Device:
    """Return the device that a name stands for.

    Args:
        name: the parameter.
        device: "cpu", "cuda", "cuda:1", ..., or torch's object for it.

    Raises:
        ParameterError: there is no such device, or none of that number here.
        ImportError: a CUDA device without PyTorch; says what to install.

    """
    if isinstance(device, Device):
        return device
    found = _NAME.fullmatch(str(device))
    if found is None:
        raise ParameterError(name, f"{name}={device!r}: give cpu, cuda or cuda:N")
    kind, index = found[1], found[2]
    if kind == "cpu":
        return CPU
    if kind != "cuda":
        raise ParameterError(name, f"{name}={device!r} is not supported: give cpu, cuda or cuda:N")
    count = cuda_devices(f"{name}={str(device)!r}")
    if int(index or 0) >= count:
        raise ParameterError(
            name, f"{name}={str(device)!r}: torch finds {count} CUDA devices here; give cpu"
        )
    return Device("cuda", None if index is None else int(index))


def cuda_devices(what: str) -> int:
    """How many CUDA devices PyTorch finds.

    Args:
        what: what needs it, for the error.

    Raises:
        ImportError: PyTorch is not installed; says what to install.

    """
    torch = required_torch(what)
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
