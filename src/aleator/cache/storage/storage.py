"""One side of a cache: keys or values of every layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from aleator.cache.storage.types import StorageType
from aleator.core.errors import ParameterError

Rows = slice | torch.Tensor
"""Cells: a slice, or int64 indices on the layer's device."""


class Storage(ABC):
    """Keys or values of every layer, allocated once, zeroed, never moved.

    Attributes:
        type: how elements are stored.
        shapes: (heads, elements per head) of each layer.
        n_cells: cells of every layer.
        layers: one tensor per layer.
        rotation: heads are stored turned by a Hadamard matrix in blocks of so many; 0: as they are.
        by_channel: a channel's cells lie side by side, instead of a cell's channels.

    """

    by_channel = False

    def __init__(
        self,
        type_: StorageType,
        shapes: Sequence[tuple[int, int]],
        n_cells: int,
        devices: Sequence[torch.device],
        rotation: int = 0,
    ) -> None:
        self.type, self.shapes, self.n_cells = type_, list(shapes), n_cells
        self.rotation = rotation
        with torch.inference_mode(False):  # they are written in and outside of that mode
            self.layers = [
                self._allocate(heads, dim, device)
                for (heads, dim), device in zip(shapes, devices, strict=True)
            ]

    @abstractmethod
    def _allocate(self, heads: int, dim: int, device: torch.device) -> torch.Tensor: ...

    @abstractmethod
    def write(self, layer: int, cells: Rows, rows: torch.Tensor) -> None:
        """Store rows [T, heads, dim], rounded to the type, in the cells."""

    @abstractmethod
    def read(self, layer: int, cells: Rows) -> torch.Tensor:
        """Rows [n, heads, dim] of the cells, a view where possible; float32 if the type has none."""

    def take(self, layer: int, cells: torch.Tensor) -> torch.Tensor:
        """A copy of what the cells hold, for :meth:`put`."""
        return self.layers[layer].index_select(self._axis, cells)

    def put(self, layer: int, cells: torch.Tensor, taken: torch.Tensor) -> None:
        """Store what :meth:`take` gave, bit for bit."""
        self.layers[layer].index_copy_(self._axis, cells, taken)

    def put_back(self, layer: int, cells: torch.Tensor) -> tuple[Any, ...]:
        """The call, function and arguments, that will store again what the cells hold now.

        No line of Python runs in it, so that no interrupt can fall into it.
        """
        return self.layers[layer].index_copy_, self._axis, cells, self.take(layer, cells)

    @abstractmethod
    def encoded(self, layer: int, rows: torch.Tensor) -> npt.NDArray[np.uint8]:
        """Bytes [T, bytes of a cell] that :meth:`write` would store token by token."""

    def bytes_of(self, layer: int, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """A copy of the stored bytes [n, bytes of a cell]; by channel [channels, n * bytes each]."""
        taken = self.take(layer, torch.from_numpy(cells).to(self.layers[layer].device))
        heads, dim = self.shapes[layer]
        rows = heads * dim if self.by_channel else len(cells)
        return taken.cpu().contiguous().view(-1).view(torch.uint8).view(rows, -1).numpy()

    def put_bytes(
        self, layer: int, cells: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]
    ) -> None:
        """Store what :meth:`bytes_of` gave, or another cache's did."""
        to = self.layers[layer]
        shape = list(to.shape)
        shape[self._axis] = len(cells)
        flat = torch.from_numpy(data.reshape(-1).copy())
        self.put(
            layer,
            torch.from_numpy(cells).to(to.device),
            flat.view(to.dtype).view(shape).to(to.device),
        )

    def rows(self) -> list[npt.NDArray[np.uint8]] | None:
        """Every layer's bytes [cells, bytes of a cell], shared; None where they lie otherwise or elsewhere."""
        if self.by_channel or any(t.device.type != "cpu" for t in self.layers):
            return None
        return [t.view(-1).view(torch.uint8).view(self.n_cells, -1).numpy() for t in self.layers]

    def copy(self, src: npt.NDArray[np.int64], dst: npt.NDArray[np.int64]) -> None:
        """Copy the cells ``src`` to ``dst`` in every layer, as if all were read before any is written."""
        for layer, t in enumerate(self.layers):
            to = torch.from_numpy(dst).to(t.device)
            self.put(layer, to, self.take(layer, torch.from_numpy(src).to(t.device)))

    def row_bytes(self, layer: int) -> int:
        """Bytes of one cell in a layer."""
        heads, dim = self.shapes[layer]
        return self.type.bytes(heads * dim)

    @property
    def _axis(self) -> int:
        return -1 if self.by_channel else 0

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(t.nbytes for t in self.layers)

    def addresses(self) -> list[int]:
        """Where each layer begins in memory; never changes."""
        return [t.data_ptr() for t in self.layers]

    def zero_cells(self, layer: int, cells: torch.Tensor) -> None:
        """Set every byte of some cells to 0."""
        self.layers[layer].index_fill_(self._axis, cells, 0)

    def zero(self) -> None:
        """Set every byte to 0."""
        for t in self.layers:
            t.zero_()


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
