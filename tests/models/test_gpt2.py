"""gpt2 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.check_dense import check_golden, check_transformers, decoder_of

transformers: Any = pytest.importorskip("transformers")
SIZES = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}

NAMES = ["gpt2"]


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    check_golden(name, tmp_path, tolerance=1e-4)


@pytest.mark.parametrize(
    "changes", [{}, {"n_inner": 48, "tie_word_embeddings": False, "scale_attn_weights": False}]
)
def test_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.GPT2Config(**(SIZES | changes))
    check_transformers(transformers.GPT2LMHeadModel(config), tmp_path)


def test_a_position_without_a_vector_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    from aleator.core.errors import InvalidBatch
    from aleator.generate import Batch, Context

    for form in ("native", "torch"):
        context = Context(decoder_of("gpt2", tmp_path, form), n_ctx=64)
        context.decode(Batch.one([1, 2, 3], 125))
        with pytest.raises(InvalidBatch, match="position 128"):
            context.decode(Batch.one([4], 128))
        assert context.cache.seq_pos_max(0) == 127
