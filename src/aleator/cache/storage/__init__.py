"""Where keys, values and states are kept: NumPy arrays on the CPU, torch's tensors on devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aleator.cache.devices import Device
from aleator.cache.storage.host import HostStates
from aleator.cache.storage.layer import LayerStorage, StateArrays
from aleator.cache.storage.storage import Storage, bytes_for, hadamard_block
from aleator.cache.storage.types import TYPES, StorageType, storage_type
from aleator.core.errors import ParameterError

__all__ = [
    "TYPES",
    "LayerStorage",
    "StateArrays",
    "Storage",
    "StorageType",
    "make_storage",
    "side_bytes",
    "state_arrays",
    "storage_type",
]


def side_bytes(
    parameter: str, type_name: str, shapes: Sequence[tuple[int, int]], n_cells: int
) -> int:
    """Bytes that :func:`make_storage` will allocate; its errors."""
    return bytes_for(parameter, storage_type(parameter, type_name), shapes, n_cells)


def make_storage(
    parameter: str,
    type_name: str,
    shapes: Sequence[tuple[int, int]],
    n_cells: int,
    devices: Sequence[Device],
    *,
    keys: bool = False,
    layout: str = "token",
    hadamard: bool = True,
) -> Storage:
    """Storage for one side.

    Args:
        parameter: what to call the type in errors: "type_k" or "type_v".
        type_name: a name of :data:`TYPES`.
        shapes: (heads, elements per head) of each layer.
        n_cells: cells.
        devices: of each layer.
        keys: it is the keys' side.
        layout: "token" or "channel".
        hadamard: whether heads may be rotated before they are rounded to blocks.

    """
    chosen = storage_type(parameter, type_name)
    bytes_for(parameter, chosen, shapes, n_cells)
    if layout not in ("token", "channel"):
        raise ParameterError("v_layout", f"v_layout must be token or channel, not {layout!r}")
    rotation = 0
    if chosen.block > 1:
        if layout == "channel":
            raise ParameterError(
                "v_layout",
                f"v_layout='channel' cannot hold {parameter}={type_name}, whose blocks lie along a "
                "token's channels: use v_layout='token', or f32, f16 or bf16",
            )
        rotation = hadamard_block(shapes, keys) if hadamard else 0
    return Storage(chosen, shapes, n_cells, devices, layout == "channel", rotation)


def state_arrays(device: Device) -> StateArrays[Any]:
    """What makes arrays of recurrent states; those on devices need PyTorch."""
    if device.type == "cpu":
        return HostStates()
    from aleator.cache.storage.tensors import TensorStates, torch_device

    return TensorStates(torch_device(device))
