"""Plan, step, commit; where tokens are placed.  Numbers marked [L], [O] are llama.cpp's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator import _native
from aleator.cache.prefix_index import PrefixConfig
from aleator.core.errors import Aborted, CacheError, CacheFull, InvalidBatch, ParameterError
from aleator.generate import Batch, Context
from aleator.models.decoder import Decoder
from tests.cache.caches import F32, fill, small, snapshot, tokens

# Plans


def test_a_plan_changes_nothing_and_says_where_everything_goes() -> None:
    cache = small(16)
    fill(cache, "0.0.1")
    before = snapshot(cache)
    batch = Batch()
    for s in (0, 1, 0):
        batch.add(1, seqs=[s], logits=s == 0)
    plan = cache.plan(batch, n_ubatch=2)
    assert snapshot(cache) == before
    assert [p.cell_ids.tolist() for p in plan.parts] == [[5, 6], [7]]
    assert [p.outputs.tolist() for p in plan.parts] == [[0], [0]]
    assert plan.positions.tolist() == [2, 1, 3]
    assert (len(plan), plan.rows) == (3, None)
    with cache.step(plan) as step:
        parts = [(p.cell_ids.tolist(), p.positions.tolist()) for p in step]
    assert parts == [([5, 6], [2, 1]), ([7], [3])]
    assert cache.map() == "0.0.1010"
    with pytest.raises(CacheError, match="plan again"), cache.step(plan):
        pass


def test_a_step_can_be_cancelled_and_nested() -> None:
    cache = small(16)
    fill(cache, "00.1")
    before = snapshot(cache)
    with cache.step() as step:
        cache.seq_rm(0)
        with cache.step():
            cache.seq_add(1, 0, -1, 3)
        step.cancel()
    assert snapshot(cache) == before

    def interrupted() -> None:
        with cache.step():
            cache.seq_rm(0)
            with cache.step():
                cache.clear(data=False)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert snapshot(cache) == before
    with cache.step():
        cache.seq_rm(0)
        with cache.step() as inner:
            cache.seq_rm(1)
            inner.cancel()
    assert cache.map() == "...1"
    cache.check()


def test_kept_texts_come_back_with_their_rows_if_a_step_fails(llama: Decoder) -> None:
    ctx = Context(llama, n_ctx=24, n_seq_max=2, prefix=PrefixConfig(4, 2), **F32)
    text = tokens(16)
    ctx.decode(Batch.one(text))
    ctx.cache.keep(0, text)
    ctx.cache.seq_rm(0)
    before = snapshot(ctx.cache)
    calls = 0

    def abort() -> bool:
        nonlocal calls
        calls += 1
        return calls > 4

    ctx.abort_callback, ctx.n_ubatch = abort, 4
    with pytest.raises(Aborted) as caught:
        ctx.decode(Batch.one(tokens(20, 2), seq=1))
    assert (caught.value.done, caught.value.code) == (4, 2)
    assert ctx.cache.match([*text, 1]).length == 16
    assert snapshot(ctx.cache) == before


def test_return_codes() -> None:
    assert (CacheFull(1, 0).code, InvalidBatch(0, "").code, Aborted(0).code) == (1, -1, 2)
    assert CacheError().code is None


@pytest.mark.parametrize(
    ("rows", "index"),
    [([([0, 1, 2], 0), ([0, 1], 1), ([1, 2], 1)], 2), ([([0, 1], 0), ([1, 2], 1)], 1)],
)
def test_partly_shared_tokens(rows: list[tuple[list[int], int]], index: int) -> None:  # T17
    cache = small()
    batch = Batch()
    for seqs, pos in rows:
        batch.add(1, pos, seqs)
    with pytest.raises(InvalidBatch) as caught:
        cache.plan(batch)
    assert caught.value.index == index


def test_diverged_and_joined_sequences() -> None:  # T17
    cache = small()
    fill(cache, "00000111")
    batch = Batch()
    batch.add(1, None, [0, 1])
    with pytest.raises(InvalidBatch, match="share the token"):
        cache.plan(batch)
    cache.clear()
    with cache.step(cache.plan(batch)) as step:
        list(step)
    assert cache.cells.owners_of(0) == [0, 1]


def test_continuity() -> None:  # [L] T8
    cache = small()
    fill(cache, "0" * 10)
    for pos in ((11,), (9,), (10, 12), (11, 10)):
        batch = Batch()
        for p in pos:
            batch.add(1, p)
        with pytest.raises(InvalidBatch):
            cache.plan(batch)
    for start, seq in ((10, 0), (40, 1)):
        batch = Batch()
        batch.add(1, start, [seq])
        cache.plan(batch)


# Outputs


@pytest.mark.parametrize("split", ["equal", "sequence"])
@pytest.mark.parametrize("n_ubatch", [4, 32])
@pytest.mark.parametrize("lengths", [(5, 2, 7), (4, 4, 4)])
@pytest.mark.parametrize("policy", ["unified", "streams"])
def test_rows_in_batch_order_however_it_is_split(
    llama: Decoder, split: str, n_ubatch: int, lengths: tuple[int, ...], policy: str
) -> None:
    texts = [tokens(n, n + i) for i, n in enumerate(lengths)]
    rows = [(texts[s][i], s) for i in range(7) for s in range(3) if i < len(texts[s])]
    results = []
    for rule, place in (("simple", "unified"), (split, policy)):
        ctx = Context(
            llama, n_ctx=48, n_seq_max=3, n_ubatch=n_ubatch, split=rule, policy=place, **F32
        )
        batch = Batch()
        for i, (token, s) in enumerate(rows):
            batch.add(token, seqs=[s], logits=i % 3 != 1)
        results.append(ctx.decode(batch))
        ctx.cache.check()
    assert np.allclose(results[0], results[1], atol=1e-4)


# llama.cpp's struct of 2024


@pytest.mark.parametrize(
    ("used", "size", "flash", "n"),
    [
        (0, 1024, False, 0),
        (0, 1024, True, 0),
        (6, 1024, False, 32),
        (6, 1024, True, 256),
        (33, 1024, False, 64),
        (257, 1024, False, 288),
        (257, 1024, True, 512),
        (35, 40, False, 40),
    ],
)
def test_attended_cells_of_2024(used: int, size: int, flash: bool, n: int) -> None:  # [O] T1
    cache = small(size, compat="llama-2024", pad=256 if flash else None)
    fill(cache, "0" * used)
    assert (cache.n, cache.used) == (n, used)
    assert not cache.do_copy
    assert not cache.v_trans
    cache.clear()
    assert (cache.n, cache.head, cache.used) == (0, 0, 0)


@pytest.mark.parametrize(
    ("picture", "head", "n", "then", "now"),
    [
        ("...00000..22", 8, 1, [8], [8]),
        ("...00000..22", 8, 2, [8, 9], [8, 9]),
        ("...00000..22", 8, 3, [0, 1, 2], [8, 9, 0]),
        ("...00000..22", 8, 4, None, [8, 9, 0, 1]),
        ("...00000..22", 8, 5, None, [8, 9, 0, 1, 2]),
        ("...00000..22", 8, 6, None, None),
        ("0.0.0.0.0.0.0.0.", 0, 2, None, [1, 3]),
        ("0.0.0.0.0.0.0.0.", 0, 8, None, [1, 3, 5, 7, 9, 11, 13, 15]),
        ("0.0.0.0.0.0.0.0.", 0, 9, None, None),
        ("00..0000001111111111............", 2, 3, [20, 21, 22], [2, 3, 20]),
    ],
)
def test_slots(
    picture: str, head: int, n: int, then: list[int] | None, now: list[int] | None
) -> None:  # [L] and [O], section 1.3
    for compat, expected in (("llama-2024", then), (None, now)):
        cache = small(len(picture), compat=compat)
        fill(cache, picture)
        if head == 0:
            cache.cells.seq_add(3, 0, -1, 1)  # moves nothing, and sets the head to 0
        elif cache.head != head:  # the token before it comes last
            cell = head - 1
            (seq,), pos = cache.cells.owners_of(cell), cache.cells.positions[cell : cell + 1].copy()
            cache.cells.seq_rm(seq, int(pos[0]), int(pos[0]) + 1)
            cache.cells.put(np.array([cell]), pos, np.array([[1 << seq]], np.uint64))
        assert cache.head == head
        slot = cache.find_slot(n)
        assert (None if slot is None else slot.tolist()) == expected
        other = cache.find_slot(n, contiguous=compat is None)
        assert (None if other is None else other.tolist()) == (then if compat is None else now)


def test_heads_of_2024() -> None:  # [O]
    cache = small(8, compat="llama-2024")
    fill(cache, "00001111")
    assert cache.head == 0  # behind the last cell comes the first
    cache.seq_rm(0, 1, 2)
    fill(cache, "")
    cache.seq_cp(1, 2)
    assert cache.head == 0
    cache.clear()
    fill(cache, "..0011")
    assert cache.head == 6
    cache.seq_keep(1)
    assert (cache.map(), cache.head) == ("....11", 0)


def test_a_decode_of_2024_needs_cells_in_a_row(llama: Decoder) -> None:  # [O] T3
    for compat in (None, "llama-2024"):
        ctx = Context(llama, n_ctx=16, n_seq_max=2, compat=compat, **F32)
        for i in range(16):
            ctx.decode(Batch.one([i], seq=i % 2))
        ctx.cache.seq_rm(1)
        before = snapshot(ctx.cache)
        if compat is None:
            ctx.decode(Batch.one([1, 2], seq=0))
            assert ctx.cache.map() == "00000.0.0.0.0.0"
            continue
        with pytest.raises(CacheFull, match="not 2 in a row") as caught:
            ctx.decode(Batch.one([1, 2], seq=0))
        assert (caught.value.needed, caught.value.free) == (2, 8)
        assert snapshot(ctx.cache) == before
        ctx.cache.defrag()
        ctx.decode(Batch.one([1, 2], seq=0))
        assert ctx.cache.map() == "0" * 10


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"policy": "paged"}, "policy"),
        ({"policy": "streams", "compat": "llama-2024"}, "policy"),
        ({"policy": "streams", "prefix": PrefixConfig()}, "policy"),
        ({"policy": "streams", "n_seq_max": 3}, "n_ctx"),
        ({"compat": "llama-2023"}, "compat"),
        ({"pad": 0}, "pad"),
        ({"n_pos_per_embd": 4, "rotate": None, "prefix": PrefixConfig(texts=1)}, "n_pos_per_embd"),
        ({"n_pos_per_embd": 2, "rotate": None}, "n_pos_per_embd"),
        ({"n_pos_per_embd": 5, "rotate": None}, "n_pos_per_embd"),
        ({"k_storage": "raw", "rotate": None}, "k_storage"),
    ],
)
def test_options_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        small(**options)
    assert caught.value.parameter == name


# Limits


def test_big_numbers_are_infinity() -> None:
    cache = small()
    fill(cache, "0000")
    cache.seq_rm(0, 1, 1 << 40)
    assert cache.map() == "0"
    with pytest.raises(ParameterError, match="n must be 1 or more"):
        cache.find_slot(0)
    assert cache.find_slot(1 << 40) is None


def test_a_thousand_steps_move_nothing(llama: Decoder) -> None:  # S6, S9
    ctx = Context(llama, n_ctx=64, n_ubatch=4, n_seq_max=3, **F32)
    cache, rng = ctx.cache, np.random.default_rng(3)
    where = cache.addresses()
    for _ in range(300):
        free = np.flatnonzero(cache.cells.positions < 0)
        for t in cache.keys.layers + cache.values.layers:
            t[free] = float("nan")
        seq, n = int(rng.integers(3)), int(rng.integers(1, 7))
        if n > cache.free:
            cache.seq_rm(seq)
            cache.defrag()
            continue
        assert np.isfinite(ctx.decode(Batch.one(tokens(n, n), seq=seq))).all()
        kind = int(rng.integers(6))
        if kind == 0:
            cache.seq_cp(seq, (seq + 1) % 3, 0, 4)
        elif kind == 1:
            cache.seq_rm(seq, int(rng.integers(9)), -1)
        elif kind == 2 and cache.cells.shared_cells == 0:
            cache.seq_add(seq, 0, -1, int(rng.integers(5)))
        cache.check()
    assert cache.addresses() == where


# Nothing half done


def change_decode(ctx: Context) -> object:
    return ctx.decode(Batch.one(tokens(9, 5), seq=1))


CHANGES: dict[str, Any] = {
    "decode": change_decode,
    "rm": lambda ctx: ctx.cache.seq_rm(0, 2, 9),
    "rm of all": lambda ctx: ctx.cache.seq_rm(-1, 2, 9),
    "cp": lambda ctx: ctx.cache.seq_cp(0, 2, 1, 8),
    "keep": lambda ctx: ctx.cache.seq_keep(0),
    "add": lambda ctx: ctx.cache.seq_add(1, 3, -1, 4),
    "div": lambda ctx: ctx.cache.seq_div(0, 0, -1, 2),
    "clear": lambda ctx: ctx.cache.clear(data=False),
    "defrag": lambda ctx: ctx.cache.defrag(),
    "unshare": lambda ctx: ctx.cache.unshare(1),
    "read a state": lambda ctx: ctx.cache.state_read(ctx.saved),
    "read a sequence": lambda ctx: ctx.cache.state_read(ctx.saved_one, 2),
    "reuse": lambda ctx: ctx.cache.reuse(2, ctx.text),
    "slide": lambda ctx: ctx.cache.sequence(1).slide(1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_allocation_may_fail(llama: Decoder, name: str) -> None:
    """The cells' n-th allocation fails, for every n, until the change gets through."""
    ctx: Any = Context(llama, n_ctx=64, n_seq_max=3, n_ubatch=4, prefix=PrefixConfig(4, 2), **F32)
    ctx.text = tokens(8)
    ctx.decode(Batch.one(ctx.text))
    ctx.cache.keep(0, ctx.text)
    ctx.cache.seq_cp(0, 1)
    ctx.saved_one = ctx.cache.state_write(0)
    for i in range(6):
        batch = Batch()
        for s in (0, 1):
            batch.add(i, seqs=[s])
        ctx.decode(batch)
    ctx.cache.seq_rm(0, 9, 11)
    ctx.saved = ctx.cache.state_write()
    before, failures = snapshot(ctx.cache), 0
    while True:
        assert failures < 500
        _native.fail_allocation(failures)
        try:
            CHANGES[name](ctx)
            break
        except MemoryError:
            failures += 1
        finally:
            _native.fail_allocation(-1)
        assert snapshot(ctx.cache) == before
        assert ctx.cache.match([*ctx.text, 1]).length == 8
        ctx.cache.check()
    ctx.cache.check()
    assert snapshot(ctx.cache) != before
    assert failures or name == "clear"


@pytest.mark.parametrize(("used", "n"), [(0, 256), (6, 256), (256, 256), (257, 512), (1000, 1000)])
def test_attended_cells(used: int, n: int) -> None:  # [L] T1
    cache = small(1000)
    fill(cache, "0" * used)
    assert cache.n == n


OVERWRITING: dict[str, Any] = {
    "removed": lambda ctx: ctx.cache.seq_rm(0),
    "all but one removed": lambda ctx: ctx.cache.seq_keep(2),
    "cleared": lambda ctx: ctx.cache.clear(data=False),
    "zeroed": lambda ctx: ctx.cache.clear(),
    "moved below 0": lambda ctx: ctx.cache.seq_add(0, 0, -1, -5),
    "moved together": lambda ctx: (ctx.cache.seq_rm(0, 0, 5), ctx.cache.defrag()),
    "copied apart": lambda ctx: (ctx.cache.seq_rm(0, 0, 6), ctx.cache.seq_cp(0, 1), ctx.cache.unshare(1)),
    "read from a state": lambda ctx: ctx.cache.state_read(ctx.cache.state_write(2), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", OVERWRITING)
@pytest.mark.parametrize("inner", [False, True])
def test_rows_overwritten_in_a_block_come_back(llama: Decoder, name: str, inner: bool) -> None:
    """What is freed and used again within a block that fails, or within one inside it."""
    ctx = Context(llama, n_ctx=16, n_seq_max=3, **F32)
    ctx.decode(Batch.one(tokens(10), seq=0))
    ctx.decode(Batch.one(tokens(4, 2), seq=2))
    before, rows = ctx.cache.state_write(), snapshot(ctx.cache)

    def change(with_inner: bool) -> None:
        with ctx.cache.step() as step:
            if with_inner:
                ctx.cache.seq_cp(2, 1)
                change(False)
                ctx.cache.seq_rm(1)
                return
            OVERWRITING[name](ctx)
            seq = 1 if ctx.cache.seq_pos_max(1) < 0 else 2
            if free := ctx.cache.free:
                ctx.decode(Batch.one(tokens(free, 3), seq=seq))
            assert snapshot(ctx.cache) != rows
            step.cancel()

    change(inner)
    assert snapshot(ctx.cache) == rows
    assert ctx.cache.state_write() == before
    ctx.cache.check()
