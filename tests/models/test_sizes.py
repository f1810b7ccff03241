"""Bytes that layers will take in a cache are those that a cache of theirs has."""

from __future__ import annotations

from pathlib import Path

import pytest
from wide_models import MODELS, write_wide

from aleator.generate import Context
from aleator.models import build_decoder, open_weights
from aleator.models.sizes import cache_of_layers


@pytest.mark.parametrize(
    ("name", "type_k", "type_v"),
    [
        ("llama", "f16", "q8_0"),
        ("gemma3", "bf16", "f32"),
        ("falcon-h1", "f16", "f16"),
        ("qwen35", "f32", "q4_0"),
        ("mamba", "f16", "f16"),
        ("lfm2", "q8_0", "f16"),
        ("deepseek2", "f16", "f16"),
    ],
)
@pytest.mark.parametrize(("n_ctx", "n_seq_max"), [(64, 1), (2304, 3)])
def test_bytes_are_those_of_the_cache(
    name: str, type_k: str, type_v: str, n_ctx: int, n_seq_max: int, tmp_path: Path
) -> None:
    weights = open_weights(write_wide(tmp_path / "m.gguf", MODELS[name], "F32"))
    decoder = build_decoder(weights)
    context = Context(
        decoder, n_ctx=n_ctx, n_seq_max=n_seq_max, n_ubatch=min(512, n_ctx), n_batch=min(512, n_ctx),
        type_k=type_k, type_v=type_v,
    )  # fmt: skip
    sizes = cache_of_layers(weights.config, n_ctx, type_k, type_v, n_seq_max)
    assert len(sizes) == weights.config.n_layers
    found = sum(size for _, size in context.cache.pool.layer_bytes)
    states = sum(each for _, _, each in sizes)
    assert bool(states) == bool(decoder.recurrent_shapes)
    if n_seq_max == 1 or not states:  # these are the states of one sequence
        assert sum(k + v for k, v, _ in sizes) + states == found
