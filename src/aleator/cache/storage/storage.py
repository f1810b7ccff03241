"""One side of a cache: keys or values of every layer, in the host's memory or on devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aleator.cache.devices import Device
from aleator.cache.storage.host import HostLayer, HostStates
from aleator.cache.storage.layer import Bytes, Cells, LayerFormat, LayerStorage, StateArrays
from aleator.cache.storage.types import TYPES, StorageType, storage_type
from aleator.core.errors import ParameterError


class Storage:
    """Keys or values of every layer, allocated once, zeroed, never moved.

    Arguments are those of :class:`LayerFormat`, with ``shapes``, the (heads, elements per head) of each layer.
    """

    def __init__(
        self,
        type_: StorageType,
        shapes: Sequence[tuple[int, int]],
        n_cells: int,
        devices: Sequence[Device],
        by_channel: bool = False,
        rotation: int = 0,
    ) -> None:
        self.type, self.shapes, self.n_cells = type_, list(shapes), n_cells
        self.by_channel, self.rotation = by_channel, rotation
        self.parts: list[LayerStorage[Any]] = [
            _layer(device, LayerFormat(type_, heads, dim, n_cells, by_channel, rotation))
            for (heads, dim), device in zip(shapes, devices, strict=True)
        ]

    @property
    def layers(self) -> list[Any]:
        """The layers' arrays, see :attr:`LayerStorage.data`: NumPy's on the CPU, torch's on devices."""
        return [part.data for part in self.parts]

    def write(self, layer: int, cells: Cells, rows: Any) -> None:
        """Store rows float32 [T, heads, dim], rounded to the type, in the cells."""
        self.parts[layer].write(cells, rows)

    def read(self, layer: int, cells: Cells) -> Any:
        """A copy of the cells' rows, float32 [n, heads, dim]."""
        return self.parts[layer].read(cells)

    def encoded(self, layer: int, rows: Any) -> Bytes:
        """Bytes [T, bytes of a cell] that :meth:`write` would store token by token."""
        return self.parts[layer].encoded(rows)

    def bytes_of(self, layer: int, cells: Cells) -> Bytes:
        """A copy of the stored bytes [n, bytes of a cell]; by channel [channels, n * bytes each]."""
        return self.parts[layer].bytes_of(cells)

    def put_bytes(self, layer: int, cells: Cells, data: Bytes) -> None:
        """Store what :meth:`bytes_of` gave, or another cache's did."""
        self.parts[layer].put_bytes(cells, data)

    def rows(self) -> list[npt.NDArray[np.uint8]] | None:
        """Every layer's bytes [cells, bytes of a cell], shared; None where they lie otherwise or elsewhere."""
        rows = [part.rows for part in self.parts]
        found = [each for each in rows if each is not None]
        return found if len(found) == len(rows) else None

    def copy(self, src: Cells, dst: Cells) -> None:
        """Copy the cells ``src`` to ``dst`` in every layer, as if all were read before any is written."""
        for part in self.parts:
            part.put(dst, part.take(src))

    def row_bytes(self, layer: int) -> int:
        """Bytes of one cell in a layer."""
        return self.parts[layer].row_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(part.nbytes for part in self.parts)

    def addresses(self) -> list[int]:
        """Where each layer begins in memory; never changes."""
        return [part.address for part in self.parts]

    def zero(self, cells: Cells | None = None) -> None:
        """Set every byte of some cells, or of all, to 0."""
        for part in self.parts:
            part.zero(cells)


def _layer(device: Device, format: LayerFormat) -> LayerStorage[Any]:
    """A layer's storage; that on devices needs PyTorch."""
    if device.type == "cpu":
        return HostLayer(format)
    from aleator.cache.storage.tensors import TensorLayer, torch_device

    return TensorLayer.on(torch_device(device), format)


def state_arrays(device: Device) -> StateArrays[Any]:
    """What makes arrays of recurrent states; those on devices need PyTorch."""
    if device.type == "cpu":
        return HostStates()
    from aleator.cache.storage.tensors import TensorStates, torch_device

    return TensorStates(torch_device(device))


def side_bytes(
    parameter: str, type_name: str, shapes: Sequence[tuple[int, int]], n_cells: int
) -> int:
    """Bytes that :func:`make_storage` will allocate; ParameterError if a head does not fill whole blocks."""
    type_ = storage_type(parameter, type_name)
    for layer, (_, dim) in enumerate(shapes):
        if dim % type_.block:
            raise ParameterError(
                parameter,
                f"{parameter}={type_.name} stores blocks of {type_.block} elements, and layer "
                f"{layer} has {dim} per head, not a multiple: use f32, f16 or bf16",
            )
    return sum(type_.bytes(heads * dim) for heads, dim in shapes) * n_cells


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
    """Storage for one side, in a type of this name, which errors call ``parameter``.

    ``keys``: it is the keys' side; ``hadamard``: heads may be rotated before they are rounded to blocks.
    """
    side_bytes(parameter, type_name, shapes, n_cells)
    chosen = TYPES[type_name]
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


def hadamard_block(shapes: Sequence[tuple[int, int]], keys: bool) -> int:
    """Elements rotated together, by llama.cpp 0.5's rule; 0: nothing is rotated.

    All layers' heads must be of one size, a multiple of 64: then values are rotated in blocks of 64 and
    keys in blocks of the largest power of two that divides the size.
    """
    sizes = {dim for _, dim in shapes}
    if len(sizes) != 1 or (dim := sizes.pop()) % 64:
        return 0
    return dim & -dim if keys else 64
