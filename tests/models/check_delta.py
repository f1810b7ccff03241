"""A model with gated delta nets against llama.cpp's logits and states, and in a cache of two pools."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delta_models import DELTAS, write_delta

from aleator.core.errors import CannotRewind
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder
from tests.models.check_golden import (
    FORMS,
    check_hybrid_script,
    check_prefill_and_greedy,
    relative,
    tokens_of,
)
from tests.models.check_kept import check_rewinds
from tests.models.check_transformers import SMALL

F32: dict[str, Any] = {"type_k": "f32", "type_v": "f32"}
N_STATE = 6

SIZES: dict[str, Any] = SMALL | {
    "num_hidden_layers": 4, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 12,
}  # fmt: skip
"""Of transformers' configurations."""

MIXTURE: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}  # fmt: skip
"""Of those with experts."""


@cache
def _golden(architecture: str) -> dict[str, Any]:
    path = Path(__file__).parents[1] / "data" / "logits" / f"{architecture}.npz"
    with np.load(path) as arrays:
        return dict(arrays)


def decoder_of(name: str, folder: Path, form: str = "native") -> Decoder:
    return build_decoder(open_weights(write_delta(folder / "m.gguf", DELTAS[name])), form=form)


def check_golden(name: str, folder: Path) -> None:
    """Prefill, continuation and forked sequences in both forms; llama.cpp's state of a sequence."""
    golden, shifts = _golden(DELTAS[name].arch), DELTAS[name].arch == "qwen3next"
    for form in FORMS:
        decoder = decoder_of(name, folder, form)
        check_prefill_and_greedy(decoder, name, golden)
        check_hybrid_script(decoder, name, golden)
        tokens = tokens_of(decoder)
        context: Any = Context(decoder, n_ctx=64, n_seq_max=2, flash_attn=False, **F32)
        can_shift, cut, beyond, read = golden[f"{name}/answers"].tolist()
        assert (can_shift, cut, beyond, read) == (shifts, 0, 1, 1)
        assert context.cache.can_shift() == bool(can_shift)
        context.decode(Batch.one(tokens[:N_STATE], 0))
        with pytest.raises(CannotRewind):
            context.cache.seq_rm(0, 3, -1)
        context.cache.seq_rm(0, 9, 12)
        if not shifts:  # M-RoPE: llama.cpp's cells have further positions
            continue
        context.cache.state_read(golden[f"{name}/state"].tobytes(), 1)
        row = context.decode(Batch.one(tokens[N_STATE : N_STATE + 1], N_STATE, 1))
        assert relative(row, golden[f"{name}/restored"]) < 1e-5
        ours = np.frombuffer(context.cache.state_write(0), np.uint8)
        assert len(ours) == len(golden[f"{name}/state"])


def check_cache(name: str, folder: Path) -> None:
    """See :func:`check_rewinds`."""
    check_rewinds(decoder_of(name, folder))
