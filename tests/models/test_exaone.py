"""exaone against llama.cpp's answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.check_dense import check_golden


@pytest.mark.parametrize("name", ["exaone"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)
