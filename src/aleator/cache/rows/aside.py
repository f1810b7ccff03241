"""Rows that are about to be overwritten, kept aside until a step is over."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aleator._native import Cells
from aleator.cache.journal import Journal
from aleator.cache.rows.rows import Rows


class Aside:
    """Which cells' rows the innermost frame of a journal has kept aside, so that none is kept twice.

    Args:
        cells: positions and owners.
        rows: what the cells store.

    """

    def __init__(self, cells: Cells, rows: Rows) -> None:
        self._cells, self._rows = cells, rows
        self._kept, self._frame = np.zeros(0, np.bool_), 0

    def keep(self, journal: Journal, cell_ids: npt.NDArray[np.int64]) -> None:
        """Keep what cells stored that were used before, as something else is about to be stored there.

        Outside of frames there is nothing to keep it for.
        """
        cells = self._cells.used_before(cell_ids)
        if len(cells) == 0:
            return
        if self._frame != journal.frame:
            self._kept = np.zeros(self._cells.size, np.bool_)
            self._frame = journal.frame
        cells = cells[~self._kept[cells]]
        if len(cells):
            self._rows.preserve(journal, cells)
            self._kept[cells] = True
