"""Single elements, a channel's cells side by side: [heads, dim, n_cells].

llama.cpp keeps values so without flash attention (``v_trans``): the product with the attention's
weights is then one dot product per channel.  Here it is an option for exchanging its state files.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from aleator.cache.storage.storage import Rows, Storage


class ByChannelStorage(Storage):
    """Layers of float32, float16 or bfloat16 [heads, dim, n_cells]."""

    by_channel = True

    def _allocate(self, heads: int, dim: int, device: torch.device) -> torch.Tensor:
        return torch.zeros(heads, dim, self.n_cells, dtype=self.type.dtype, device=device)

    def write(self, layer: int, cells: Rows, rows: torch.Tensor) -> None:
        """[T, heads, dim] into the cells."""
        to = self.layers[layer]
        channels = rows.permute(1, 2, 0)
        if isinstance(cells, slice):
            to[..., cells] = channels
        else:
            to.index_copy_(-1, cells, channels.to(to))

    def read(self, layer: int, cells: Rows) -> torch.Tensor:
        """[n, heads, dim] in the stored type."""
        stored = self.layers[layer]
        part = stored[..., cells] if isinstance(cells, slice) else stored.index_select(-1, cells)
        return part.permute(2, 0, 1)

    def encoded(self, layer: int, rows: torch.Tensor) -> npt.NDArray[np.uint8]:
        """Bytes [T, bytes of a cell]."""
        stored = rows.to("cpu", self.type.dtype).contiguous()
        return stored.view(len(rows), -1).view(torch.uint8).numpy()
