"""Exponents, tables and plots of how a step's time grows."""

from __future__ import annotations

import json
from pathlib import Path

import growth
import pytest
import site_pictures

ROWS = [
    {"axis": "context", "x": 1, "ms": {"aleator": 10.0, "llama.cpp flash": 20.0, "llama.cpp plain": 15.0}},
    {"axis": "context", "x": 100, "ms": {"aleator": 10.0, "llama.cpp flash": 20.0, "llama.cpp plain": 30.0}},
    {"axis": "context", "x": 200, "ms": {"aleator": 20.0, "llama.cpp flash": 80.0}},
    {"axis": "context", "x": 400, "ms": {"aleator": 40.0}},
    {"axis": "context", "x": 800, "left_out": "a round would take some 9 s"},
    {"axis": "vocabulary", "x": 1000, "ms": {"aleator": 6.0}, "drawing_ms": {"aleator": 0.1}},
    {"axis": "vocabulary", "x": 4000, "ms": {"aleator": 12.0}, "drawing_ms": {"aleator": 0.3}},
]  # fmt: skip


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with two runs; the later one counts."""
    lines = [json.dumps({"about": {"date": "2026-11-22"}}), *map(json.dumps, ROWS)]
    (tmp_path / "bench_growth.2026-11-22.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "bench_growth.2026-11-21.jsonl").write_text("")
    return tmp_path


def test_power_of_the_last_points() -> None:
    line = [(1.0, 10.0), (100.0, 10.0), (200.0, 20.0), (400.0, 40.0)]
    found = growth.power(line)
    assert found is not None
    assert (round(found.exponent, 6), found.low, found.high) == (1.0, 100.0, 400.0)
    assert growth.power(line[:1]) is None
    exponent, far = growth.fit([(x, 3 * x**0.5) for x in (1.0, 2.0, 8.0)])
    assert (round(exponent, 9), round(far, 9)) == (0.5, 0.0)


def test_the_faster_variant_counts(results: Path) -> None:
    path = growth.latest(results)
    assert path is not None
    about, rows = growth.read(path)
    assert about == {"date": "2026-11-22"}
    assert growth.points(rows, "context", "llama.cpp") == [(1, 15.0), (100, 20.0), (200, 80.0)]
    assert growth.shares(rows, "aleator") == pytest.approx((6 / 3000 * 4000 / 12, 0.3 / 12))
    assert growth.shares(rows, "llama.cpp") is None


def test_damaged_lines_and_points_left_out(results: Path) -> None:
    file = results / "bench_growth.2026-11-22.jsonl"
    expected = growth.shares(growth.read(file)[1], "aleator")
    left_out = {"axis": "vocabulary", "x": 9000, "left_out": "a round would take some 9 s"}
    with file.open("a") as end:
        end.write(json.dumps(left_out) + '\n3\n{"x": 5}\n{"axis": "context", "x": 1')
    _, rows = growth.read(file)
    assert rows == [*ROWS, left_out]
    assert growth.shares(rows, "aleator") == expected
    assert "- Left out: context 800, vocabulary 9,000." in growth.summary(results)


def test_tables(results: Path) -> None:
    told = growth.summary(results)
    assert (
        "- Tokens before, 1 to 400: 10 to 40 ms (llama.cpp 1.50 to 4.00 times), exponent " in told
    )
    assert "exponent 1.00 from 100 (2.00 from 100)." in told
    assert "largest vocabulary's token: 67% (2.5%)." in told
    assert "- Left out: context 800." in told
    assert "[All points](../benchmarks/results/bench_growth.2026-11-22.md)" in told
    whole = growth.report(results / "bench_growth.2026-11-22.jsonl")
    assert "| 100 | 10.000 | 20.000 / 30.000 | 2.00 |  |  |" in whole
    assert "| 800 |  |  |  |  | a round would take some 9 s |" in whole
    assert "aleator: x to the power of 1.00, from 100 to 400." in whole


def test_nothing_measured_yet(tmp_path: Path) -> None:
    assert growth.summary(tmp_path) == "Not measured yet."
    assert "not measured yet" in site_pictures.growth_of_time(tmp_path).svg()


def test_plots(results: Path) -> None:
    drawn = site_pictures.growth_of_time(results).svg()
    assert drawn.count("<polyline") == 3
    assert [growth.shown(ms) for ms in (0.0512, 40.64, 999.4, 999.6, 12345.6)] == [
        "0.0512", "40.6", "999", "1,000", "12,346",
    ]  # fmt: skip
    assert ">tokens before<" in drawn
    assert [site_pictures.short(x) for x in (512, 8192, 32768, 32000, 943)] == [
        "512", "8 k", "32 k", "32 k", "943",
    ]  # fmt: skip
