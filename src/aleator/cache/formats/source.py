"""A checked reader for the bytes of a state."""

from __future__ import annotations

import struct

import numpy as np

from aleator.core.arrays import Bytes, Int32s
from aleator.core.errors import Corrupt, Incompatible, ParameterError


class Source:
    """Bytes read in order; Corrupt if they end too early."""

    def __init__(self, data: bytes | memoryview) -> None:
        try:
            self._data = memoryview(data).cast("B")
        except TypeError:
            raise ParameterError(f"blob must be bytes, not {type(data).__name__}") from None
        self.offset = 0

    @property
    def left(self) -> int:
        """Bytes not yet read."""
        return len(self._data) - self.offset

    def take(self, n: int, field: str) -> memoryview:
        """The next n bytes."""
        if n > self.left:
            raise Corrupt(self.offset, f"{field} needs {n} bytes, and {self.left} are left")
        self.offset += n
        return self._data[self.offset - n : self.offset]

    def array(self, dtype: str, n: int, field: str) -> Int32s:
        """The next n numbers; a view."""
        return np.frombuffer(self.take(n * np.dtype(dtype).itemsize, field), dtype)

    def rows(self, n: int, row: int, field: str) -> Bytes:
        """The next n rows of bytes; a view."""
        return np.frombuffer(self.take(n * row, field), np.uint8).reshape(n, row)

    def u32(self, field: str) -> int:
        """The next number."""
        return int(struct.unpack("<I", self.take(4, field))[0])

    def u64(self, field: str) -> int:
        """The next number."""
        return int(struct.unpack("<Q", self.take(8, field))[0])

    def expect(self, field: str, have: int, want: int) -> None:
        """Raise Incompatible unless ``have`` equals ``want``."""
        if have != want:
            raise Incompatible(field, have, want)
