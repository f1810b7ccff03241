"""The cells of one micro-batch, on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aleator._native import Cells, before_window, seen_cells
from aleator.cache.rows.rows import Rows, Seen
from aleator.core.arrays import Int32s, Int64s

if TYPE_CHECKING:
    from aleator.cache.rows.tensors import CellTensors, WindowTensors


class MicroBatch:
    """The cells of one micro-batch of T tokens, on the host.

    Attributes:
        cell_ids: int64 [T], the cell of each token.
        positions: int32 [T].
        rows: what the cells store.
        seen: the cells that each token attends to.
        tokens: the tokens' indices in the batch.
        outputs: int64, indices within the micro-batch of the tokens whose logits are computed.
        sections: int32 [T, 4], (t, y, x, z) of each token; None if a position is one number.
    """

    def __init__(
        self,
        cells: Cells,
        rows: Rows,
        cell_ids: Int64s,
        positions: Int32s,
        seqs: Int32s,
        causal: bool = True,
        tokens: slice | Int64s = slice(None),
        outputs: Int64s | None = None,
        sections: Int32s | None = None,
    ) -> None:
        self._cells, self.rows, self.cell_ids, self.positions = cells, rows, cell_ids, positions
        self.tokens, self.sections = tokens, sections
        self.outputs = np.arange(len(cell_ids)) if outputs is None else outputs
        keys = rows.key_positions
        keys[cell_ids] = 0 if rows.k_storage == "raw" else positions
        yx = None if sections is None else np.ascontiguousarray(sections[:, 1:3])
        self.seen = Seen(*seen_cells(cells, positions, seqs, causal, keys, yx))

    def seen_positions(self) -> Int32s:
        """The positions of the listed cells, int32, one list after the other."""
        listed: Int32s = self._cells.positions[self.seen.cells]
        return listed

    def tensors(self) -> CellTensors:
        """The cells for layers that compute with torch."""
        from aleator.cache.rows.tensors import CellTensors

        return CellTensors(self._cells, self.rows, self.cell_ids, self.seen)


class WindowBatch(MicroBatch):
    """The cells of one micro-batch in a window pool.

    Attributes:
        first: int64 [T], the number of leading cells of its list that a token does not see, apart from sinks.
        sunk: int64 [T], the number of leading cells of its list that are sinks; None: there are no sinks.
    """

    def __init__(
        self,
        cells: Cells,
        rows: Rows,
        cell_ids: Int64s,
        positions: Int32s,
        seqs: Int32s,
        window: int,
        sinks: int,
        chunked: bool,
    ) -> None:
        super().__init__(cells, rows, cell_ids, positions, seqs)
        self._lows = positions // window * window if chunked else positions - window + 1
        self._sinks = sinks
        seen = self.seen
        self.first = before_window(
            cells, seen.cells, seen.start, seen.list, positions, window, chunked
        )
        self.sunk: Int64s | None = None
        if sinks:
            within = np.concatenate(([0], np.cumsum(cells.positions[seen.cells] < sinks)))
            self.sunk = np.diff(within[seen.start])[seen.list].astype(np.int64)

    def tensors(self) -> WindowTensors:
        """The cells for layers that compute with torch."""
        from aleator.cache.rows.tensors import WindowTensors

        return WindowTensors(
            self._cells, self.rows, self.cell_ids, self.seen, self._lows, self._sinks
        )
