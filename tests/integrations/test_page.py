"""Python examples of pages about other packages run where these are installed, and print what they say."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integrations.page import examples, packages, run

BLOCKS = [block for _, block in examples()]


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [name for name in packages(block) if find_spec(name) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    monkeypatch.chdir(tmp_path)
    printed, said = run(block)
    assert printed == said
