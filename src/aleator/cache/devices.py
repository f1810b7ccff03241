"""Names of devices, checked before anything is put there; the CPU needs no PyTorch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from aleator.core.errors import ParameterError
from aleator.core.packages import required_torch
from aleator.core.records import dataclass


@dataclass(frozen=True)
class Device:
    """Where something is computed or kept: "cpu", or "cuda" and its device's number; None: the current one.

    The CPU is one device whatever its number, but a map of layers may name its parts by numbers.
    """

    type: str
    index: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


CPU = Device("cpu")

_NAME = re.compile(r"([a-z]+)(?::(\d{1,4}))?")


def checked_device(name: str, device: object) -> Device:
    """The device that "cpu", "cuda", "cuda:1" or torch's object for it stands for; ``name``: the parameter.

    ParameterError: there is none here.  ImportError: a CUDA device without PyTorch; says what to install.
    """
    if isinstance(device, Device):
        return device
    made = named_device(name, device)
    if made.type == "cpu":
        return CPU
    require_device(name, made)
    return made


def checked_devices(name: str, given: object, n_layers: int) -> list[Device]:
    """The device of each layer, from one for all or a list with one for each; errors are those of one."""
    each = list(given) if isinstance(given, (list, tuple)) else [given] * n_layers
    if len(each) != n_layers:
        raise ParameterError(name, f"{len(each)} devices for {n_layers} layers: give one for each")
    return [checked_device(name, device) for device in each]


def named_device(name: str, device: object) -> Device:
    """The device that a name stands for, whether it is here or not; a number of the CPU is kept."""
    found = _NAME.fullmatch(str(device))
    if found is None:
        raise ParameterError(f"{name}={device!r}: give cpu, cuda or cuda:N")
    if found[1] not in ("cpu", "cuda"):
        raise ParameterError(f"{name}={device!r} is not supported: give cpu, cuda or cuda:N")
    return Device(found[1], None if found[2] is None else int(found[2]))


def require_device(name: str, device: Device) -> None:
    """Nothing; ParameterError or ImportError for a CUDA device that is not here, see :func:`checked_device`."""
    if device.type == "cpu":
        return
    count = cuda_devices(f"{name}={str(device)!r}")
    if (device.index or 0) >= count:
        raise ParameterError(
            f"{name}={str(device)!r}: torch finds {count} CUDA devices here; give cpu"
        )


def sizes_by_device(parts: Iterable[tuple[Device, int]]) -> dict[str, int]:
    """The bytes of each device, by its name, from the bytes of parts."""
    made: dict[str, int] = {}
    for device, n_bytes in parts:
        made[str(device)] = made.get(str(device), 0) + n_bytes
    return made


def described(sizes: Mapping[str, int]) -> str:
    """Devices in words; with their sizes where there are several."""
    if len(sizes) > 1:
        return " + ".join(f"{name} {n_bytes / 2**20:.2f} MiB" for name, n_bytes in sizes.items())
    return next(iter(sizes), "cpu")


def cuda_devices(what: str) -> int:
    """How many CUDA devices PyTorch finds; ImportError, naming ``what`` needs it, if there is no PyTorch."""
    torch = required_torch(what)
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
