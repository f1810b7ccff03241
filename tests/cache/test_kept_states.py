"""States at boundaries of texts: what is found, that they are the states, what they cost, what goes first."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_models import SPECS, write_model

from aleator import load
from aleator.cache.pools.kept_states import MAX_ENDS, MAX_SPACED, kept_rows
from aleator.cache.prefix_index import PrefixConfig
from aleator.cache.recurrent import RecurrentCache, RecurrentShape
from aleator.core.errors import CacheError
from aleator.generate import Batch, Context
from aleator.models.decoder import Decoder
from aleator.models.hub.bundled import bundled_model
from tests.cache.test_recurrent import decoder as decoder

TEXT = [int(t) for t in np.random.default_rng(6).integers(0, 64, 300)]
SMALL = PrefixConfig(block=4, texts=4, spacing=8)
ROW = 8  # bytes of a state of RecurrentShape(1, 1, 1)


def feed(ctx: Any, tokens: list[int], seq: int = 0) -> Any:
    logits: Any = ctx.decode(Batch.one(tokens, None, seq))[-1]
    ctx.cache.check()
    return logits


def bare(states: int, spacing: int = 4, texts: int = 8) -> RecurrentCache:
    prefix = PrefixConfig(block=2, texts=texts, spacing=spacing, bytes=states * ROW)
    return RecurrentCache([RecurrentShape(1, 1, 1)], n_seq_max=2, prefix=prefix)


def place(cache: RecurrentCache, n: int, seq: int = 0) -> None:
    """What a decode of ``n`` tokens does, but for computing anything."""
    with cache.step(cache.plan(Batch.one([0] * n, None, seq))) as step:
        for _ in step:
            pass


def run(cache: RecurrentCache, text: list[int]) -> int:
    """Compute a text and keep it; returns how many tokens were computed."""
    found = cache.reuse(0, text)
    place(cache, len(text) - found)
    assert cache.keep(0, text)
    cache.seq_rm(0)
    cache.check()
    return len(text) - found


@pytest.mark.parametrize("parts", [[40], [1] * 40, [3, 30, 7], [8] * 5])
@pytest.mark.parametrize("native", [True, False])
def test_states_at_boundaries_are_the_states(
    decoder: Decoder, parts: list[int], native: bool
) -> None:
    ctx: Any = Context(decoder, prefix=SMALL, n_ubatch=20)
    if not native:
        ctx._native = None
    at = 0
    for n in parts:
        feed(ctx, TEXT[at : at + n])
        at += n
    kept = ctx.cache.kept.of(0)
    assert [position + 1 for _, position in kept] == [8, 16, 24, 32, 40]
    for row, position in kept:
        fresh: Any = Context(decoder)
        feed(fresh, TEXT[: position + 1])
        newest = fresh.cache.recurrent.newest_row(0)
        for ours, theirs in zip(
            [*ctx.cache.conv, *ctx.cache.ssm], [*fresh.cache.conv, *fresh.cache.ssm], strict=True
        ):
            np.testing.assert_allclose(ours[row], theirs[newest], rtol=1e-4, atol=1e-5)


def test_a_text_goes_on_from_the_last_boundary_before_it_parts(decoder: Decoder) -> None:
    ctx: Any = Context(decoder, prefix=SMALL, n_seq_max=2)
    feed(ctx, TEXT[:45])
    assert ctx.cache.keep(0, TEXT[:45])
    for same, expected in ((45, 45), (44, 40), (40, 40), (39, 32), (8, 8), (7, 0)):
        text = [*TEXT[:same], 1, 2, 3, 4, 5]
        match = ctx.cache.match(text)
        assert match.length == expected
        ctx.cache.reuse_prefix(1, match)
        fresh = feed(Context(decoder), text)
        got = feed(ctx, text[expected:], 1)
        assert np.abs(got - fresh).max() < 1e-5 * (fresh.max() - fresh.min())
        ctx.cache.seq_rm(1)
    assert "after 32 tokens only" in ctx.cache.match([*TEXT[:39], 1, 2]).why_not[-1]
    match = ctx.cache.match([*TEXT[:39], 1, 2])
    ctx.cache.clear()
    with pytest.raises(CacheError, match="match again"):
        ctx.cache.reuse_prefix(1, match)


def test_ends_of_prompts_stay_when_their_texts_grow() -> None:
    cache = bare(100)
    place(cache, 6)
    cache.keep(0, list(range(6)))
    place(cache, 7)
    cache.keep(0, list(range(13)))
    assert len(cache.kept.index) == 1  # type: ignore[union-attr]
    cache.seq_rm(0)
    for asked, found in ((20, 13), (13, 12), (12, 8), (8, 6), (6, 4)):
        assert cache.match(list(range(asked))).length == found


def test_forks_rewinds_and_edits() -> None:
    cache = bare(100)
    kept: Any = cache.kept
    place(cache, 10)
    cache.seq_cp(0, 1)
    assert kept.of(1) == kept.of(0) != ()
    place(cache, 6, 1)
    assert [p for _, p in kept.of(1)] == [3, 7, 11, 15]
    assert [p for _, p in kept.of(0)] == [3, 7]
    cache.seq_add(0, 0, -1, 5)  # not the state of a text any more
    assert kept.of(0) == ()
    cache.restore(0, cache.checkpoint(1))
    assert kept.of(0) == ()
    cache.seq_keep(1)
    assert [p for _, p in kept.of(1)] == [3, 7, 11, 15]
    cache.seq_rm(1)
    assert cache.states == {}
    cache.check()


def test_a_long_text_has_few_states_and_they_are_spread() -> None:
    cache = bare(1000)
    kept: Any = cache.kept
    for _ in range(50):
        place(cache, 100)
        assert len(kept.of(0)) <= MAX_SPACED
    at = [position + 1 for _, position in kept.of(0)]
    assert at == list(range(256, 5001, 256))
    for n in range(5001, 5001 + 2 * MAX_ENDS):
        place(cache, 1)
        cache.keep(0, [0] * n)
    assert len(kept.of(0)) == len(at) + MAX_ENDS


def test_memory_is_what_was_said() -> None:
    layers = [RecurrentShape(8, 3, 16), RecurrentShape(4, 2, 5)]
    row = 4 * (8 * 19 + 4 * 7)
    prefix = PrefixConfig(bytes=21 * row + 5)
    cache = RecurrentCache(layers, n_seq_max=3, rollback=1, prefix=prefix)
    held = sum(t.nbytes for t in cache.conv + cache.ssm)
    assert held == RecurrentCache.bytes_for(layers, n_seq_max=3, rollback=1, prefix=prefix)
    assert held == RecurrentCache.bytes_for(layers, n_seq_max=3, rollback=1) + 21 * row
    nothing = RecurrentCache(layers, prefix=PrefixConfig(bytes=row - 1))
    place(nothing, 100)
    assert not nothing.keep(0, [0] * 50)
    nothing.keep(0, [0] * 100)
    assert nothing.match([0] * 101).length == 0


def test_the_ends_of_the_oldest_texts_go_first() -> None:
    cache = bare(20)  # of which 12 between steps
    kept: Any = cache.kept
    a, b = [1] * 20, [2] * 20
    run(cache, a), run(cache, b)
    assert kept.held() == 10
    assert run(cache, [*a, 1]) == 1  # b is the oldest now
    run(cache, [3] * 12)
    assert kept.held() == 12
    assert cache.match([*a, 5]).length == 20
    assert cache.match([*b, 5]).length == 12
    assert "after 12 tokens only" in cache.match([*b, 5]).why_not[-1]
    match = cache.match([*b, 5])
    kept.index.pin(match)
    for n in range(4, 8):
        run(cache, [n] * 20)
    assert kept.held() <= 12
    assert cache.match([*b, 5]).length == 12
    assert cache.match([*a, 5]).length == 0
    kept.index.unpin(match)


def test_a_step_takes_what_fits_and_gives_it_back() -> None:
    cache = bare(20)
    kept: Any = cache.kept
    run(cache, [1] * 48)
    assert kept.held() == 12
    before = dict(cache.states)
    stored = []

    def fail() -> None:
        with cache.step(cache.plan(Batch.one([2] * 60))) as step:
            for part in step:
                stored.extend(part.stores[part.stores >= 0].tolist())
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert len(set(stored)) == len(stored) == 8  # after 60, and after 8, 16, ... 56
    assert cache.states == before
    cache.check()
    assert run(cache, [2] * 60) == 60
    assert kept.held() == 12
    assert cache.match([2] * 61).length == 60
    assert cache.match([1] * 49).length == 16


def test_generations_of_each_kind_of_model(tmp_path: Path) -> None:
    prompts = [[5 + i % 50 for i in range(150)] + [70 + q, 71, 72] for q in range(3)]
    for name, later in (("llama", [3, 3]), ("gemma3", [3, 3]), ("mamba", [25, 25])):
        spec = replace(SPECS[name], n_vocab=2048, context=512)
        path = write_model(tmp_path / f"{name}.gguf", spec, tokenizer_from=bundled_model())
        model, forgetful = load(path, n_threads=1), load(path, n_threads=1, prompt_cache=False)
        computed = []
        for prompt in prompts:
            options: Any = {"max_tokens": 20, "temperature": 0.0, "ignore_eos": True}
            made, again = (m.generate(prompt, **options) for m in (model, forgetful))
            assert made.text == again.text
            assert again.stats.prompt_tokens == 153
            computed.append(made.stats.prompt_tokens)
            turn = [*prompt, *made.tokens, 9, 9]
            more = model.generate(turn, **options)
            assert more.text
            assert more.stats.reused_tokens == len(turn) - 3  # the last drawn was not decoded
        assert computed == [153, *later]


def test_a_cache_with_states_and_prefixes_is_freed_at_once(request: pytest.FixtureRequest) -> None:
    cache = RecurrentCache([RecurrentShape(1, 1, 1)], prefix=SMALL)
    held = [weakref.ref(each) for each in (cache, cache.pool, cache.prefix, cache.kept)]
    gc.disable()  # a cycle would wait for the collector
    request.addfinalizer(gc.enable)
    del cache
    assert [each() for each in held] == [None] * 4


@pytest.mark.parametrize(
    ("length", "spacing"), [(4, 4), (131, 4), (132, 8), (263, 8), (264, 16), (527, 16)]
)
def test_the_spacing_doubles_at_33_states(length: int, spacing: int) -> None:
    cache = bare(1000)
    kept: Any = cache.kept
    place(cache, length)
    at = [position + 1 for _, position in kept.of(0)]
    assert at == list(range(spacing, length + 1, spacing))
    assert kept._spacing_at(length) == spacing


@pytest.mark.parametrize(
    ("texts", "n_seq_max", "n_bytes", "rows"),
    [
        (2, 1, 8 * 50, 50),
        (2, 1, 8 * 107, 107),
        (2, 1, 8 * 109, 108),
        (1, 3, 8 * 200, 144),
        (2, 1, 7, 0),
    ],
)
def test_as_many_states_as_fit_and_can_be_used(
    texts: int, n_seq_max: int, n_bytes: int, rows: int
) -> None:
    prefix = PrefixConfig(texts=texts, bytes=n_bytes)
    assert kept_rows(prefix, n_seq_max, [RecurrentShape(1, 1, 1)]) == rows
    assert kept_rows(None, n_seq_max, [RecurrentShape(1, 1, 1)]) == 0
    assert kept_rows(prefix, n_seq_max, []) == min(n_bytes, (texts + n_seq_max) * 36)


def test_holds_serves_and_shortens() -> None:
    cache = bare(100)
    kept: Any = cache.kept
    place(cache, 10)
    assert [n for n in range(12) if kept.holds(0, n)] == [*range(4, 12)]
    assert [n for n in range(12) if kept.holds(1, n)] == []
    assert cache.keep(0, list(range(10)))
    text = kept.index.numbers()[0]
    assert [kept.usable_length(text, n) for n in range(12)] == [
        0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 10, 10,
    ]  # fmt: skip
    cache.seq_rm(0)
    for length, found in ((9, 8), (8, 8), (7, 4), (3, 0)):
        kept.shorten(text, length)
        assert kept.usable_length(text, 12) == found
    place(cache, 3)
    assert [n for n in range(6) if kept.holds(0, n)] == [3]
