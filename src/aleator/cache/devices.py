"""Names of devices, checked before use; the CPU needs no PyTorch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from aleator.core.errors import ParameterError
from aleator.core.packages import required_torch
from aleator.core.records import dataclass


@dataclass(frozen=True)
class Device:
    """A device that computes or stores: "cpu", or "cuda" and a number; None is the current CUDA device.

    The CPU is one device whatever its number, but a map of layers may number its parts.
    """

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


CPU = Device("cpu")

_NAME = re.compile(r"([a-z]+)(?::(\d{1,4}))?")


def checked_device(name: str, device: object) -> Device:
    """Return the device of "cpu", "cuda", "cuda:1" or a torch device; ``name`` is the parameter.

    ParameterError if the device does not exist; ImportError, with what to install, if CUDA lacks PyTorch.
    """
    if isinstance(device, Device):
        return device
    made = named_device(name, device)
    require_device(name, made)
    return CPU if made.type == "cpu" else made


def checked_devices(given: object, n_layers: int) -> list[Device]:
    """The device of each layer, from one device or a list of one per layer; see :func:`checked_device`."""
    each = list(given) if isinstance(given, (list, tuple)) else [given] * n_layers
    if len(each) != n_layers:
        raise ParameterError(
            "device", f"{len(each)} devices for {n_layers} layers: give one for each"
        )
    return [checked_device("device", device) for device in each]


def named_device(name: str, device: object) -> Device:
    """The device that a name stands for, whether it exists or not; a number of the CPU is kept."""
    found = _NAME.fullmatch(str(device))
    if found is None:
        raise ParameterError(f"{name}={device!r}: give cpu, cuda or cuda:N")
    if found[1] not in ("cpu", "cuda"):
        raise ParameterError(f"{name}={device!r} is not supported: give cpu, cuda or cuda:N")
    return Device(found[1], None if found[2] is None else int(found[2]))


def require_device(name: str, device: Device) -> None:
    """Raise the error of :func:`checked_device` if a CUDA device does not exist."""
    if device.type == "cpu":
        return
    count = cuda_devices(f"{name}={str(device)!r}")
    if (device.index or 0) >= count:
        others = f" or cuda:N, N below {count}" if count else ""
        raise ParameterError(
            f"{name}={str(device)!r}: torch finds {count} CUDA devices here; give cpu{others}"
        )


def sizes_by_device(parts: Iterable[tuple[Device, int]]) -> dict[str, int]:
    """Sum the bytes of parts for each device, by its name."""
    made: dict[str, int] = {}
    for device, n_bytes in parts:
        made[str(device)] = made.get(str(device), 0) + n_bytes
    return made


def described(sizes: Mapping[str, int]) -> str:
    """Devices in words, with their sizes if there are several."""
    if len(sizes) > 1:
        return " + ".join(f"{name} {n_bytes / 2**20:.2f} MiB" for name, n_bytes in sizes.items())
    return next(iter(sizes), "cpu")


def cuda_devices(what: str) -> int:
    """The number of CUDA devices; ImportError, which says that ``what`` needs PyTorch, if it is missing."""
    torch = required_torch(what)
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
