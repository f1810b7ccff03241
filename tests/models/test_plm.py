"""plm against llama.cpp's answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.check_dense import check_golden
from tests.models.check_directory import check_directory


@pytest.mark.parametrize("name", ["plm"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path)


def test_a_directory_gives_the_files_logits(tmp_path: Path) -> None:
    check_directory(
        "plm",
        tmp_path,
        model_type="plm",
        hidden_act="relu2",
        kv_lora_rank=32,
        q_lora_rank=None,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
    )
