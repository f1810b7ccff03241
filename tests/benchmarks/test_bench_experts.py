"""The benchmark of mixtures of experts runs, and counts what a token's matrices take."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_experts import expected, main
from make_models import SPECS, write_model

from aleator.models import open_weights


def test_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_model(tmp_path / "m.gguf", SPECS["qwen3moe"])
    main([str(path), "--tokens", "2", "--threads", "1"])
    assert "| decode tokens/s |" in capsys.readouterr().out
    weights = open_weights(path)
    one, total = expected(weights)
    experts = sum(weights.stored(n).data.size for n in weights.names() if "_exps" in n)
    assert total - one == experts * 6 // 8 + weights.stored("token_embd.weight").data.size
