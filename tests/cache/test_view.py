"""The cells as text and picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aleator.cache.view import take_frame
from aleator.core.errors import ParameterError
from tests.cache.test_cells import put
from tests.drawn import differences

pytest.importorskip("torch")

from aleator._native import Cells
from aleator.cache.kv_cache import KVCache, LayerShape


def cells() -> Cells:
    made = Cells(20, 16)
    put(made, range(4), 0, 1)
    put(made, [4], 0)
    put(made, [4, 5], 1)
    put(made, range(2), 12)
    made.seq_rm(0, 4, -1)
    made.seq_add(12, 0, -1, 3)
    return made


def test_text() -> None:
    frame = take_frame(cells(), "a label")
    assert frame.text(20).splitlines() == [
        "a label: 8 of 20 cells used, the last is 8, 1 hole, 4 shared, 2 to be rotated",
        "MMMM.11++...........",
        "       ~~",
        "  0: 4 cells, positions 0 to 3, 1 run",
        "  1: 6 cells, positions 0 to 5, 2 runs",
        "  12: 2 cells, positions 3 to 4, 1 run",
    ]
    assert (frame.top, frame.holes) == (9, 1)
    assert take_frame(Cells(4, 1)).text() == "0 of 4 cells used\n...."


def test_many_cells_to_a_character() -> None:
    made = Cells(200, 2)
    put(made, range(130), 0)
    put(made, range(5), 1)
    lines = take_frame(made).text(20).splitlines()
    assert lines[1:6] == [
        "0" * 20,
        "0" * 20,
        "000:1" + "." * 15,
        "." * 7,
        "(3 cells to a character)",
    ]


def test_picture(drawn: list[Any], tmp_path: Path) -> None:
    cache = KVCache(
        [LayerShape(1, 8, 8)], 64, n_seq_max=13, rotate=lambda layer, keys, deltas: keys
    )
    frames = [cache.frame("empty")]
    put(cache.cells, range(9), 0)
    frames.append(cache.frame("nine"))
    cache.plot(tmp_path / "one.png")
    cache.plot(tmp_path / "two.png", frames)
    cache.seq_cp(0, 2, 4, 6)
    cache.seq_add(0, 7, -1, 3)
    put(cache.cells, range(20, 23), 12)
    frames.append(cache.frame("shared, moved, and one more"))
    cache.plot(tmp_path / "three.png", frames)
    cache.plot(tmp_path / "large.png", [KVCache([LayerShape(1, 8, 8)], 300).frame()])
    assert differences("cells", drawn) == []
    for name in ("one", "two"):
        data = (tmp_path / f"{name}.png").read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) > 5000
    other = KVCache([LayerShape(1, 8, 8)], 32).frame()
    with pytest.raises(ParameterError, match="same cache"):
        cache.plot(tmp_path / "no.png", [*frames, other])
    with pytest.raises(ParameterError, match="cannot write"):
        cache.plot(tmp_path / "no" / "no.png")


@pytest.mark.parametrize(
    ("size", "width", "lines"),
    [(80, 20, 4), (81, 20, 4), (160, 20, 4), (161, 20, 4), (80, 5, 4), (30, 21, 2), (4, 4, 1)],
)
def test_cells_fill_four_lines_at_most(size: int, width: int, lines: int) -> None:
    made = Cells(size, 12)
    for seq in (9, 10):
        put(made, [0], seq)
    text = take_frame(made).text(width).splitlines()
    scale = -(-size // (4 * max(width, 20)))
    pictures = [line for line in text[1:] if set(line) <= set("9+:.")]
    assert "".join(pictures) == ("9+" if scale == 1 else ":") + "." * (
        -(-size // scale) - (2 if scale == 1 else 1)
    )
    assert max(map(len, pictures)) <= max(width, 20)
    assert len(pictures) <= lines
    assert (f"({scale} cells to a character)" in text) == (scale > 1)
