from __future__ import annotations

from pathlib import Path

import bench_device_sampling as bench
import pytest
import torch


@pytest.mark.parametrize("name", bench.WORKS)
def test_a_work_runs_on_the_cpu_with_the_host_s_tokens(name: str, tmp_path: Path) -> None:
    out = tmp_path / "results.md"
    grid = ["--rows", "1", "9", "--vocab", "500", "--dtype", "bfloat16", "--replays", "2"]
    assert bench.main(["--device", "cpu", "--works", name, *grid, "--out", str(out)]) == 0
    table = [line for line in out.read_text().splitlines() if line.startswith("|")]
    header, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table)
    assert [(row[0], row[1]) for row in rows] == [(bench.WORKS[name].name, b) for b in ("1", "9")]
    for row in rows:
        assert len(row) == len(header)
        assert row[header.index("wrong")] == "0"
        assert float(row[header.index("warm")]) > 0
        assert (row[header.index("sort")] == "") == bench.WORKS[name].mixed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_results_say_so(tmp_path: Path) -> None:
    out = tmp_path / "results.md"
    assert bench.main(["--rows", "8", "--out", str(out)]) == 0
    assert "**not run**" in out.read_text()
    assert (
        f"python benchmarks/bench_device_sampling.py --rows 8 --out {out.name}" in out.read_text()
    )
