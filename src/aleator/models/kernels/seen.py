"""Which cells the tokens of a micro-batch see, in the form that kernels read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from aleator.cache.rows.batch import MicroBatch, WindowBatch
from aleator.core.arrays import Int32s, Int64s


class VisibleCells(NamedTuple):
    """What T tokens see of one pool's cells, on the host; a token's cells are numbered from 0."""

    # int32 [5, T]: where the token's list begins in ``cells``, how many of its first cells are sinks, how
    # many it skips before the others, how many it sees, and its position
    tokens: Int32s
    cells: Int32s  # int32 [n], the lists one after the other
    # int32 [n]: the index of each cell's delta if keys are shifted, their positions if keys are raw
    rows: Int32s | None
    deltas: Int32s | None  # int32, the distinct deltas, 0 first; None: keys are raw
    positions: Int32s | None  # int32 [n], of the listed cells


def visible_cells(batch: MicroBatch, raw: bool = False, distances: bool = False) -> VisibleCells:
    """What a micro-batch's tokens see; with ``distances`` also the positions, for ALiBi."""
    first, sunk = (batch.first, batch.sunk) if isinstance(batch, WindowBatch) else (None, None)
    return listed(
        *batch.seen,
        first,
        sunk,
        batch.positions,
        batch.seen_positions() if distances else None,
        raw,
    )


def apart(batch: MicroBatch) -> bool:
    """Whether the last cell that each token sees is its own, and it sees no other new one."""
    seen, ids = batch.seen, batch.cell_ids
    first = seen.start[seen.list]
    last = first + seen.counts - 1
    if (seen.counts < 1).any() or (seen.cells[last] != ids).any():
        return False
    new = np.zeros(1 + seen.cells.max(), bool)
    new[ids] = True
    places = np.flatnonzero(new[seen.cells])
    return bool((np.searchsorted(places, first) == np.searchsorted(places, last)).all())


def listed(
    cells: Int32s,
    start: Int64s,
    which: Int32s,
    counts: Int64s,
    deltas: Int32s | None,
    first: Int64s | None = None,
    sinks: Int64s | None = None,
    positions: Int32s | None = None,
    cell_positions: Int32s | None = None,
    raw: bool = False,
) -> VisibleCells:
    """What tokens see, from the arrays of :class:`~aleator.cache.rows.rows.Seen` and those of windows."""
    none = np.zeros_like(counts)
    low = none if first is None else first
    sunk = none if sinks is None else np.where(low > sinks, sinks, 0)
    low = low if sinks is None else np.where(low > sinks, low, 0)
    n = sunk + np.maximum(counts - low, 0)
    at = none if positions is None else positions
    tokens = np.stack([start[which], sunk, low, n, at]).astype(np.int32)
    rows, distinct = deltas, None
    if raw:
        rows = np.zeros_like(cells) if deltas is None else deltas
        if rows.min(initial=0) < 0:
            raise ValueError("a key's position is negative")
    else:
        distinct = np.zeros(1, np.int32)
        if deltas is not None:
            others = np.unique(deltas)
            distinct = np.concatenate((distinct, others[others != 0])).astype(np.int32)
            order = np.argsort(distinct)
            rows = order[np.searchsorted(distinct[order], deltas)].astype(np.int32)
    return VisibleCells(tokens, cells, rows, distinct, cell_positions)


class SeenTensors:
    """What the tokens of a micro-batch see, on a device.

    Attributes:
        tokens: see :class:`VisibleCells`, int32, like the others.
        longest: the most cells that a token sees; kernels are launched for this many.
        raw: keys are stored as at position 0.
        deltas: the distinct deltas, int32, on the host; None: keys are raw.
        n_rotations: rows of angles that rotated positions need; 1: none, as keys have not moved.
    """

    def __init__(
        self,
        seen: VisibleCells,
        tokens: torch.Tensor,
        cells: torch.Tensor,
        rows: torch.Tensor | None,
        positions: torch.Tensor | None,
        longest: int | None = None,
        rotations: int | None = None,
    ) -> None:
        """Take the arrays of ``seen``, on the device.

        ``longest`` and ``rotations`` may be larger than is needed now; None: as large as that.
        """
        self.tokens, self.cells, self.rows, self.positions = tokens, cells, rows, positions
        self.deltas, self.raw, self.n_tokens = seen.deltas, seen.deltas is None, tokens.shape[1]
        self.n_rotations = 1 if seen.deltas is None else len(seen.deltas)
        if seen.deltas is None and seen.rows is not None:
            self.n_rotations = 1 + int(seen.rows.max(initial=0))
        if rotations is not None:
            if rotations < self.n_rotations:
                raise ValueError(f"keys need {self.n_rotations} rotations, more than {rotations}")
            self.n_rotations = rotations
        most = int(seen.tokens[3].max(initial=0))
        self.longest = most if longest is None else longest
        if self.longest < most:
            raise ValueError(f"a token sees {most} cells, more than {longest}")

    @property
    def places(self) -> torch.Tensor:
        """The numbers of the listed cells, int32 [n]; made anew, as a graph keeps only what it makes itself."""
        return torch.arange(len(self.cells), dtype=torch.int32, device=self.cells.device)
