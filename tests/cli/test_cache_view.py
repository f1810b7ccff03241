"""``aleator cache-view``: the default script, scripts of one's own, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command


def test_default_script(aleator: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "cells.png"
    result = aleator("cache-view", "-t", "1", "--png", str(picture))
    assert result.code == 0
    blocks = [block.splitlines() for block in result.out.strip().split("\n\n")]
    assert [b[0].split(":")[0] for b in blocks][::4] == ["decode 0 20", "rm 1", "defrag"]
    assert set(blocks[1][1].rstrip(".")) == {"M"}
    assert "~" in blocks[5][2]
    assert "hole" in blocks[7][0]
    assert "hole" not in blocks[8][0]
    assert blocks[8][1].rstrip(".") == "0" * blocks[7][1].count("0")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_script(aleator: Command) -> None:
    result = aleator(
        *("cache-view", "-t", "1", "-c", "40", "--sequences", "3", "-p", "A"),
        *("--script", "decode 0,1 2; add 1 1 -1 5; div 1 0 -1 2; fork 0 2 1; keep 2; clear"),
    )
    assert result.code == 0
    maps = [block.splitlines()[1].rstrip(".") for block in result.out.strip().split("\n\n")]
    n = maps[0].count("0")
    assert maps[0].count("1") == n
    assert maps[3].startswith("M")
    assert maps[4:] == ["2", ""]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("jump 0", "'jump' is not an operation"),
        ("decode 0", "decode takes 2 whole numbers"),
        ("decode a 3", "whole numbers"),
        ("rm 0 1 2 3", "rm takes 1 to 3"),
        ("fork 0 99", r"dst must lie in [0, 8)"),
    ],
)
def test_refused(aleator: Command, script: str, message: str) -> None:
    result = aleator("cache-view", "-t", "1", "--script", script)
    assert result.code == 2
    assert message in result.err


def test_a_full_cache(aleator: Command) -> None:
    result = aleator("cache-view", "-t", "1", "-c", "16", "--script", "decode 0 40")
    assert result.code == 4
    assert "free cells" in result.err
