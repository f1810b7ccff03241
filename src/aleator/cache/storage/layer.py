"""Keys, values and states of a layer: their types, the interface of their storage, and that of the host.

In the host's memory they are NumPy arrays that native code reads and writes in place.  Blocks may be rotated by
a Hadamard matrix first.  A block's scale follows from its largest element.  If one channel is much larger than
the others, as in keys, the others lose most of their bits; the matrix spreads it over its block.  The matrix is
its own inverse, so reading rotates back; native attention rotates the query instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

import aleator._native as _native
from aleator._native import find_nonfinite
from aleator.core.arrays import Bytes, Floats, Int64s
from aleator.core.errors import ParameterError
from aleator.core.records import dataclass
from aleator.core.threads import pool


@dataclass(frozen=True)
class StorageType:
    """A type that elements are stored in."""

    name: str  # as users write it
    ggml: int  # its number in ggml's files
    block: int  # elements stored together
    block_bytes: int  # bytes of a block
    # NumPy's type of one stored element, for bf16 its bits; None if a block has no such elements
    element: type[np.generic] | None = None
    # Byte offsets of a block's floating-point numbers
    scales: tuple[int, ...] = (0,)
    # The bits of their exponents, which are all set in NaN and infinity
    exponent: int = 0x7C00  # of float16, as in all blocks

    @property
    def native(self) -> str:
        """The name in native code."""
        return self.name.upper()

    def bytes(self, n: int) -> int:
        """Bytes of ``n`` elements, a multiple of ``block``."""
        return n // self.block * self.block_bytes

    def is_finite(self, data: Bytes) -> bool:
        """Whether stored bytes, C-contiguous and of any shape, hold neither NaN nor infinity."""
        width = 4 if self.name == "f32" else 2
        flat = data.ravel()
        return all(
            find_nonfinite(flat, at, self.block_bytes, width, self.exponent) < 0
            for at in self.scales
        )


# ggml's block layouts; numbers from ggml.h.
TYPES: dict[str, StorageType] = {
    t.name: t
    for t in (
        StorageType("f32", 0, 1, 4, np.float32, exponent=0x7F800000),
        StorageType("f16", 1, 1, 2, np.float16),
        StorageType("bf16", 30, 1, 2, np.uint16, exponent=0x7F80),
        StorageType("q8_0", 8, 32, 34),
        StorageType("q5_1", 7, 32, 24, scales=(0, 2)),
        StorageType("q5_0", 6, 32, 22),
        StorageType("q4_1", 3, 32, 20, scales=(0, 2)),
        StorageType("q4_0", 2, 32, 18),
        StorageType("iq4_nl", 20, 32, 18),
    )
}


def storage_type(parameter: str, name: str) -> StorageType:
    """The type of this name; ParameterError, which names ``parameter``, if there is none."""
    if not isinstance(name, str) or name not in TYPES:
        raise ParameterError(f"{parameter} must be one of {', '.join(TYPES)}, not {name!r}")
    return TYPES[name]


A = TypeVar("A")
"""NumPy arrays on the CPU, torch tensors on devices."""


@dataclass(frozen=True)
class LayerFormat:
    """How one layer stores its keys, or its values: ``heads`` of ``dim`` elements per cell.

    ``by_channel``: a channel's cells are contiguous, instead of a cell's channels.
    ``rotation``: size of the blocks in which a Hadamard matrix rotates heads before storing; 0: no rotation.
    """

    type: StorageType
    heads: int
    dim: int
    n_cells: int
    by_channel: bool = False
    rotation: int = 0


class LayerStorage(ABC, Generic[A]):
    """Keys or values of one layer: allocated once, zeroed, never moved; the format's fields are attributes too.

    ``data`` is [n_cells, heads, dim] of the stored elements, [heads, dim, n_cells] by channel, or, for block
    types, uint8 [n_cells, bytes of a cell].
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
        """The shape of what :meth:`take` returns for ``n`` cells."""
        if self.type.element is None:
            return [n, self.row_bytes]
        return [self.heads, self.dim, n] if self.by_channel else [n, self.heads, self.dim]

    @property
    @abstractmethod
    def address(self) -> int:
        """The memory address of :attr:`data`, which never changes."""

    @property
    @abstractmethod
    def rows(self) -> Bytes | None:
        """A view of all bytes [n_cells, bytes of a cell]; None with another layout or on a device."""

    @abstractmethod
    def write(self, cells: Int64s, rows: A) -> None:
        """Store rows, float32 [T, heads, dim], rounded to the type, in the cells."""

    @abstractmethod
    def read(self, cells: Int64s) -> A:
        """A copy of the cells' rows, float32 [n, heads, dim]."""

    @staticmethod
    @abstractmethod
    def joined(rows: Sequence[A]) -> A:
        """Rows [n, heads, dim] of several layers as one array [n, all heads, dim]."""

    @abstractmethod
    def take(self, cells: Int64s) -> A:
        """A copy of the cells' stored elements, for :meth:`put`."""

    @abstractmethod
    def put(self, cells: Int64s, taken: A) -> None:
        """Store what :meth:`take` returned, bit for bit."""

    @abstractmethod
    def put_back(self, cells: Int64s) -> tuple[Any, ...]:
        """The function and arguments of a call that will restore what the cells hold now.

        The call runs no Python code, so that it cannot be interrupted.
        """

    @abstractmethod
    def encoded(self, rows: A) -> Bytes:
        """The bytes [T, bytes of a cell] that :meth:`write` would store."""

    @abstractmethod
    def bytes_of(self, cells: Int64s) -> Bytes:
        """A copy of the stored bytes [n, bytes of a cell]; by channel [channels, n * bytes each]."""

    @abstractmethod
    def put_bytes(self, cells: Int64s, data: Bytes) -> None:
        """Store what :meth:`bytes_of` of this or another cache returned."""

    @abstractmethod
    def zero(self, cells: Int64s | None = None) -> None:
        """Set every byte of some cells, or of all, to 0."""


Array = npt.NDArray[Any]
ALIGNMENT = 64
"""Alignment of arrays in bytes: a line of the processor's cache."""


def zeros(n_bytes: int) -> Bytes:
    """Allocate zeroed bytes, or raise MemoryError; the system takes memory when they are first used."""
    try:
        data = np.zeros(n_bytes + ALIGNMENT, np.uint8)
    except ValueError as error:  # too many bytes for NumPy
        raise MemoryError(str(error)) from None
    start = -data.ctypes.data % ALIGNMENT
    return data[start : start + n_bytes]


def encoded_rows(type_: StorageType, rotation: int, x: Floats) -> Bytes:
    """Encode rows, float32 [n, width], in a storage type, uint8 [n, bytes of a row]."""
    made = np.empty((len(x), type_.bytes(x.shape[1])), np.uint8)
    _native.store_rows(pool(), type_.native, rotation, x, made, np.arange(len(x)))
    return made


class HostLayer(LayerStorage[Array]):
    """Keys or values of one layer on the CPU."""

    def __init__(self, format: LayerFormat) -> None:
        super().__init__(format)
        self.bytes, element = zeros(self.nbytes), format.type.element
        flat = self.bytes if element is None else self.bytes.view(element)
        self.data: Array = flat.reshape(self.taken_shape(format.n_cells))

    @property
    def address(self) -> int:
        return self.bytes.ctypes.data

    @property
    def rows(self) -> Bytes | None:
        return None if self.by_channel else self.bytes.reshape(self.n_cells, self.row_bytes)

    def write(self, cells: Int64s, rows: Array) -> None:
        if not self.dim:  # the model's values are part of its keys
            return
        own = self.rows
        if own is None:
            elements = self.encoded(rows).view(self.data.dtype)
            self.put_bytes(cells, np.ascontiguousarray(elements.T).view(np.uint8))
        else:
            x = np.ascontiguousarray(rows, np.float32).reshape(len(rows), self.heads * self.dim)
            _native.store_rows(pool(), self.type.native, self.rotation, x, own, cells)

    def read(self, cells: Int64s) -> Array:
        if not self.dim:
            return np.empty((len(cells), self.heads, 0), np.float32)
        own = self.rows
        if own is None:
            own = np.ascontiguousarray(np.moveaxis(self.take(cells), -1, 0)).view(np.uint8)
            own, cells = own.reshape(len(cells), self.row_bytes), np.arange(len(cells))
        made = np.empty((len(cells), self.heads * self.dim), np.float32)
        _native.load_rows(pool(), self.type.native, self.rotation, own, cells, made)
        return made.reshape(len(cells), self.heads, self.dim)

    @staticmethod
    def joined(rows: Sequence[Array]) -> Array:
        return np.concatenate(rows, 1)

    def take(self, cells: Int64s) -> Array:
        return self.data.take(cells, self.axis)

    def put(self, cells: Int64s, taken: Array) -> None:
        self.data[self._at(cells)] = taken

    def put_back(self, cells: Int64s) -> tuple[Any, ...]:
        return self.data.__setitem__, self._at(cells), self.take(cells)

    def encoded(self, rows: Array) -> Bytes:
        x = np.ascontiguousarray(rows, np.float32).reshape(len(rows), self.heads * self.dim)
        return encoded_rows(self.type, self.rotation, x)

    def bytes_of(self, cells: Int64s) -> Bytes:
        rows = self.heads * self.dim if self.by_channel else len(cells)
        flat: Bytes = self.take(cells).ravel().view(np.uint8)
        return flat.reshape(rows, len(flat) // max(rows, 1))

    def put_bytes(self, cells: Int64s, data: Bytes) -> None:
        flat = np.ascontiguousarray(data).ravel().view(self.data.dtype)
        self.put(cells, flat.reshape(self.taken_shape(len(cells))))

    def zero(self, cells: Int64s | None = None) -> None:
        if cells is None:
            self.data.fill(0)
        else:
            self.data[self._at(cells)] = 0

    def _at(self, cells: Int64s) -> tuple[Any, ...]:
        return (..., cells) if self.by_channel else (cells,)


class StateArrays:
    """Makes and changes arrays of recurrent states, float32 [rows, ...]: NumPy arrays on the CPU."""

    def zeros(self, shape: Sequence[int]) -> Any:
        """A new array of zeros."""
        return zeros(4 * int(np.prod(shape, dtype=np.int64))).view(np.float32).reshape(shape)

    def grown(self, array: Any, n_rows: int) -> Any:
        """A copy with ``n_rows`` rows; the new ones are 0."""
        made = self.zeros((n_rows, *array.shape[1:]))
        made[: len(array)] = array
        return made

    def row(self, array: Any, row: int) -> Any:
        """A copy of one row."""
        return array[row].copy()

    def zero(self, array: Any, rows: Sequence[int]) -> None:
        """Set rows to 0."""
        array[list(rows)] = 0

    def host(self, array: Any, rows: Sequence[int]) -> Floats:
        """Copies of rows in the host's memory."""
        taken: Floats = array[list(rows)]
        return taken

    def of_host(self, values: Floats) -> Any:
        """Values from the host's memory, to assign to rows."""
        return values

    def address(self, array: Any) -> int:
        """The memory address of an array."""
        return int(array.ctypes.data)
