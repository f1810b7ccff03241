"""One side of a cache: keys or values of every layer, in the host's memory or on devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aleator.cache.devices import Device
from aleator.cache.storage.layer import (
    TYPES,
    HostLayer,
    LayerFormat,
    LayerStorage,
    StateArrays,
    storage_type,
)
from aleator.core.arrays import Bytes
from aleator.core.errors import ParameterError


class Storage:
    """Keys or values of every layer in one type: allocated once, zeroed, never moved.

    Errors call the type ``parameter``.  ``shapes`` are (heads, elements per head) of each layer; ``layout`` is
    "token" or "channel"; ``hadamard`` says whether heads may be rotated before they are rounded to blocks.
    """

    def __init__(
        self,
        parameter: str,
        type_name: str,
        shapes: Sequence[tuple[int, int]],
        n_cells: int,
        devices: Sequence[Device],
        *,
        keys: bool = False,
        layout: str = "token",
        hadamard: bool = True,
    ) -> None:
        side_bytes(parameter, type_name, shapes, n_cells)
        self.type, self.shapes, self.n_cells = TYPES[type_name], list(shapes), n_cells
        if layout not in ("token", "channel"):
            raise ParameterError(f"v_layout must be token or channel, not {layout!r}")
        self.by_channel, self.rotation = layout == "channel", 0
        if self.type.element is None:
            if self.by_channel:
                raise ParameterError(
                    f"v_layout='channel' cannot hold {parameter}={type_name}, whose blocks lie along a "
                    "token's channels: use v_layout='token', or f32, f16 or bf16"
                )
            self.rotation = hadamard_block(shapes, keys) if hadamard else 0
        self.parts: list[LayerStorage[Any]] = []
        for (heads, dim), device in zip(shapes, devices, strict=True):
            stored = (self.type, heads, dim, n_cells, self.by_channel, self.rotation)
            self.parts.append(_layer(device, LayerFormat(*stored)))

    @property
    def layers(self) -> list[Any]:
        """The layers' arrays, see :attr:`LayerStorage.data`: NumPy on the CPU, torch on devices."""
        return [part.data for part in self.parts]

    def rows(self) -> list[Bytes] | None:
        """Views of every layer's bytes [cells, bytes of a cell]; None with another layout or on a device."""
        rows = [part.rows for part in self.parts]
        found = [each for each in rows if each is not None]
        return found if len(found) == len(rows) else None

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(part.nbytes for part in self.parts)


def _layer(device: Device, format: LayerFormat) -> LayerStorage[Any]:
    """A layer's storage; devices need PyTorch."""
    if device.type == "cpu":
        return HostLayer(format)
    from aleator.cache.storage.tensors import TensorLayer, torch_device

    return TensorLayer.on(torch_device(device), format)


def state_arrays(device: Device) -> StateArrays:
    """The maker of arrays of recurrent states; devices need PyTorch."""
    if device.type == "cpu":
        return StateArrays()
    from aleator.cache.storage.tensors import TensorStates, torch_device

    return TensorStates(torch_device(device))


def side_bytes(
    parameter: str, type_name: str, shapes: Sequence[tuple[int, int]], n_cells: int
) -> int:
    """Bytes that :class:`Storage` will allocate; ParameterError if a head does not fill whole blocks."""
    type_ = storage_type(parameter, type_name)
    for layer, (_, dim) in enumerate(shapes):
        if dim % type_.block:
            raise ParameterError(
                f"{parameter}={type_.name} stores blocks of {type_.block} elements, and layer "
                f"{layer} has {dim} per head, not a multiple: use f32, f16 or bf16"
            )
    return sum(type_.bytes(heads * dim) for heads, dim in shapes) * n_cells


def hadamard_block(shapes: Sequence[tuple[int, int]], keys: bool) -> int:
    """The number of elements rotated together, by llama.cpp 0.5's rule; 0: no rotation.

    All layers' heads must have the same size, a multiple of 64.  Then values are rotated in blocks of 64, keys
    in blocks of the largest power of two that divides the size.
    """
    sizes = {dim for _, dim in shapes}
    if len(sizes) != 1 or (dim := sizes.pop()) % 64:
        return 0
    return dim & -dim if keys else 64
