"""Blocks of 32 elements in ggml's q8_0 and q4_0, turned by a Hadamard matrix where that helps.

A block's scale follows from its largest element.  Where one channel is much larger than the others,
as keys have it, these lose most of their bits; a Hadamard matrix spreads it over its block first.
It is its own inverse, so reading turns back, and native attention turns the query instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from aleator import _native
from aleator.cache.storage.storage import Rows, Storage
from aleator.cache.storage.types import StorageType
from aleator.cache.threads import torch_pool


def hadamard_block(shapes: Sequence[tuple[int, int]], keys: bool) -> int:
    """Elements turned together, by llama.cpp 0.5's rule; 0: nothing is turned.

    All layers' heads must be of one size, a multiple of 64: then values are turned in blocks of 64 and
    keys in blocks of the largest power of two that divides the size.
    """
    sizes = {dim for _, dim in shapes}
    if len(sizes) != 1 or (dim := sizes.pop()) % 64:
        return 0
    return dim & -dim if keys else 64


class QuantisedStorage(Storage):
    """Layers of bytes [n_cells, bytes of a cell]."""

    def _allocate(self, heads: int, dim: int, device: torch.device) -> torch.Tensor:
        size = self.type.bytes(heads * dim)
        return torch.zeros(self.n_cells, size, dtype=torch.uint8, device=device)

    def write(self, layer: int, cells: Rows, rows: torch.Tensor) -> None:
        """[T, heads, dim] into the cells."""
        to, x = self.layers[layer], rows.reshape(len(rows), -1).float()
        if to.device.type != "cpu":
            to[cells] = quantised(self.type, hadamard(x, self.rotation))
            return
        _native.store_rows(
            torch_pool(),
            self.type.native,
            self.rotation,
            x.contiguous().numpy(),
            to.numpy(),
            _index(cells),
        )

    def encoded(self, layer: int, rows: torch.Tensor) -> npt.NDArray[np.uint8]:
        """Bytes [T, bytes of a cell]."""
        made = np.empty((len(rows), self.row_bytes(layer)), np.uint8)
        x = rows.reshape(len(rows), -1).float().cpu().contiguous().numpy()
        _native.store_rows(
            torch_pool(), self.type.native, self.rotation, x, made, np.arange(len(rows))
        )
        return made

    def read(self, layer: int, cells: Rows) -> torch.Tensor:
        """float32 [n, heads, dim]."""
        stored, (heads, dim) = self.layers[layer], self.shapes[layer]
        if stored.device.type != "cpu":
            x = dequantised(self.type, stored[cells])
            return hadamard(x, self.rotation).view(-1, heads, dim)
        index = _index(cells)
        y = torch.empty(len(index), heads, dim)
        _native.load_rows(
            torch_pool(),
            self.type.native,
            self.rotation,
            stored.numpy(),
            index,
            y.view(len(index), -1).numpy(),
        )
        return y


def _index(cells: Rows) -> npt.NDArray[np.int64]:
    if isinstance(cells, slice):
        return np.arange(cells.start, cells.stop)
    return cells.numpy()


# The same for other devices, in torch


def hadamard(x: torch.Tensor, block: int) -> torch.Tensor:
    """Rows [n, width] turned in blocks of ``block`` elements; 0: as they are."""
    if not block:
        return x
    matrix = torch.ones(1, 1, device=x.device)
    while len(matrix) < block:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return (x.view(-1, block) @ matrix).mul_(block**-0.5).view(x.shape)


def quantised(type_: StorageType, x: torch.Tensor) -> torch.Tensor:
    """float32 [n, width] as bytes [n, bytes of a row], rounded as ggml's reference quantiser does."""
    v = x.view(len(x), -1, 32)
    largest = v.abs().amax(-1, keepdim=True)
    poison = (v * 0).sum(-1, keepdim=True)  # NaN where something is not finite
    if type_.name == "q8_0":
        d = largest / 127
        scaled = (v * torch.where(d == 0, 0, 1 / d)).nan_to_num(-127).clamp(-127, 127)
        below_half = torch.full_like(scaled, 0.49999997)  # half away from zero, exactly
        q = (scaled + below_half.copysign(scaled)).trunc().to(torch.int8).view(torch.uint8)
    else:
        first = (v.abs() == largest).to(torch.uint8).argmax(-1, keepdim=True)
        d = v.gather(-1, first) / -8
        shifted = (v * torch.where(d == 0, 0, 1 / d) + 8.5).nan_to_num(0).clamp(0, 15)
        q = shifted.to(torch.uint8)
        q = q[..., :16] | q[..., 16:] << 4
    scale = torch.where(poison == 0, d, poison).half().view(torch.uint8)
    return torch.cat((scale, q), -1).view(len(x), -1)


def dequantised(type_: StorageType, rows: torch.Tensor) -> torch.Tensor:
    """What :func:`quantised` made, as float32 [n, width]."""
    blocks = rows.reshape(len(rows), -1, type_.block_bytes)
    d = blocks[..., :2].contiguous().view(torch.float16).float()
    q = blocks[..., 2:]
    if type_.name == "q8_0":
        v = q.contiguous().view(torch.int8).float()
    else:
        v = torch.cat((q & 15, q >> 4), -1).float() - 8
    return (v * d).view(len(rows), -1)
