"""A decode that fails leaves every byte as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aleator.cache.rows import rows as shift
from aleator.core.errors import CacheFull
from aleator.generate import Batch, Context
from aleator.models import build_decoder
from aleator.models.decoder import Decoder
from aleator.models.native_decoder import NativeStep
from tests.generate.test_context import F32, tokens


def snapshot(ctx: Context) -> list[Any]:
    """All that a failed decode must not change: cells, counters, rows of used cells."""
    cells = ctx.cache.cells
    used = np.flatnonzero(cells.positions >= 0)
    stored = ctx.cache.keys.layers + ctx.cache.values.layers
    return [
        cells.positions.tobytes(),
        cells.owners.tobytes(),
        cells.shifts.tobytes(),
        (cells.head, cells.used, cells.top),
        [t[used].tobytes() for t in stored],
        ctx.cache.key_positions[used].tobytes(),
    ]


def test_exactly_full(llama: Decoder) -> None:  # study T9
    ctx = Context(llama, n_ctx=256, n_seq_max=2, **F32)
    ctx.decode(Batch.one(tokens(256), 0))
    before = snapshot(ctx)
    with pytest.raises(CacheFull) as caught:
        ctx.decode(Batch.one([1], 256))
    assert (caught.value.needed, caught.value.free) == (1, 0)
    assert snapshot(ctx) == before
    ctx.cache.seq_rm(0, 100, 110)
    with pytest.raises(CacheFull):
        ctx.decode(Batch.one(tokens(11), 0, seq=1))
    ctx.decode(Batch.one(tokens(10), 0, seq=1))
    assert np.flatnonzero(ctx.cache.cells.owners[:, 0] == 2).tolist() == list(range(100, 110))
    assert (ctx.cache.head, ctx.cache.used) == (110, 256)


def test_a_batch_that_does_not_fit_changes_nothing(llama: Decoder) -> None:  # study T10 (a)
    ctx = Context(llama, n_ctx=256, n_batch=256, n_ubatch=64, n_seq_max=2, **F32)
    ctx.decode(Batch.one(tokens(186), 0))
    before = snapshot(ctx)
    with pytest.raises(CacheFull):
        ctx.decode(Batch.one(tokens(100), 0, seq=1))
    assert snapshot(ctx) == before
    ctx.decode(Batch.one(tokens(70), 0, seq=1))
    assert ctx.cache.used == 256


def fail_at(
    original: Callable[..., Any], call: int, error: type[BaseException]
) -> Callable[..., Any]:
    """A layer that works, then raises at its ``call``-th call."""
    count = 0

    def layer(self: Any, *args: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            raise error("injected")
        return original(self, *args)

    return layer


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("call", [1, 2, 3, 6])
@pytest.mark.parametrize("shifted", [False, True])
def test_a_failed_decode_restores_every_byte(
    llama: Decoder,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    call: int,
    shifted: bool,
) -> None:
    pytest.importorskip("torch")
    from aleator.models.block import Block as layer

    llama = build_decoder(llama.weights, form="torch")  # its layers can fail one by one
    ctx = Context(llama, n_ctx=64, n_ubatch=4, n_seq_max=2)
    ctx.decode(Batch.one(tokens(20), 0))
    ctx.cache.seq_cp(0, 1, 0, 8)
    if shifted:
        ctx.cache.seq_rm(0, 3, 6)
        ctx.cache.seq_add(0, 6, -1, -3)
    before = snapshot(ctx)
    after = ctx.cache.seq_pos_max(0) + 1
    with monkeypatch.context() as patch:
        patch.setattr(layer, "__call__", fail_at(layer.__call__, call, error))
        with pytest.raises(error, match="injected"):
            ctx.decode(Batch.one(tokens(12, seed=3), after))
    assert snapshot(ctx) == before
    ctx.cache.cells.check()
    # What follows is as if nothing had happened.
    other = Context(llama, n_ctx=64, n_ubatch=4, n_seq_max=2)
    other.decode(Batch.one(tokens(20), 0))
    other.cache.seq_cp(0, 1, 0, 8)
    if shifted:
        other.cache.seq_rm(0, 3, 6)
        other.cache.seq_add(0, 6, -1, -3)
    batch = Batch.one(tokens(12, seed=3), after, logits=True)
    assert np.array_equal(ctx.decode(batch), other.decode(batch))


def test_a_failing_shift_restores_every_byte(
    llama: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = Context(llama, n_ctx=64)
    ctx.decode(Batch.one(tokens(20), 0))
    ctx.cache.seq_rm(0, 3, 6)
    ctx.cache.seq_add(0, 6, -1, -3)
    before = snapshot(ctx)

    # Rewritten cell by cell; the third one's fails.
    monkeypatch.setattr(shift, "MAX_DISTANCES", 0)
    monkeypatch.setattr(shift, "CHUNK_BYTES", 1)
    calls = []

    def rotate(layer: int, keys: Any, deltas: Any) -> Any:
        calls.append(layer)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return llama.shift_keys(layer, keys, deltas)

    with monkeypatch.context() as patch:
        patch.setattr(ctx.cache.first.rows, "rotate", rotate)
        with pytest.raises(KeyboardInterrupt):
            ctx.decode(Batch.one([1]))
    assert snapshot(ctx) == before
    # And a decode that fails after the shift was done.
    with monkeypatch.context() as patch:
        patch.setattr(NativeStep, "run", fail_at(NativeStep.run, 1, RuntimeError))
        with pytest.raises(RuntimeError):
            ctx.decode(Batch.one([1]))
    assert snapshot(ctx) == before
    ctx.decode(Batch.one([1]))
    assert not len(shift.behind(ctx.cache.cells, ctx.cache.first.rows))
