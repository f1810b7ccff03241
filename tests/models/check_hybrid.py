"""A model of tools/hybrid_models.py against llama.cpp's answers (tools/golden_models.py)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_models import HYBRID, write_hybrid

from aleator import load
from aleator.cache.prefix_index import PrefixConfig
from aleator.core.errors import CannotRewind
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder
from aleator.models.hub.bundled import bundled_model
from tests.models.check_golden import (
    check_hybrid_script,
    check_recurrent_script,
    relative,
    tokens_of,
)

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
    for form in ("native", "torch"):
        decoder = decoder_of(name, folder, form)
        tokens = tokens_of(decoder)
        context = context_of(decoder)
        rows = np.asarray(context.decode(Batch.one(tokens, 0, logits=True)))
        assert relative(rows[3::4], golden[f"{name}/prefill"]) < tolerance, form
        got: list[int] = []
        row = rows[-1]
        while form == "native" and len(got) < len(golden[f"{name}/greedy"]):
            got.append(int(row.argmax()))
            row = context.decode(Batch.one(got[-1:], len(tokens) + len(got) - 1))[0]
        assert form == "torch" or got == golden[f"{name}/greedy"].tolist()
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
    """Rewinds within ``n_rollback``, and beginnings from the prompt cache, give the bits of a fresh context."""
    decoder = decoder_of(name, folder)
    text = [int(t) for t in np.random.default_rng(4).integers(0, decoder.config.n_vocab, 60)]
    options: dict[str, Any] = {"n_ubatch": 16, "n_seq_max": 2, "n_rollback": 3}
    ctx = context_of(decoder, prefix=PrefixConfig(block=4, spacing=8), **options)

    def feed(context: Any, seq: int, tokens: list[int]) -> bytes:
        return bytes(np.asarray(context.decode(Batch.one(tokens, None, seq)))[-1].tobytes())

    def fresh(tokens: list[int]) -> bytes:
        return feed(context_of(decoder), 0, tokens)

    feed(ctx, 0, text[:40])
    for token in text[40:43]:  # a rewind needs a state of each of these
        feed(ctx, 0, [token])
    ctx.cache.sequence(0).truncate(41)
    assert feed(ctx, 0, [7]) == fresh([*text[:41], 7])
    assert ctx.cache.keep(0, [*text[:41], 7])
    for parts, found in ((41, 40), (24, 24), (7, 0)):
        tokens = [*text[:parts], 1, 2, 3]
        assert ctx.cache.reuse(1, tokens) == found
        assert feed(ctx, 1, tokens[found:]) == fresh(tokens)
        ctx.cache.seq_rm(1)


def check_generation(name: str, folder: Path) -> None:
    """Texts are the same with and without a prompt cache, go on past the context, and from a session."""
    spec = replace(HYBRID[name], n_vocab=2048)
    path = write_hybrid(folder / "m.gguf", spec, tokenizer_from=bundled_model())
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
    model = load(path, n_threads=1)
    first = model.generate("ROMEO: But soft, what light", **options)
    plain = load(path, n_threads=1, prompt_cache=False).generate(first.request.tokens, **options)
    assert first.text == plain.text
    shifted = load(path, n_threads=1, n_ctx=24).generate(
        first.request.tokens, context_shift=True, seed=1, max_tokens=50, ignore_eos=True
    )
    assert len(shifted.tokens) == 50  # which computes them
    assert shifted.stats.context_shifts > 1
    model.save_session(folder / "s", first)
    again = load(path, n_threads=1)
    rest = again.generate(again.load_session(folder / "s"), **options)
    whole = model.generate([*first.request.tokens, *first.tokens], **options)
    assert rest.tokens == whole.tokens
    assert rest.stats.prompt_tokens == 1


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
