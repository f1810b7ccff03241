"""The cells of a cache as a picture, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import numpy as np

from aleator.cache.cells.view import Frame
from aleator.core.errors import ParameterError
from aleator.core.packages import require_matplotlib

FREE, SHARED = "#eef0f4", "#22262e"
COLOURS = (
    "#3568a8", "#d9694a", "#4f9d69", "#e0a100", "#8064a2",
    "#2fa4b5", "#b5578a", "#8c6d46", "#7f8c9b", "#9bbf3b",
)  # fmt: skip


def plot_frames(frames: Sequence[Frame], path: str | PathLike[str]) -> None:
    """Draw frames as PNG: above, a row of cells for each; below, the positions in the last one.

    Args:
        frames: at least one, of one cache, oldest first.
        path: the file.

    Raises:
        ParameterError: no frames, or of caches of different sizes.
        ImportError: matplotlib is not installed.

    """
    if not frames or len({len(f.owners) for f in frames}) != 1:
        raise ParameterError("frames", "frames must be one or more of the same cache")
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
