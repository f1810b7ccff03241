"""Single elements, a cell's side by side: [n_cells, heads, dim]."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from aleator.cache.storage.storage import Rows, Storage


class DenseStorage(Storage):
    """Layers of float32, float16 or bfloat16 [n_cells, heads, dim]."""

    def _allocate(self, heads: int, dim: int, device: torch.device) -> torch.Tensor:
        return torch.zeros(self.n_cells, heads, dim, dtype=self.type.dtype, device=device)

    def write(self, layer: int, cells: Rows, rows: torch.Tensor) -> None:
        """[T, heads, dim] into the cells."""
        to = self.layers[layer]
        if isinstance(cells, slice):
            to[cells] = rows
        else:
            to.index_copy_(0, cells, rows.to(to))

    def read(self, layer: int, cells: Rows) -> torch.Tensor:
        """[n, heads, dim] in the stored type."""
        stored = self.layers[layer]
        return stored[cells] if isinstance(cells, slice) else stored.index_select(0, cells)

    def encoded(self, layer: int, rows: torch.Tensor) -> npt.NDArray[np.uint8]:
        """Bytes [T, bytes of a cell]."""
        stored = rows.to("cpu", self.type.dtype).contiguous()
        return stored.view(len(rows), -1).view(torch.uint8).numpy()
