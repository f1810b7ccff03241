"""The types that keys and values are stored in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aleator._native import find_nonfinite
from aleator.core.errors import ParameterError
from aleator.core.records import dataclass


@dataclass(frozen=True)
class StorageType:
    """How elements become bytes.

    Attributes:
        name: as users write it.
        ggml: its number in ggml's files.
        block: elements that are stored together.
        block_bytes: bytes of so many elements.
        element: NumPy's type of one stored element, of bf16 its bits; None where a block has no such elements.
        scales: where a block's floating-point numbers are, counted in bytes from its beginning.
        exponent: the bits of their exponents, which are all set in NaN and infinity.

    """

    name: str
    ggml: int
    block: int
    block_bytes: int
    element: type[np.generic] | None = None
    scales: tuple[int, ...] = (0,)
    exponent: int = 0x7C00  # of float16, as in all blocks

    @property
    def native(self) -> str:
        """The name that native code knows it by."""
        return self.name.upper()

    def bytes(self, n: int) -> int:
        """Bytes of ``n`` elements, a multiple of ``block``."""
        return n // self.block * self.block_bytes

    def is_finite(self, data: npt.NDArray[np.uint8]) -> bool:
        """Whether stored bytes of any shape, C-contiguous, hold neither NaN nor infinity."""
        width = 4 if self.exponent > 0xFFFF else 2
        flat = data.reshape(-1)
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
    """The type of this name; ParameterError, naming ``parameter``, if there is none."""
    if not isinstance(name, str) or name not in TYPES:
        raise ParameterError(
            parameter, f"{parameter} must be one of {', '.join(TYPES)}, not {name!r}"
        )
    return TYPES[name]
