"""maincoder against llama.cpp's answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.check_dense import check_golden, check_no_shift
from tests.models.check_directory import check_directory


@pytest.mark.parametrize("name", ["maincoder"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


def test_a_shift_is_refused(tmp_path: Path) -> None:
    check_no_shift("maincoder", tmp_path)


def test_a_directory_gives_the_files_logits(tmp_path: Path) -> None:
    check_directory("maincoder", tmp_path, model_type="maincoder")
