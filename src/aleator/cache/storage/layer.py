"""Keys or values of one layer: what every way of storing them can do, wherever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from aleator.cache.storage.types import StorageType
from aleator.core.records import dataclass

A = TypeVar("A")
"""Arrays: NumPy's on the CPU, torch's on devices."""

Cells = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class LayerFormat:
    """How one layer stores its keys, or its values: ``heads`` of ``dim`` elements per cell.

    ``by_channel``: a channel's cells lie side by side, instead of a cell's channels.
    ``rotation``: heads are stored rotated by a Hadamard matrix in blocks of so many; 0: as they are.
    """

    type: StorageType
    heads: int
    dim: int
    n_cells: int
    by_channel: bool = False
    rotation: int = 0


class LayerStorage(ABC, Generic[A]):
    """Keys or values of one layer, allocated once, zeroed, never moved; the format's fields are attributes too.

    ``data`` is [n_cells, heads, dim] of the stored elements, by channel [heads, dim, n_cells], of blocks
    uint8 [n_cells, bytes of a cell].
    """

    data: A

    def __init__(self, format: LayerFormat) -> None:
        self.format = format
        self.type, self.rotation, self.by_channel = format.type, format.rotation, format.by_channel
        self.heads, self.dim, self.n_cells = format.heads, format.dim, format.n_cells

    @property
    def row_bytes(self) -> int:
        """Bytes of one cell."""
        return self.type.bytes(self.heads * self.dim)

    @property
    def nbytes(self) -> int:
        """Bytes of all cells."""
        return self.row_bytes * self.n_cells

    @property
    def axis(self) -> int:
        """The dimension of :attr:`data` that counts cells."""
        return -1 if self.by_channel else 0

    def taken_shape(self, n: int) -> list[int]:
        """The shape of what :meth:`take` gives for ``n`` cells."""
        if self.type.block > 1:
            return [n, self.row_bytes]
        return [self.heads, self.dim, n] if self.by_channel else [n, self.heads, self.dim]

    @property
    @abstractmethod
    def address(self) -> int:
        """Where :attr:`data` begins in memory; never changes."""

    @property
    @abstractmethod
    def rows(self) -> Bytes | None:
        """All bytes [n_cells, bytes of a cell], shared; None where they lie otherwise or elsewhere."""

    @abstractmethod
    def write(self, cells: Cells, rows: A) -> None:
        """Store rows float32 [T, heads, dim], rounded to the type, in the cells."""

    @abstractmethod
    def read(self, cells: Cells) -> A:
        """A copy of the cells' rows, float32 [n, heads, dim]."""

    @staticmethod
    @abstractmethod
    def joined(rows: Sequence[A]) -> A:
        """Rows [n, heads, dim] of several layers as one array [n, all heads, dim]."""

    @abstractmethod
    def take(self, cells: Cells) -> A:
        """A copy of what the cells hold, for :meth:`put`."""

    @abstractmethod
    def put(self, cells: Cells, taken: A) -> None:
        """Store what :meth:`take` gave, bit for bit."""

    @abstractmethod
    def put_back(self, cells: Cells) -> tuple[Any, ...]:
        """The call, function and arguments, that will store again what the cells hold now.

        No line of Python runs in it, so that no interrupt can fall into it.
        """

    @abstractmethod
    def encoded(self, rows: A) -> Bytes:
        """Bytes [T, bytes of a cell] that :meth:`write` would store token by token."""

    @abstractmethod
    def bytes_of(self, cells: Cells) -> Bytes:
        """A copy of the stored bytes [n, bytes of a cell]; by channel [channels, n * bytes each]."""

    @abstractmethod
    def put_bytes(self, cells: Cells, data: Bytes) -> None:
        """Store what :meth:`bytes_of` gave, or another cache's did."""

    @abstractmethod
    def zero(self, cells: Cells | None = None) -> None:
        """Set every byte of some cells, or of all, to 0."""


class StateArrays(ABC, Generic[A]):
    """Makes and changes arrays float32 [rows, ...] of recurrent states."""

    @abstractmethod
    def zeros(self, shape: Sequence[int]) -> A:
        """A new array."""

    def grown(self, array: Any, n_rows: int) -> Any:
        """A copy with ``n_rows`` rows, the new ones 0."""
        made: Any = self.zeros((n_rows, *array.shape[1:]))
        made[: len(array)] = array
        return made

    @abstractmethod
    def row(self, array: A, row: int) -> A:
        """A copy of one row."""

    @abstractmethod
    def zero(self, array: A, rows: Sequence[int]) -> None:
        """Set rows to 0."""

    @abstractmethod
    def host(self, array: A, rows: Sequence[int]) -> npt.NDArray[np.float32]:
        """Copies of rows in the host's memory."""

    @abstractmethod
    def of_host(self, values: npt.NDArray[np.float32]) -> A:
        """Values from the host's memory, to be assigned to rows."""

    @abstractmethod
    def address(self, array: A) -> int:
        """Where an array begins in memory."""
