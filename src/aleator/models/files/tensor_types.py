"""How GGUF and safetensors files store numbers: block sizes, dequantisation, tests for NaN.

Sizes and layouts are those of ggml's ``block_*`` structures (ggml-common.h).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from aleator import _native
from aleator.core.errors import UnsupportedModel

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TensorType:
    """A storage type.

    Attributes:
        name: ggml's.
        id: number of the ggml type.
        block: numbers that are stored together.
        size: bytes that they take.
        exponents: offsets in a block of its floating-point words: the numbers are finite if and only if these
            words are.
        width: bytes of such a word.
        mask: its exponent bits.
    """

    name: str
    id: int
    block: int
    size: int
    exponents: tuple[int, ...] = (0,)
    width: int = 2
    mask: int = 0x7C00


TENSOR_TYPES: dict[str, TensorType] = {
    t.name: t
    for t in (
        TensorType("F32", 0, 1, 4, width=4, mask=0x7F800000),
        TensorType("F16", 1, 1, 2),
        TensorType("BF16", 30, 1, 2, mask=0x7F80),
        TensorType("Q4_0", 2, 32, 18),
        TensorType("Q4_1", 3, 32, 20, (0, 2)),
        TensorType("Q5_0", 6, 32, 22),
        TensorType("Q5_1", 7, 32, 24, (0, 2)),
        TensorType("Q8_0", 8, 32, 34),
        TensorType("Q2_K", 10, 256, 84, (80, 82)),
        TensorType("Q3_K", 11, 256, 110, (108,)),
        TensorType("Q4_K", 12, 256, 144, (0, 2)),
        TensorType("Q5_K", 13, 256, 176, (0, 2)),
        TensorType("Q6_K", 14, 256, 210, (208,)),
        TensorType("IQ4_NL", 20, 32, 18),
        TensorType("IQ4_XS", 23, 256, 136),
    )
}
BY_ID = {t.id: t for t in TENSOR_TYPES.values()}
_DEQUANTISED_AT_ONCE = 1 << 22  # numbers; bounds the memory on top of the result


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as its file stores it.

    Attributes:
        type: name of its storage type.
        shape: in PyTorch's order, rows first.
        data: uint8 ``[number of bytes]``, rows one after the other; read-only, mostly a memory map.
    """

    type: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, values: torch.Tensor) -> StoredTensor:
        """A float32 tensor on the CPU as if a file stored it."""
        import torch

        data = values.contiguous().view(-1).view(torch.uint8).numpy()
        data.flags.writeable = False
        return cls("F32", tuple(values.shape), data)

    @property
    def n_elements(self) -> int:
        """How many numbers the tensor holds."""
        return int(np.prod(self.shape, dtype=np.int64))

    def first_nonfinite(self) -> int | None:
        """Index (in elements, row-major) of the first block with a NaN or an infinity in it.

        Reads the stored bytes once, at about the speed of memory.
        """
        kind = TENSOR_TYPES[self.type]
        hits = [
            _native.find_nonfinite(self.data, offset, kind.size, kind.width, kind.mask)
            for offset in kind.exponents
        ]
        blocks = [hit for hit in hits if hit >= 0]
        return min(blocks) * kind.block if blocks else None

    def to_torch(self, dtype: torch.dtype) -> torch.Tensor:
        """A new tensor of this shape on the CPU, its numbers as ``dtype``."""
        import torch

        if self.type in ("F32", "F16", "BF16"):
            stored = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[self.type]
            out = torch.empty(self.shape, dtype=stored)
            out.view(-1).view(torch.uint8).numpy()[:] = self.data
            return out.to(dtype)
        kind, columns = TENSOR_TYPES[self.type], self.shape[-1]
        raw = self.data.reshape(-1, columns // kind.block * kind.size)
        out = torch.empty(self.shape, dtype=dtype)
        rows = out.view(-1, columns)
        step = max(1, _DEQUANTISED_AT_ONCE // columns)
        for first in range(0, len(raw), step):
            part = _dequantise(raw[first : first + step], kind)
            rows[first : first + step] = torch.from_numpy(part)
        return out


def _dequantise(raw: NDArray[np.uint8], kind: TensorType) -> NDArray[np.float32]:
    import gguf  # takes 0.2 s, and files in F32, F16 or BF16 need none of it

    quants: Any = gguf.quants
    # Blocks of a file may hold any bits; infinities among the scales are reported, not computed.
    with np.errstate(all="ignore"):
        out: NDArray[np.float32] = quants.dequantize(raw, gguf.GGMLQuantizationType(kind.id))
    return out


def unsupported_type(path: object, tensor: str, type_id: int) -> UnsupportedModel:
    """The error for a tensor whose ggml type is not in :data:`TENSOR_TYPES`."""
    import gguf

    try:
        name = gguf.GGMLQuantizationType(type_id).name
    except ValueError:
        name = f"number {type_id}"
    return UnsupportedModel(
        f"{path}: tensor {tensor!r} has the type {name}, which is not supported; supported are "
        f"{', '.join(TENSOR_TYPES)}"
    )
