"""The benchmark of growth measures its points once, goes on, and says what it leaves out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import bench_growth
import growth
import pytest
from bench_growth import Point
from make_models import SPECS, write_model

POINTS = [
    Point("context", 1, "tiny", 0, ("filled 2 1",), 2),
    Point("context", 100, "tiny", 0, ("filled 2 100",), 2),
    Point("sequences", 2, "tiny", 0, ("batch 2 2",), 2),
    Point("vocabulary", 100, "tiny", 100, ("sampled 3", "drawn 3"), 3),
]


def tiny(folder: Path, size: str, kind: str, n_vocab: int) -> Path:
    path = folder / f"{size}-{n_vocab}.gguf"
    spec = replace(SPECS["llama-one-layer"], n_vocab=n_vocab or 64)
    return path if path.exists() else write_model(path, spec)


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command line, for tiny models and few points."""
    monkeypatch.setattr(bench_growth, "made", tiny)
    monkeypatch.setattr(bench_growth, "points", lambda: POINTS)
    folder = ["--folder", str(tmp_path), "--out", str(tmp_path / "found")]
    return ["--threads", "1", "--rounds", "1", *folder]


def test_goes_on_where_it_ended(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_growth.main([*words, "--axes", "context"])
    file = tmp_path / "found.jsonl"
    first = file.read_text()
    file.write_text(first + '{"axis": "context", "x": 10')  # killed while it wrote
    bench_growth.main(words)
    lines = file.read_text().removeprefix(first).splitlines()
    assert lines.pop(0) == '{"axis": "context", "x": 10'
    rows = [json.loads(line) for line in [*first.splitlines(), *lines]]
    assert [row.get("axis", "about") for row in rows] == [
        "about", "context", "context", "about", "sequences", "vocabulary",
    ]  # fmt: skip
    assert all(row["ms"]["aleator"] > 0 for row in rows if "axis" in row)
    assert 0 < rows[-1]["drawing_ms"]["aleator"] < rows[-1]["ms"]["aleator"] * 10
    assert str(tmp_path) not in rows[0]["about"]["command"]
    assert "## Sequences" in capsys.readouterr().out


def test_points_of_other_threads_are_not_mixed(words: list[str], tmp_path: Path) -> None:
    bench_growth.main([*words, "--axes", "sequences"])
    first = (tmp_path / "found.jsonl").read_text()
    with pytest.raises(SystemExit, match=r"has points with threads 1, not 2: give --again .*--out"):
        bench_growth.main([*words, "--threads", "2"])
    assert (tmp_path / "found.jsonl").read_text() == first


def test_says_what_takes_too_long(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it goes on; with more seconds it measures what it left out."""

    def measured(point: Point, *_: object) -> growth.Row:
        return {"axis": point.axis, "x": point.x, "ms": {"aleator": 1.0}, "round_s": 3.0}

    def left_out() -> dict[float, str]:
        _, rows = growth.read(tmp_path / "found.jsonl")
        return {row["x"]: row["left_out"] for row in rows if "left_out" in row}

    monkeypatch.setattr(bench_growth, "measured", measured)
    monkeypatch.setattr(bench_growth, "points", lambda: POINTS[:1])
    bench_growth.main(words)
    monkeypatch.setattr(bench_growth, "points", lambda: POINTS)
    bench_growth.main([*words, "--most", "11"])
    assert left_out() == {100: "a round would take some 12 s"}
    bench_growth.main([*words, "--most", "13"])
    assert left_out() == {}
