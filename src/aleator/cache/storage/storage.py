"""One side of a cache: keys or values of every layer, in the host's memory or on devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aleator.cache.devices import Device
from aleator.cache.storage.host import HostLayer
from aleator.cache.storage.layer import Bytes, Cells, LayerFormat, LayerStorage
from aleator.cache.storage.types import StorageType
from aleator.core.errors import ParameterError


class Storage:
    """Keys or values of every layer, allocated once, zeroed, never moved.

    Args:
        type_: how elements are stored.
        shapes: (heads, elements per head) of each layer.
        n_cells: cells of every layer.
        devices: of each layer.
        by_channel: a channel's cells lie side by side, instead of a cell's channels.
        rotation: heads are stored rotated by a Hadamard matrix in blocks of so many; 0: as they are.

    Attributes:
        parts: the layers.

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


def bytes_for(
    parameter: str, type_: StorageType, shapes: Sequence[tuple[int, int]], n_cells: int
) -> int:
    """Bytes of a side, without allocating it.

    Raises:
        ParameterError: a head does not fill whole blocks.

    """
    for layer, (_, dim) in enumerate(shapes):
        if dim % type_.block:
            raise ParameterError(
                parameter,
                f"{parameter}={type_.name} stores blocks of {type_.block} elements, and layer "
                f"{layer} has {dim} per head, not a multiple: use f32, f16 or bf16",
            )
    return sum(type_.bytes(heads * dim) for heads, dim in shapes) * n_cells


def hadamard_block(shapes: Sequence[tuple[int, int]], keys: bool) -> int:
    """Elements rotated together, by llama.cpp 0.5's rule; 0: nothing is rotated.

    All layers' heads must be of one size, a multiple of 64: then values are rotated in blocks of 64 and
    keys in blocks of the largest power of two that divides the size.
    """
    sizes = {dim for _, dim in shapes}
    if len(sizes) != 1 or (dim := sizes.pop()) % 64:
        return 0
    return dim & -dim if keys else 64
