"""Filling holes with the last cells, by llama.cpp's plan of 2024."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aleator.core.records import dataclass


@dataclass(frozen=True)
class Defragmented:
    """What :meth:`KVCache.defrag` did: runs (from, to, length), and how many cells there were before."""

    moves: tuple[tuple[int, int, int], ...]
    n_cells: int

    def cells(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The cells that moved and where to, int64 each."""
        src = [np.arange(a, a + n) for a, _, n in self.moves]
        dst = [np.arange(b, b + n) for _, b, n in self.moves]
        return np.concatenate([[], *src]).astype(np.int64), np.concatenate([[], *dst]).astype(
            np.int64
        )
