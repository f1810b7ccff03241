"""Pictures as text: what a figure of matplotlib is made of, so that tests can compare it with a record."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

RECORDS = Path(__file__).parent / "golden" / "drawn"


def _plain(value: Any) -> Any:
    """Numbers rounded, arrays as lists, colours as they are given."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(each) for each in value]
    if isinstance(value, (float, np.floating)):
        return None if np.isnan(value) else float(f"{value:.6g}")
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, (int, str, bool, type(None))) else str(value)


def _text(text: Any) -> list[Any]:
    return [
        text.get_text(), text.get_position(), text.get_fontsize(), text.get_color(),
        text.get_fontweight(), text.get_rotation(), text.get_ha(), text.get_va(),
        text.get_fontfamily(),
    ]  # fmt: skip


def _legend(legend: Any) -> list[Any]:
    shown = [_text(t)[0] for t in legend.get_texts()]
    colours = [
        [h.get_facecolor(), h.get_edgecolor(), h.get_hatch()]
        for h in legend.legend_handles
        if hasattr(h, "get_hatch")
    ]
    anchor = legend.get_bbox_to_anchor().bounds
    sizes = [legend._fontsize, legend.handlelength, legend.columnspacing, legend.labelspacing]
    return [shown, colours, anchor, legend._loc, legend._ncols, legend.get_frame_on(), sizes]


def _axis(axis: Any) -> dict[str, Any]:
    ticks = axis.get_ticklabels()
    major = axis.get_major_formatter()
    return {
        "label": axis.get_label_text(),
        "scale": axis.get_scale(),
        "at": axis.get_majorticklocs(),
        "names": [_text(t)[:1] + _text(t)[2:] for t in ticks],
        "format": [major(v, 0) for v in (0.25, 1.0, 2000.0)],
        "minor": [axis.get_minor_formatter()(v, 0) for v in (2.0,)],
        "marks": [
            [t.tick1line.get_markersize(), t.get_pad(), t.label1.get_visible()]
            for t in axis.get_major_ticks()[:1]
        ],
        "grid": [
            [line.get_visible(), line.get_color(), line.get_alpha()]
            for line in axis.get_gridlines()[:1]
        ],
    }


def _pixels(array: Any) -> list[Any]:
    """The colours of an image, and its rows with a letter for each."""
    colours, which = np.unique(array.reshape(-1, 3), axis=0, return_inverse=True)
    letters = np.array(list("abcdefghijklmnop"))[which.reshape(array.shape[:2])]
    return [colours, ["".join(row) for row in letters]]


def _axes(axes: Any) -> dict[str, Any]:
    legend = axes.get_legend()
    return {
        "place": axes.get_position().bounds,
        "x": [axes.get_xlim(), _axis(axes.xaxis)],
        "y": [axes.get_ylim(), _axis(axes.yaxis)],
        "margins": axes.margins(),
        "title": _text(axes.title) + _text(axes._left_title),
        "texts": [[*_text(t), getattr(t, "xyann", None)] for t in axes.texts],
        "bars": [
            [p.get_xy(), p.get_width(), p.get_height(), p.get_facecolor(), p.get_edgecolor(),
             p.get_hatch(), p.get_linewidth()]
            for p in axes.patches
        ],
        "lines": [
            [line.get_xdata(), line.get_ydata(), line.get_color(), line.get_marker(),
             line.get_markersize(), line.get_markeredgewidth(), line.get_linestyle(),
             line.get_label(), line.get_clip_on(), line.get_transform() == axes.transData]
            for line in axes.lines
        ],
        "collections": [
            [type(c).__name__, c.get_offsets(), c.get_facecolor(), c.get_edgecolor(), c.get_alpha(),
             c.get_linewidth(), [p.vertices for p in c.get_paths()],
             c.get_sizes() if hasattr(c, "get_sizes") else None, c.get_label()]
            for c in axes.collections
        ],
        "images": [[*_pixels(i.get_array()), i.get_extent(), i.get_interpolation()] for i in axes.images],
        "spines": {side: spine.get_visible() for side, spine in axes.spines.items()},
        "legend": None if legend is None else _legend(legend),
    }  # fmt: skip


def described(figure: Any) -> Any:
    """All that a figure shows, as JSON has it."""
    return _plain(
        {
            "size": list(figure.get_size_inches()),
            "texts": [_text(t) for t in figure.texts],
            "title": None if figure._suptitle is None else _text(figure._suptitle),
            "legends": [_legend(each) for each in figure.legends],
            "axes": [_axes(each) for each in figure.axes],
        }
    )


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved from now on, described, and how each was saved."""
    figure_class = pytest.importorskip("matplotlib.figure").Figure
    save, seen = figure_class.savefig, []

    def savefig(figure: Any, path: Any, **how: Any) -> None:
        save(figure, path, **how)
        seen.append([described(figure), how])

    monkeypatch.setattr(figure_class, "savefig", savefig)
    return seen


def differences(name: str, pictures: list[Any]) -> list[str]:
    """Where pictures differ from those on record; with ALEATOR_RECORD=1 they become the record."""
    path = RECORDS / f"{name}.json"
    if os.environ.get("ALEATOR_RECORD"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(pictures, separators=(",", ":")) + "\n")
    return list(_unlike(json.loads(path.read_text()), json.loads(json.dumps(pictures)), name))


def _unlike(old: Any, new: Any, where: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            yield from _unlike(old[key], new[key], f"{where}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from _unlike(a, b, f"{where}[{i}]")
    elif isinstance(old, float) and isinstance(new, (int, float)):
        if abs(old - new) > 1e-4 * max(1.0, abs(old)):
            yield f"{where}: {old} is {new}"
    elif old != new:
        yield f"{where}: {old} is {new}"


def recorded(file: str, key: str, made: Any) -> Any:
    """What is on record of something, which ``made`` should be equal to; ALEATOR_RECORD=1 records it."""
    path = RECORDS / f"{file}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    if os.environ.get("ALEATOR_RECORD"):
        known[key] = json.loads(json.dumps(made))
        lines = (f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known))
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return known.get(key)
