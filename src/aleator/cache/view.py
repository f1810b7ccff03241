"""The cells of a cache as text and as a picture: owners, positions, and pending shifts."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import numpy as np

from aleator._native import Cells
from aleator.core.arrays import Int32s
from aleator.core.errors import ParameterError
from aleator.core.packages import require_matplotlib
from aleator.core.records import dataclass


@dataclass(frozen=True)
class Span:
    """What one sequence owns: cells, lowest and highest position, and contiguous runs of both."""

    seq: int
    cells: int
    low: int
    high: int
    runs: int


@dataclass(frozen=True, eq=False)
class Frame:
    """A snapshot of the cells.

    Attributes:
        label: what has just happened.
        owner: int32 [size], each cell's lowest owner; -1: free.
        owners: int32 [size], the number of owners.
        positions: int32 [size]; -1: free.
        shifts: int32 [size], by how many positions the key must still be rotated.
        spans: the sequences that own cells.
    """

    label: str
    owner: Int32s
    owners: Int32s
    positions: Int32s
    shifts: Int32s
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
        """The label, the map, pending shifts, and the sequences.

        In the map a character is a cell, or several if the cells would not fit in 4 lines: "." free,
        a digit its owner ("+" above 9), "M" several owners, ":" cells of different kinds.  "~" below
        a cell means that its key must still be rotated.

        Args:
            width: characters per line, 20 or more.
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
    """Take a snapshot of the cells."""
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


FREE, SHARED = "#eef0f4", "#22262e"
COLOURS = (
    "#3568a8", "#d9694a", "#4f9d69", "#e0a100", "#8064a2",
    "#2fa4b5", "#b5578a", "#8c6d46", "#7f8c9b", "#9bbf3b",
)  # fmt: skip


def plot_frames(frames: Sequence[Frame], path: str | PathLike[str]) -> None:
    """Draw frames of one cache, oldest first, as PNG: the cells of each, and the positions of the last."""
    if not frames or len({len(f.owners) for f in frames}) != 1:
        raise ParameterError("frames must be one or more of the same cache")
    _, figure_class = require_matplotlib()
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    size, last = len(frames[0].owners), frames[-1]
    height = 0.9 + 0.34 * len(frames) + 3.4
    figure = figure_class(figsize=(13, height), dpi=100)
    grid = figure.add_gridspec(
        2, 1, height_ratios=[0.34 * len(frames) + 0.2, 3.0], hspace=0.9 / height * 3,
        left=0.19, right=0.985, top=1 - 0.45 / height, bottom=0.55 / height,
    )  # fmt: skip
    palette = np.array([to_rgb(c) for c in (*COLOURS, FREE, SHARED)])
    image = np.stack(
        [np.where(f.owners > 1, 11, np.where(f.owner < 0, 10, f.owner % 10)) for f in frames]
    )
    cells = figure.add_subplot(grid[0])
    cells.imshow(
        palette[image], aspect="auto", interpolation="nearest",
        extent=(-0.5, size - 0.5, len(frames) - 0.5, -0.5),
    )  # fmt: skip
    cells.set_yticks(range(len(frames)), [f.label for f in frames], fontsize=9)
    cells.hlines(np.arange(1, len(frames)) - 0.5, -0.5, size - 0.5, color="white", linewidth=2)
    for y, f in enumerate(frames):
        waiting = np.flatnonzero(f.shifts)
        cells.plot(waiting, np.full(len(waiting), y + 0.3), "|", color="white", markersize=3)
    cells.tick_params(length=0)
    seqs = sorted({s.seq for f in frames for s in f.spans})
    keys = [Patch(color=COLOURS[s % 10], label=f"sequence {s}") for s in seqs[:10]]
    keys += [Patch(color=SHARED, label="shared"), Patch(color=FREE, label="free")]
    cells.legend(
        handles=keys, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(keys), frameon=False,
        fontsize=9, handlelength=1, columnspacing=1.2,
    )  # fmt: skip
    places = figure.add_subplot(grid[1], sharex=cells)
    used = np.flatnonzero(last.owners)
    colours = palette[image[-1][used]]
    stored = last.positions[used] - last.shifts[used]
    places.vlines(used, stored, last.positions[used], color=colours, alpha=0.35, linewidth=1)
    places.scatter(used, last.positions[used], c=colours, s=max(4, min(26, 4000 / size)))
    places.set(xlabel="cell", ylabel="position", xlim=(-0.5, size - 0.5))
    places.set_title(last.summary(), fontsize=9, loc="left")
    places.grid(alpha=0.2)
    for axes in (cells, places):
        for side in ("top", "right", "left", "bottom"):
            axes.spines[side].set_visible(axes is places and side in ("left", "bottom"))
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise ParameterError("png", f"cannot write {path}: {error.strerror or error}") from None
