"""The benchmark of generating runs on any file, and counts what a token's matrices take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_generate import expected, main
from make_models import SPECS, write_model

from aleator.models import open_weights


def test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_model(tmp_path / "m.gguf", SPECS["qwen3moe"])
    orders = ["decode 2 1", "prefill 4", "beams 3 2"]
    words = ["-m", str(path), "--orders", *orders, "--threads", "1", "--quick"]
    main([*words, "--folder", str(tmp_path), "--out", str(tmp_path / "found")])
    said = capsys.readouterr().out
    assert "## Decode at depth, tokens/s" in said
    assert "| model | 1 before |" in said
    facts = json.loads((tmp_path / "found.json").read_text())["models"]["m"]
    assert facts["speeds"]["decode 2 1"]["aleator"] > 0
    assert facts["speeds"]["prefill 4"]["aleator"] > 0
    assert facts["speeds"]["beams 3 2"]["aleator"] > 0
    assert "## Search with beams, tokens/s" in said
    weights = open_weights(path)
    one, total = expected(weights)
    assert (facts["weight_bytes"], facts["all_bytes"]) == (one, total)
    experts = sum(weights.stored(n).data.size for n in weights.names() if "_exps" in n)
    assert total - one == experts * 6 // 8 + weights.stored("token_embd.weight").data.size
    assert 0 < facts["touched_bytes"] <= path.stat().st_size + 4096


def test_types_of_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_model(tmp_path / "m.gguf", SPECS["llama-one-layer"])
    words = ["-m", str(path), "--cache-types", "f32", "f16", "--orders", "decode 2 5"]
    main([*words, "--threads", "1", "--folder", str(tmp_path), "--out", str(tmp_path / "found")])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| m | 5 |")]
    assert [row.split(" | ")[2] for row in rows] == ["f32", "f16"]
    kept = json.loads((tmp_path / "found.json").read_text())["models"]["m"]["cache_bytes"]
    assert kept["f32"] == 2 * kept["f16"]


def test_an_order_that_is_none(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SPECS["llama-one-layer"])
    with pytest.raises(SystemExit, match="no order: 'decode 2'"):
        main(["-m", str(path), "--orders", "decode 2", "--out", str(tmp_path / "found")])
