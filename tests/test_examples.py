from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

EXPECTED = {
    "simple.py": "[length; ",
    "batch.py": "the same alone: True",
    "low_level.py": "logits -> top_k -> top_p -> temperature -> dist",
    "cache_editing.py": "positions became",
    "reproduce.py": "the same in a batch: True",
    "constrain.py": "fields: age",
    "own_sampler.py": "kept: 0 1 2",
    "speculate.py": "the same text: True",
    "policy_gradient.py": "importance ratios of the last batch: mean",
    "sharded_vocabulary.py": "the tokens of one process: True",
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert EXPECTED[name] in run.stdout
    assert run.stderr == ""
