"""One text and one list of log-probabilities for a seed, whatever the circumstances."""

from __future__ import annotations

import pytest
import server_seeds


def test_a_seed_has_one_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert server_seeds.main(["--seeds", "1", "--models", "llama:F16,llama:Q4_K_M"]) == 0
    assert capsys.readouterr().out.count("12 of 12 equal") == 2
