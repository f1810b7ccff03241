"""A model with gated delta nets against llama.cpp's logits and states, and in a cache of two pools."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delta_models import DELTAS, write_delta

from aleator.cache.prefix_index import PrefixConfig
from aleator.core.errors import CannotRewind
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder
from tests.models.check_golden import (
    check_hybrid_script,
    check_prefill_and_greedy,
    relative,
    tokens_of,
)

F32: dict[str, Any] = {"type_k": "f32", "type_v": "f32"}
N_STATE = 6
TEXT = [int(t) for t in np.random.default_rng(4).integers(0, 64, 120)]

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
"""Of transformers' configurations."""

MIXTURE: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}
"""Of those with experts."""


@cache
def _golden(architecture: str) -> dict[str, Any]:
    path = Path(__file__).parents[1] / "data" / "logits" / f"{architecture}.npz"
    with np.load(path) as arrays:
        return dict(arrays)


def decoder_of(folder: Path, name: str, form: str = "native") -> Decoder:
    return build_decoder(open_weights(write_delta(folder / "m.gguf", DELTAS[name])), form=form)


def check_golden(folder: Path, name: str) -> None:
    """Prefill, continuation and forked sequences in both forms; llama.cpp's state of a sequence."""
    golden, shifts = _golden(DELTAS[name].arch), DELTAS[name].arch == "qwen3next"
    for form in ("native", "torch"):
        decoder = decoder_of(folder, name, form)
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


def check_cache(folder: Path, name: str) -> None:
    """Rewinds, checkpoints, states of the whole cache and cached prefixes."""
    decoder = decoder_of(folder, name)

    def feed(context: Any, seq: int, tokens: list[int]) -> Any:
        logits: Any = context.decode(Batch.one(tokens, None, seq))[-1]
        context.cache.check()
        return logits

    def fresh(tokens: list[int]) -> Any:
        return feed(Context(decoder, n_ctx=160, **F32), 0, tokens)

    prefix = PrefixConfig(block=4, spacing=8)
    context: Any = Context(
        decoder, n_ctx=160, n_ubatch=16, n_seq_max=2, n_rollback=3, prefix=prefix, **F32
    )
    cache = context.cache
    feed(context, 0, TEXT[:50])
    text = cache.sequence(0)
    with pytest.raises(CannotRewind) as caught:
        text.truncate(46)
    assert caught.value.oldest_legal == 47
    mark = text.checkpoint()
    feed(context, 0, TEXT[50:60])
    text.restore(mark)
    assert np.array_equal(feed(context, 0, TEXT[50:60]), fresh(TEXT[:60]))
    other: Any = Context(decoder, n_ctx=160, n_seq_max=2, **F32)
    other.cache.state_read(cache.state_write())
    assert np.array_equal(feed(other, 0, TEXT[60:63]), fresh(TEXT[:63]))
    cache.seq_rm(0)
    feed(context, 0, TEXT[:60])
    assert cache.keep(0, TEXT[:60])
    cache.seq_rm(0)
    for parts, found in ((60, 60), (59, 56), (23, 16), (7, 0)):
        tokens = [*TEXT[:parts], 1, 2, 3]
        assert cache.reuse(1, tokens) == found
        assert np.array_equal(feed(context, 1, tokens[found:]), fresh(tokens))
        cache.seq_rm(1)
