"""Layers divided between native code and Triton's kernels: the bits of all in native code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wide_models import MODELS, SMALL, write_model, write_wide

from aleator.cache.devices import CPU
from aleator.core.errors import ParameterError
from aleator.generate import Batch, Context
from aleator.models import build_decoder, exact, open_weights
from aleator.models.placement import EXACT, ON_CPU, Place
from aleator.models.triton.decoder import TritonDecoder

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

CASES = [
    ("llama", "Q4_K"), ("qwen3moe", "Q8_0"), ("gemma3", "Q6_K"), ("jamba", "Q4_0"), ("qwen35", "Q5_K"),
    ("phi3-longrope", "Q8_0"),
]  # fmt: skip


def divided(path: Path, on_device: int) -> TritonDecoder:
    weights = open_weights(path)
    places = [ON_CPU] * (weights.config.n_layers - on_device) + [Place(CPU, EXACT)] * on_device
    decoder = build_decoder(weights, places=places)
    assert isinstance(decoder, TritonDecoder)
    return decoder


def decoded(context: Context) -> tuple[list[bytes], bytes]:
    """Logits of two sequences, prefilled in pieces, moved where that can be, and written on; and the cache."""
    rng, rows = np.random.default_rng(8), []
    ids = [int(i) for i in rng.integers(context.n_vocab, size=14)]
    rows.append(context.decode(Batch.one(ids[:5], 0, logits=True)))
    rows.append(context.decode(Batch.one(ids[5:9], 5)))
    context.decode(Batch.one(ids[9:11], 0, seq=1, logits=False))
    decoder, moved = context.decoder, 9
    if decoder.architecture.shifts and decoder.architecture.recurrent is None:
        context.cache.seq_rm(0, 1, 3)
        context.cache.seq_add(0, 3, -1, -2)
        moved = 7
    for i in range(2):
        batch = Batch()
        batch.add(ids[11 + i], moved + i, [0], logits=True)
        batch.add(ids[12 + i], 2 + i, [1], logits=True)
        rows.append(context.decode(batch))
    return [np.asarray(each).tobytes() for each in rows], context.cache.state_write()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_native_bits(name: str, kind: str, tmp_path: Path) -> None:
    path = write_wide(tmp_path / "m.gguf", MODELS[name], kind)
    weights = open_weights(path)
    options: dict[str, Any] = {"n_ctx": 64, "n_seq_max": 2, "n_threads": 1}
    right = decoded(Context(build_decoder(weights), **options))
    for on_device in range(1, weights.config.n_layers):
        with np.errstate(all="ignore"):
            assert decoded(Context(divided(path, on_device), **options)) == right


def test_hidden_states_and_sizes(tmp_path: Path) -> None:
    path = write_wide(tmp_path / "m.gguf", MODELS["llama"], "Q8_0")
    native, ours = build_decoder(open_weights(path)), divided(path, 1)
    rows = [
        Context(each, n_ctx=16, embeddings=True).decode(Batch.one([3, 4, 5], logits=True))
        for each in (native, ours)
    ]
    assert rows[0].tobytes() == rows[1].tobytes()
    assert ours.front is not None
    assert ours.embedding is None
    assert len(ours.layers) == 1


def test_layers_that_need_what_others_have(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SMALL["gemma4-shared-keys"])
    asked = "n_gpu_layers=1 with dtype='exact', the default on a GPU: in gemma4"
    with pytest.raises(ParameterError, match=f"{asked} every layer takes .*: give 6 or 0"):
        divided(path, 1)
    config = replace(open_weights(path).config, per_layer=None)
    shared = config.keys_of(5)
    assert shared < 5
    few = rf"later layers read the keys of layer {shared}: give {6 - shared} or more, 6 or 0"
    with pytest.raises(ParameterError, match=f"{asked} {few}"):
        exact._check_division(config, 5)
    exact._check_division(config, min(map(config.keys_of, range(4, 6))))
