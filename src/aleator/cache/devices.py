"""Names of devices, checked before anything is put there."""

from __future__ import annotations

import torch

from aleator.core.errors import ParameterError


def checked_device(name: str, device: torch.device | str) -> torch.device:
    """Return the device that a name stands for.

    Args:
        name: the parameter.
        device: "cpu", "cuda", "cuda:1", ..., or torch's object for it.

    Raises:
        ParameterError: there is no such device, or none of that number here.

    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise ParameterError(name, f"{name}={device!r}: give cpu, cuda or cuda:N") from None
    if found.type not in ("cpu", "cuda"):
        raise ParameterError(name, f"{name}={device!r} is not supported: give cpu, cuda or cuda:N")
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (found.index or 0) >= count:
            raise ParameterError(
                name, f"{name}={str(device)!r}: torch finds {count} CUDA devices here; give cpu"
            )
    return found
