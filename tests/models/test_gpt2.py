"""gpt2 against llama.cpp's answers and transformers' logits."""

from __future__ import annotations

from pathlib import Path

import pytest

from aleator.core.errors import InvalidBatch
from aleator.generate import Batch, Context
from tests.models.check_golden import FORMS, decoder_of
from tests.models.check_transformers import like_transformers

test_transformers = like_transformers(
    "GPT2Config", {}, {"n_inner": 48, "tie_word_embeddings": False, "scale_attn_weights": False},
    sizes={"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
)  # fmt: skip


def test_a_position_without_a_vector_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    for form in FORMS:
        context = Context(decoder_of("gpt2", tmp_path, form), n_ctx=64)
        context.decode(Batch.one([1, 2, 3], 125))
        with pytest.raises(InvalidBatch, match="position 128"):
            context.decode(Batch.one([4], 128))
        assert context.cache.seq_pos_max(0) == 127
