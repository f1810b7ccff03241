"""maincoder against llama.cpp's answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.check_dense import check_golden, check_no_shift


@pytest.mark.parametrize("name", ["maincoder"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


def test_a_shift_is_refused(tmp_path: Path) -> None:
    check_no_shift("maincoder", tmp_path)
