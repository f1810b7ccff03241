"""Defragmentation.  Numbers marked [L], [O] are llama.cpp's."""

from __future__ import annotations

import numpy as np
import pytest

from aleator.core.errors import Aborted, ParameterError
from aleator.generate import Batch, Context
from aleator.models.decoder import Decoder
from tests.cache.caches import F32, fill, small, snapshot, tokens


def test_defrag_of_the_study() -> None:  # [O] S1
    cache = small(12)
    fill(cache, "00..11.222.2")
    assert [cache.cells.defrag_plan(n) for n in (1, 0)] == [[(9, 2, 1)], []]
    done = cache.defrag()
    assert done.moves == ((9, 2, 1), (11, 3, 1), (8, 6, 1))
    assert (done.n_cells, cache.map(), cache.head) == (12, "00221122", 8)
    assert cache.keys.layers[1][:8, 0, 0].tolist() == [0, 1, 9, 11, 4, 5, 8, 7]
    assert cache.cells.positions[:8].tolist() == [0, 1, 2, 3, 0, 1, 1, 0]
    assert cache.defrag().moves == ()
    cache.check()


def test_defrag_keeps_logits_and_waits_for_its_threshold(llama: Decoder) -> None:
    ctx = Context(llama, n_ctx=256, n_seq_max=3, **F32)
    ctx.decode(Batch.one(tokens(60), seq=1))
    ctx.decode(Batch.one(text := tokens(40, 2), seq=0))
    ctx.decode(Batch.one(tokens(60, 3), seq=2))
    ctx.cache.seq_rm(1)
    ctx.cache.seq_rm(2, 10, -1)
    ctx.cache.seq_add(0, 0, -1, 5)
    assert ctx.cache.defrag(threshold=0.9).moves == ()
    assert ctx.cache.used == 50
    where = ctx.cache.addresses()
    assert ctx.cache.defrag(threshold=0.7).moves == ((60, 0, 50),)
    assert ctx.cache.cells.top == 50
    ctx.cache.check()
    row = ctx.decode(Batch.one([1], seq=0))
    fresh = Context(llama, n_ctx=256, **F32).decode(Batch.one([*text, 1], 0))
    assert np.allclose(row, fresh, atol=1e-4)
    assert ctx.cache.addresses() == where
    with pytest.raises(ParameterError, match="max_moves"):
        ctx.cache.defrag(max_moves=-1)


def test_defrag_asked_for_is_done_by_the_next_decode(llama: Decoder) -> None:
    ctx = Context(llama, n_ctx=64, n_seq_max=2, compat="llama-2024", **F32)
    ctx.decode(Batch.one(tokens(10), seq=1))
    ctx.decode(Batch.one(text := tokens(10, 2), seq=0))
    ctx.cache.seq_rm(1)
    ctx.cache.do_defrag = True
    before = snapshot(ctx.cache)
    ctx.abort_callback = lambda: (
        ctx.cache.cells.top == 11
    )  # its holes are filled, the token is placed
    with pytest.raises(Aborted):
        ctx.decode(Batch.one([1], seq=0))
    assert snapshot(ctx.cache) == before
    assert ctx.cache.do_defrag
    ctx.abort_callback = None
    row = ctx.decode(Batch.one([1], seq=0))
    assert (ctx.cache.map(), ctx.cache.do_defrag) == ("00000000000", False)
    fresh = Context(llama, n_ctx=64, **F32).decode(Batch.one([*text, 1], 0))
    assert np.allclose(row, fresh, atol=1e-4)


def test_defrag_in_parts() -> None:  # [O] S1
    cache = small(12)
    fill(cache, "00..11.222.2")
    assert cache.defrag(max_moves=1).moves == ((9, 2, 1),)
    assert (cache.map(), cache.used) == ("002.11.22..2", 8)
    cache.check()
    while cache.defrag(max_moves=1).moves:
        cache.check()
    assert cache.map() == "00221122"
    assert cache.keys.layers[0][:8, 0, 0].tolist() == [0, 1, 9, 11, 4, 5, 8, 7]


@pytest.mark.parametrize(
    ("pad", "used", "threshold", "moves"),
    [
        (128, 64, 0.5, False),
        (128, 64, 0.49, True),
        (128, 63, 0.5, True),
        (127, 60, 0.1, False),  # 127 cells are too few
        (127, 60, -0.1, True),
        (64, 30, 0.0, False),
        (256, 0, 0.9, False),
    ],
)
def test_the_share_of_unused_cells(pad: int, used: int, threshold: float, moves: bool) -> None:
    cache = small(512, pad=pad)
    fill(cache, "." + "0" * used)
    assert cache.n == pad
    assert bool(cache.defrag(threshold=threshold).moves) == moves
    assert cache.map().startswith("0") == moves


def test_a_clear_asks_for_no_defragmentation() -> None:
    cache = small(16)
    fill(cache, ".0.0")
    cache.do_defrag = True
    cache.clear()
    fill(cache, ".0.0")
    assert (cache.do_defrag, cache.update(), cache.map()) == (False, False, ".0.0")
    cache.do_defrag = True
    assert (cache.update(), cache.do_defrag, cache.map()) == (True, False, "00")
