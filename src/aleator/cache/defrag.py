"""Filling holes with the last cells, by llama.cpp's plan of 2024."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aleator.core.errors import ParameterError

if TYPE_CHECKING:
    from aleator.cache.kv_cache import KVCache


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


def defragment(cache: KVCache, threshold: float | None, max_moves: int | None) -> Defragmented:
    """See :meth:`KVCache.defrag`; within a frame."""
    if max_moves is not None and max_moves < 0:
        raise ParameterError("max_moves", f"max_moves must not be negative, not {max_moves}")
    top, n = cache.cells.top, cache.n
    if threshold is not None and (1 - cache.used / n if n >= 128 else 0) <= threshold:
        return Defragmented((), top)
    moves = cache.cells.defrag_plan(-1 if max_moves is None else max_moves)
    done = Defragmented(tuple(moves), top)
    if moves:
        src, dst = done.cells()
        cache.cells.move(moves)
        cache.keep_rows(dst)
        cache.copy_rows(src, dst)
    return done
