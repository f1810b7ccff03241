"""A model of tools/hybrid_models.py against llama.cpp's answers (tools/golden_models.py)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_models import HYBRID, write_hybrid

from aleator.core.errors import CannotRewind
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder
from aleator.models.hub.bundled import bundled_model
from tests.models.check_golden import (
    FORMS,
    check_hybrid_script,
    check_prefill_and_greedy,
    check_recurrent_script,
    relative,
    tokens_of,
)
from tests.models.check_kept import check_rewinds, check_texts

GOLDEN = Path(__file__).parents[1] / "data" / "golden_hybrid"
N_STATE = 6


def decoder_of(name: str, folder: Path, form: str = "auto") -> Decoder:
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_hybrid(path, HYBRID[name])
    return build_decoder(open_weights(path), form=form)


def context_of(decoder: Decoder, **options: Any) -> Any:
    types: dict[str, Any] = {"type_k": "f32", "type_v": "f32"} if decoder.cache_shapes else {}
    return Context(decoder, n_ctx=128, **types, **options)


def check_golden(name: str, folder: Path, tolerance: float = 1e-5) -> None:
    """Logits in both forms, a greedy continuation, forked sequences, a state, and what edits answer."""
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        golden = {f"{name}/{key}": arrays[key] for key in arrays.files}
    for form in FORMS:
        decoder = decoder_of(name, folder, form)
        check_prefill_and_greedy(decoder, name, golden, tolerance)
        script = check_hybrid_script if HYBRID[name].has_attention else check_recurrent_script
        script(decoder, name, golden)
    check_edits(decoder_of(name, folder), name, golden, tolerance)


def check_edits(decoder: Decoder, name: str, golden: Any, tolerance: float) -> None:
    """Answers of removals, and llama.cpp's own state of a sequence, restored."""
    tokens = tokens_of(decoder)
    context = context_of(decoder, n_seq_max=4, flash_attn=False)
    cache = context.cache
    context.decode(Batch.one(tokens[:N_STATE], 0))
    state, own = golden[f"{name}/state"].tobytes(), cache.state_write(0)
    assert len(own) == len(state)
    answers = [removed(cache, p0, p1) for p0, p1 in ((3, -1), (2, 4), (9, 12))]
    for held in (state, own):
        cache.seq_rm(1)
        cache.state_read(held, 1)
        row = np.asarray(context.decode(Batch.one([tokens[N_STATE]], N_STATE, seq=1)))
        assert relative(row, golden[f"{name}/restored"]) < tolerance
    assert [*answers, 1] == golden[f"{name}/answers"].tolist()
    with pytest.raises(CannotRewind):
        cache.sequence(1).truncate(3)
    cache.check()


def removed(cache: Any, p0: int, p1: int) -> int:
    """1, or 0 where the states are not held that the rest would need."""
    try:
        cache.seq_rm(0, p0, p1)
    except CannotRewind:
        return 0
    return 1


def check_reuse(name: str, folder: Path) -> None:
    """See :func:`check_rewinds`."""
    check_rewinds(decoder_of(name, folder))


def check_generation(name: str, folder: Path) -> None:
    """See :func:`check_texts`."""
    spec = replace(HYBRID[name], n_vocab=2048)
    check_texts(write_hybrid(folder / "m.gguf", spec, tokenizer_from=bundled_model()))


def check_shift(name: str, folder: Path) -> None:
    """Keys that are rotated to other positions give what they gave before: positions are relative."""
    decoder = decoder_of(name, folder)
    text = [int(t) for t in np.random.default_rng(5).integers(0, decoder.config.n_vocab, 12)]
    rows = []
    for moved in (0, 3):
        context = context_of(decoder)
        context.decode(Batch.one(text[:-1]))
        context.cache.seq_add(0, 0, -1, moved)
        rows.append(np.asarray(context.decode(Batch.one(text[-1:], len(text) - 1 + moved)))[0])
    assert relative(rows[1], rows[0]) < 1e-5
    assert rows[0].tobytes() != rows[1].tobytes()  # it was rotated
