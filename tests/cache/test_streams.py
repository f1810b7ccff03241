"""Caches in which every sequence has a share to itself.  Numbers marked [L], [O] are llama.cpp's."""

from __future__ import annotations

import numpy as np
import pytest

from aleator.core.errors import CacheFull, InvalidBatch, ParameterError
from aleator.generate import Batch, Context
from aleator.models.decoder import Decoder
from tests.cache.caches import F32, fill, small, snapshot, tokens


def test_streams(llama: Decoder) -> None:  # T16
    ctx = Context(llama, n_ctx=1024, n_seq_max=4, policy="streams", **F32)
    cache = ctx.cache
    text = tokens(5)
    batch = Batch()
    for i, token in enumerate(text):
        batch.add(token, seqs=[0])
        if i < 3:
            batch.add(token, seqs=[2])
    ctx.decode(batch)
    assert cache.cells.seq_cell_list(2).tolist() == [512, 513, 514]
    assert cache.cells.heads == [5, 256, 515, 768]
    cache.seq_cp(0, 1)
    assert (cache.seq_pos_min(1), cache.seq_pos_max(1)) == (0, 4)
    for layer in range(2):
        assert np.array_equal(
            cache.read_keys(layer, np.arange(5)), cache.read_keys(layer, np.arange(256, 261))
        )
    rows = []
    for s in (0, 1):
        rows.append(ctx.decode(Batch.one([9], seq=s))[0])
    assert np.allclose(rows[0], rows[1], atol=1e-5)
    before = snapshot(cache)
    with pytest.raises(ParameterError, match="copied whole"):
        cache.seq_cp(0, 1, 0, 3)
    assert snapshot(cache) == before
    cache.seq_cp(0, 3, 0, 255)
    assert cache.seq_pos_max(3) == 5
    coupled = Batch()
    coupled.add(1, seqs=[0, 1])
    with pytest.raises(InvalidBatch, match="streams"):
        ctx.decode(coupled)
    with pytest.raises(CacheFull, match="share that each sequence"):
        ctx.decode(Batch.one(tokens(255), seq=2))
    cache.seq_keep(0)
    assert [cache.seq_pos_max(s) for s in range(4)] == [5, -1, -1, -1]
    cache.check()


def test_a_failed_copy_between_streams_restores_the_rows() -> None:
    cache = small(16, policy="streams")
    fill(cache, "0000111")
    before = snapshot(cache)
    with cache.step() as step:
        cache.seq_cp(0, 1)
        assert cache.map() == "00001111"
        step.cancel()
    assert snapshot(cache) == before


def test_a_copy_between_streams_is_there_at_once(llama: Decoder) -> None:  # [L≠] study T13
    ctx = Context(llama, n_ctx=256, n_seq_max=4, policy="streams", **F32)
    for s in (0, 1):
        ctx.decode(Batch.one(tokens(20, s), seq=s))
    theirs, ours = (ctx.cache.state_write(s) for s in (0, 1))
    ctx.cache.seq_cp(0, 1)
    copied = ctx.cache.state_write(1)
    # The head, the number of streams, that of the cells of each up to its own, the cells with their ids.
    rows = [8 + 4 + 4 * n + 20 * 12 for n in (1, 2)]
    assert theirs[rows[0] : -12] == copied[rows[1] : -8]
    assert theirs[rows[0] : -12] != ours[rows[1] : -8]
    ctx.cache.state_read(ours, 1)
    ctx.decode(Batch.one([1], seq=2))
    assert ctx.cache.state_write(1) == ours


def test_only_streams_need_sequences_with_ids_in_a_row() -> None:
    batch = Batch()
    for seq, position in ((0, 0), (0, 1), (2, 0), (2, 1)):
        batch.add(1, position, [seq])
    for policy, expected in (("unified", [[0, 1, 2, 3]]), ("streams", [[0, 1], [2, 3]])):
        plan = small(policy=policy).plan(batch, rule="equal", n_ubatch=4)
        parts = [np.arange(4)[part.tokens].tolist() for part in plan.parts]
        assert sorted(map(sorted, parts)) == expected


@pytest.mark.parametrize(
    ("p0", "p1", "copied"),
    [(2, 6, True), (0, -1, True), (3, 6, False), (2, 5, False), (1, 7, True), (6, -1, False)],
)
def test_a_range_that_is_all_of_a_sequence(p0: int, p1: int, copied: bool) -> None:
    cache = small(32, policy="streams")
    fill(cache, "000000")
    cache.seq_rm(0, 0, 2)
    if copied:
        cache.seq_cp(0, 3, p0, p1)
    else:
        with pytest.raises(ParameterError, match="copied whole"):
            cache.seq_cp(0, 3, p0, p1)
    assert (cache.seq_pos_min(3), cache.seq_pos_max(3)) == ((2, 5) if copied else (-1, -1))
    cache.seq_cp(1, 3, 2, 3)  # nothing, and any range is all of it
    assert cache.seq_pos_max(3) == -1


def test_two_sequences_are_streams_too() -> None:
    cache, batch = small(16, n_seq_max=2, policy="streams"), Batch()
    batch.add(1, seqs=[0, 1])
    with pytest.raises(InvalidBatch, match="policy='streams'"):
        cache.plan(batch)
    fill(cache, "000000001111")
    cache.seq_rm(0, 0, 4)
    with pytest.raises(CacheFull, match=r"8 free cells, but not 5 in the share"):
        cache.plan(Batch.one([1] * 5, seq=1))
