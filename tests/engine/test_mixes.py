"""What an engine makes of a request does not depend on what else it makes."""

from __future__ import annotations

from pathlib import Path

from engine_mixes import make_model, run


def test_requests_of_random_mixes_equal_those_made_alone(tmp_path: Path) -> None:
    paths = [make_model(tmp_path, name) for name in ("llama:Q8_0", "qwen2:Q4_0")]
    compared, wrong = run(paths, mixes=20, seed=7)
    assert compared > 60
    assert wrong == []
