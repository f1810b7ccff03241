"""The cells of a cache as text: who owns which, at which positions, and what waits for a shift."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aleator.core.records import dataclass

if TYPE_CHECKING:
    from aleator._native import Cells


@dataclass(frozen=True)
class Span:
    """What one sequence owns: cells, lowest and highest position, and runs of cells and positions in a row."""

    seq: int
    cells: int
    low: int
    high: int
    runs: int


@dataclass(frozen=True, eq=False)
class Frame:
    """The cells at one moment.

    Attributes:
        label: what has just happened.
        owner: int32 [size], each cell's lowest owner; -1: free.
        owners: int32 [size], how many it has.
        positions: int32 [size]; -1: free.
        shifts: int32 [size], by how many positions its key must still be rotated.
        spans: the sequences that own any cells.

    """

    label: str
    owner: npt.NDArray[np.int32]
    owners: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    shifts: npt.NDArray[np.int32]
    spans: tuple[Span, ...]

    @property
    def top(self) -> int:
        """Index of the highest used cell + 1."""
        used = np.flatnonzero(self.owners)
        return int(used[-1]) + 1 if len(used) else 0

    @property
    def holes(self) -> int:
        """Runs of free cells below :attr:`top`."""
        free = np.concatenate([[False], self.owners[: self.top] == 0])
        return int((free[1:] & ~free[:-1]).sum())

    def summary(self) -> str:
        """One line of counts."""
        used = int((self.owners > 0).sum())
        parts = [f"{used} of {len(self.owners)} cells used", f"the last is {self.top - 1}"]
        if used == 0:
            parts.pop()
        for n, what in (
            (self.holes, "hole" if self.holes == 1 else "holes"),
            (int((self.owners > 1).sum()), "shared"),
            (int((self.shifts != 0).sum()), "to be rotated"),
        ):
            if n:
                parts.append(f"{n} {what}")
        return ", ".join(parts)

    def text(self, width: int = 100) -> str:
        """The label, the map, what waits for a shift, and the sequences.

        In the map a character is a cell, or several where the cells would not fit 4 lines: "." free,
        a digit its owner ("+" above 9), "M" several owners, ":" cells of different kinds.  "~" below
        a cell means that its key is still to be rotated.

        Args:
            width: characters of a line, 20 or more.

        """
        width = max(width, 20)
        size = len(self.owners)
        scale = max(1, -(-size // (4 * width)))
        kinds = np.where(self.owners > 1, -2, self.owner)
        signs, marks = "", ""
        for start in range(0, size, scale):
            kind = kinds[start : start + scale]
            signs += _sign(int(kind[0])) if (kind == kind[0]).all() else ":"
            marks += "~" if self.shifts[start : start + scale].any() else " "
        lines = [f"{self.label}: {self.summary()}" if self.label else self.summary()]
        for start in range(0, len(signs), width):
            lines.append(signs[start : start + width])
            if marks[start : start + width].strip():
                lines.append(marks[start : start + width].rstrip())
        if scale > 1:
            lines.append(f"({scale} cells to a character)")
        for s in self.spans:
            runs = "1 run" if s.runs == 1 else f"{s.runs} runs"
            lines.append(f"  {s.seq}: {s.cells} cells, positions {s.low} to {s.high}, {runs}")
        return "\n".join(lines)


def _sign(kind: int) -> str:
    return "." if kind == -1 else "M" if kind == -2 else str(kind) if kind < 10 else "+"


def take_frame(cells: Cells, label: str = "") -> Frame:
    """What the cells hold now."""
    owner, owners = cells.census()
    spans = tuple(
        Span(
            seq,
            cells.seq_cells(seq),
            cells.seq_pos_min(seq),
            cells.seq_pos_max(seq),
            len(cells.seq_runs(seq)),
        )
        for seq in range(cells.n_seq_max)
        if cells.seq_cells(seq)
    )
    return Frame(label, owner, owners, cells.positions.copy(), cells.shifts, spans)
