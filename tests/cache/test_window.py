"""Window pools: reuse of cells, rewinds, checkpoints, shifts, forks, failures, cached prefixes.

Scenarios T18 to T20 are llama.cpp's own numbers (window 8, pool of 256 cells), with its wrong answers refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_models import SPECS, write_model

from aleator.cache.kv_cache import HybridCache
from aleator.cache.prefix_index import PrefixConfig
from aleator.core.errors import CannotRewind, CannotShift, ParameterError
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder
from tests.cache.caches import feed, same

# Three layers, windows of 8 in the first and the last; all in f32.
SPEC = replace(SPECS["gemma3"], n_layers=3, pattern=2, context=2048)
TEXT = [int(t) for t in np.random.default_rng(5).integers(0, 64, 1200)]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    path = write_model(tmp_path_factory.mktemp("gemma3") / "m.gguf", SPEC)
    decoder = build_decoder(open_weights(path), form="native")
    untyped: Any = decoder
    for block in untyped.blocks:
        # Exact, so that small differences stay small.
        block.ffn = replace(block.ffn, gate="gelu")
    return decoder


def context(decoder: Decoder, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "n_ctx": 1024,
        "n_ubatch": 16,
        "n_seq_max": 4,
        "type_k": "f32",
        "type_v": "f32",
    }
    return Context(decoder, **(defaults | options))


def fresh(decoder: Decoder, tokens: list[int]) -> Any:
    return feed(context(decoder), 0, tokens)


def held(cache: Any, seq: int = 0) -> tuple[int, int]:
    return cache.window.seq_pos_min(seq), cache.window.seq_pos_max(seq)


@pytest.fixture
def three_hundred(decoder: Decoder) -> Any:
    ctx = context(decoder)
    for start in range(0, 300, 16):
        feed(ctx, 0, TEXT[start : min(start + 16, 300)])
    return ctx


@pytest.mark.parametrize("native", [True, False])
def test_ring(decoder: Decoder, native: bool) -> None:
    ctx, at = context(decoder), 0
    if not native:
        ctx._native = None
    for end, expected in ((240, 0), (256, 0), (257, 1), (260, 4), (300, 44)):
        while at < end:
            step = min(16, end - at)
            logits = feed(ctx, 0, TEXT[at : at + step])
            at += step
        assert held(ctx.cache) == (expected, end - 1)
        assert (ctx.cache.seq_pos_min(0), ctx.cache.seq_pos_max(0)) == (expected, end - 1)
        ctx.cache.check()
    assert ctx.cache.used == 300
    assert ctx.cache.window.used == 256
    full = context(decoder, swa_full=True)
    assert same(logits, feed(full, 0, TEXT[:300]))
    assert full.cache.window.used == 300


@pytest.mark.parametrize("n", [51, 52, 290, 300])
def test_rewinds_that_are_held_are_exact(decoder: Decoder, three_hundred: Any, n: int) -> None:
    three_hundred.cache.seq_rm(0, n, -1)
    assert three_hundred.cache.seq_pos_max(0) == n - 1
    logits = feed(three_hundred, 0, [TEXT[700]])
    assert same(logits, fresh(decoder, [*TEXT[:n], TEXT[700]]))


@pytest.mark.parametrize("n", [50, 49, 30, 1])
def test_rewinds_past_the_window_are_refused(three_hundred: Any, n: int) -> None:
    cache = three_hundred.cache
    before = cache.cells.map(), cache.window.cells.map()
    with pytest.raises(CannotRewind, match="oldest legal position is 51") as caught:
        cache.seq_rm(0, n, -1)
    assert caught.value.oldest_legal == cache.oldest_rewind(0) == 51
    assert (cache.cells.map(), cache.window.cells.map()) == before
    handle = cache.sequence(0)
    told = handle.oldest_rewind(), handle.can_truncate(50), handle.can_truncate(51)
    assert told == (51, False, True)
    with pytest.raises(CannotRewind):
        handle.truncate(n)
    handle.truncate(0)
    assert (cache.used, cache.window.used) == (0, 0)


def test_checkpoint(decoder: Decoder) -> None:
    ctx = context(decoder)
    feed(ctx, 0, TEXT[:100])
    handle = ctx.cache.sequence(0)
    mark = handle.checkpoint()
    assert mark.nbytes == 8 * 2 * 2 * 2 * 16 * 4  # positions, layers, K and V, heads, channels
    feed(ctx, 0, TEXT[100:400])
    assert not handle.can_truncate(100)
    handle.restore(mark)
    assert (held(ctx.cache), handle.next) == ((92, 99), 100)
    ctx.cache.check()
    assert same(feed(ctx, 0, [TEXT[100]]), fresh(decoder, TEXT[:101]))
    handle.restore(mark)  # again, now with what is held
    assert same(feed(ctx, 0, [TEXT[100]]), fresh(decoder, TEXT[:101]))
    handle.truncate(0)
    with pytest.raises(CannotRewind):
        handle.restore(mark)


def test_a_checkpoint_that_is_still_held_copies_nothing(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(decoder)
    feed(ctx, 0, TEXT[:100])
    handle = ctx.cache.sequence(0)
    mark = handle.checkpoint()
    feed(ctx, 0, TEXT[100:102])

    def restore(*_: object) -> None:
        raise AssertionError("the window holds it")

    monkeypatch.setattr(ctx.cache, "restore", restore)
    handle.restore(mark)
    assert handle.next == 100
    monkeypatch.undo()
    assert same(feed(ctx, 0, [TEXT[100]]), fresh(decoder, TEXT[:101]))


def test_shift_of_what_is_held(decoder: Decoder, three_hundred: Any) -> None:
    cache = three_hundred.cache
    assert cache.can_shift()
    full = context(decoder, swa_full=True)
    feed(full, 0, TEXT[:300])
    for each in (cache, full.cache):
        each.seq_rm(0, 4, 152)
        each.seq_add(0, 152, -1, -148)
    assert held(cache) == (4, 151)
    assert same(feed(three_hundred, 0, TEXT[300:310]), feed(full, 0, TEXT[300:310]))
    cache.check()


def test_shift_that_brings_the_forgotten_into_view_is_refused(three_hundred: Any) -> None:
    cache = three_hundred.cache
    cache.seq_rm(0, 30, 297)  # a token at 300 sees 293 on: 297 to 299
    before = cache.cells.map(), cache.window.cells.map()
    with pytest.raises(CannotShift, match="swa_full"):  # then it would see 25 to 29, which are gone
        cache.seq_add(0, 297, -1, -267)
    assert (cache.cells.map(), cache.window.cells.map()) == before
    assert cache.seq_pos_max(0) == 299


def test_forks(decoder: Decoder, three_hundred: Any) -> None:
    cache = three_hundred.cache
    cache.seq_cp(0, 1)
    for seq in (0, 1):
        logits = feed(three_hundred, seq, [TEXT[400 + seq]])
        assert same(logits, fresh(decoder, [*TEXT[:300], TEXT[400 + seq]]))
    with pytest.raises(CannotRewind):  # its window would be empty
        cache.seq_cp(0, 2, 0, 40)
    assert cache.seq_pos_max(2) == -1
    cache.seq_keep(1)
    assert cache.seq_pos_max(0) == -1
    cache.check()


def test_a_handle_moves_no_other_sequence(decoder: Decoder, three_hundred: Any) -> None:
    text = three_hundred.cache.sequence(0)
    other = text.fork()
    text.slide(keep=4, discard=150)
    assert (text.next, other.next) == (150, 300)
    three_hundred.cache.check()
    assert same(feed(three_hundred, other.id, [TEXT[300]]), fresh(decoder, TEXT[:301]))
    full = context(decoder, swa_full=True)
    feed(full, 0, TEXT[:300])
    full.cache.sequence(0).slide(keep=4, discard=150)
    assert same(feed(three_hundred, 0, [TEXT[300]]), feed(full, 0, [TEXT[300]]))


@pytest.mark.parametrize("seed", [1, 2])
def test_random_edits_equal_texts_computed_afresh(decoder: Decoder, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ctx, texts = context(decoder), {s: list[int]() for s in range(4)}
    for _ in range(40):
        action, s = rng.random(), int(rng.integers(4))
        if action < 0.6:
            batch, chosen = Batch(), [int(q) for q in rng.permutation(4)[: int(rng.integers(1, 4))]]
            for q in chosen:
                for token in rng.integers(0, 64, int(rng.integers(1, 17))).tolist():
                    batch.add(token, len(texts[q]), [q])
                    texts[q].append(token)
                batch.logits[-1] = True
            for q, row in zip(chosen, ctx.decode(batch), strict=True):
                assert same(row, fresh(decoder, texts[q]))
        elif action < 0.8:
            n = max(0, len(texts[s]) - int(rng.integers(30)))
            if n < ctx.cache.oldest_rewind(s) and n:
                with pytest.raises(CannotRewind):
                    ctx.cache.seq_rm(s, n, -1)
            else:
                ctx.cache.seq_rm(s, n, -1)
                texts[s] = texts[s][:n]
        else:
            ctx.cache.seq_rm((s + 1) % 4)
            ctx.cache.seq_cp(s, (s + 1) % 4)
            texts[(s + 1) % 4] = list(texts[s])
        ctx.cache.check()


def test_many_shifts(decoder: Decoder) -> None:
    """Keys behind their positions by many distances are settled in the window pool too."""
    ctx, full = context(decoder, n_ctx=900), context(decoder, n_ctx=900, swa_full=True)
    for each in (ctx, full):
        at, text = 0, each.cache.sequence(0)
        for i in range(24):
            feed(each, 0, TEXT[at : at + 20 + i])
            at += 20 + i
            text.slide(keep=4, discard=3 + i % 7)
        each.cache.check()
    a, b = feed(ctx, 0, [TEXT[0]]), feed(full, 0, [TEXT[0]])
    assert np.abs(a - b).max() < 1e-4 * (b.max() - b.min())


def test_cells_of_several_go_when_each_has_left_them(decoder: Decoder) -> None:
    ctx = context(decoder)
    batch = Batch()
    for i in range(200):
        batch.add(TEXT[i], i, [0, 1, 2, 3])
    ctx.decode(batch)
    for at in range(200, 500, 10):
        logits = feed(ctx, 0, TEXT[at : at + 10])
        assert ctx.cache.window.used <= 256
        ctx.cache.check()
    assert same(logits, fresh(decoder, TEXT[:500]))
    assert same(feed(ctx, 3, [TEXT[200]]), fresh(decoder, TEXT[:201]))


def test_many_sequences(decoder: Decoder) -> None:
    ctx = context(decoder)
    for at in range(0, 240, 4):
        batch = Batch()
        for seq in range(4):
            for i in range(4):
                batch.add(TEXT[seq * 240 + at + i], None, [seq], logits=i == 3)
        rows = ctx.decode(batch)
    ctx.cache.check()
    assert ctx.cache.window.used == 256
    for seq in range(4):
        assert same(rows[seq], fresh(decoder, TEXT[seq * 240 : seq * 240 + 240]))


def test_kept_texts(decoder: Decoder) -> None:
    ctx = context(decoder, prefix=PrefixConfig(block=4, texts=3, bytes=0))
    feed(ctx, 0, TEXT[:120])
    assert ctx.cache.keep(0, TEXT[:120])
    ctx.cache.seq_rm(0)
    assert ctx.cache.reuse(0, TEXT[:130]) == 120
    assert same(feed(ctx, 0, TEXT[120:130]), fresh(decoder, TEXT[:130]))
    ctx.cache.seq_rm(0)
    assert ctx.cache.reuse(0, TEXT[:60]) == 59  # all of it is still held
    ctx.cache.seq_rm(0)
    for seq in (1, 2, 3):  # what is kept leaves the windows
        feed(ctx, seq, TEXT[seq * 200 : seq * 200 + 200])
    match = ctx.cache.match(TEXT[:40])
    assert match.length == 0
    assert "window" in match.why_not[-1]
    ctx.cache.check()


def test_streams(decoder: Decoder) -> None:
    """Each sequence has a ring of its own, and nothing that others do takes cells from it."""
    ctx = context(decoder, n_ctx=2048, n_seq_max=2, policy="streams")
    assert ctx.cache.window.cells.size == 2 * 256
    feed(ctx, 1, TEXT[:20])
    for start in range(0, 300, 10):
        feed(ctx, 0, TEXT[start : start + 10])
    assert held(ctx.cache, 0) == (44, 299)
    assert held(ctx.cache, 1) == (0, 19)
    with pytest.raises(CannotRewind, match="position is 51"):
        ctx.cache.seq_rm(0, 50, -1)
    ctx.cache.seq_cp(0, 1)
    with pytest.raises(ParameterError, match="whole"):
        ctx.cache.seq_cp(0, 1, 0, 100)
    ctx.cache.seq_rm(0, 51, -1)
    mark = ctx.cache.checkpoint(0)
    both = Batch.one(TEXT[51:53], None, 0, logits=True)
    both.add(TEXT[300], None, [1], logits=True)
    rows = ctx.decode(both)
    assert same(rows[1], fresh(decoder, TEXT[:53]))
    assert same(rows[2], fresh(decoder, TEXT[:301]))
    for start in range(53, 700, 16):
        feed(ctx, 0, TEXT[start : start + 16])
    ctx.cache.restore(0, mark)
    ctx.cache.check()
    other = context(decoder, n_ctx=2048, n_seq_max=2, policy="streams")
    other.cache.state_read(ctx.cache.state_write())
    for each in (ctx, other):
        assert same(feed(each, 0, [TEXT[51]]), fresh(decoder, TEXT[:52]))
    with pytest.raises(ParameterError, match="policy"):
        HybridCache([], 64, window=ctx.cache.window, policy="unified")


def test_sinks_of_a_model(decoder: Any) -> None:
    """What is held answers as everything would; and rewinds, copies, checkpoints and states have the sinks."""
    few, full = (context(decoder, swa_sinks=3, swa_full=full) for full in (False, True))
    for ctx in (few, full):
        for start in range(0, 320, 16):
            feed(ctx, 0, TEXT[start : start + 16])
    few.cache.check()
    assert held(few.cache) == (0, 319)
    assert few.cache.window.used == 256
    plain = context(decoder, swa_full=True)
    feed(plain, 0, TEXT[:320])
    a, b, c = (feed(ctx, 0, [5]) for ctx in (few, full, plain))
    assert same(a, b)
    assert not same(a, c)
    for ctx in (few, full):
        ctx.cache.seq_rm(0, 310, -1)
    blob = few.cache.state_write(0)
    few.cache.state_read(blob, 1)
    few.cache.seq_cp(0, 2)
    mark = few.cache.checkpoint(0)
    expected = feed(full, 0, [7])
    for seq in (0, 1, 2):
        assert same(feed(few, seq, [7]), expected)
    for start in range(0, 320, 16):
        feed(few, 0, TEXT[start : start + 16])
    few.cache.restore(0, mark)
    few.cache.check()
    assert same(feed(few, 0, [7]), expected)
    with pytest.raises(CannotRewind):
        few.cache.seq_rm(2, 40, -1)


def test_sinks_need_windows(tmp_path: Path) -> None:
    plain = build_decoder(open_weights(write_model(tmp_path / "m.gguf", SPECS["llama"])))
    with pytest.raises(ParameterError, match="swa_sinks"):
        Context(plain, swa_sinks=2)


@pytest.mark.parametrize("swa_full", [False, True])
@pytest.mark.parametrize("prefix", [None, PrefixConfig(block=4, texts=3)])
def test_cells_are_taken_in_a_ring_where_nothing_needs_the_old_ones(
    decoder: Decoder, swa_full: bool, prefix: PrefixConfig | None
) -> None:
    cache: Any = context(decoder, swa_full=swa_full, prefix=prefix).cache
    assert cache.window.ring is (not swa_full and prefix is None)
