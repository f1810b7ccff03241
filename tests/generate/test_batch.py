"""The rules of a batch: what breaks one is named, and changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.core.errors import InvalidBatch
from aleator.generate import Batch, Context

V = 64


@pytest.fixture
def ctx(make_decoder: Any) -> Context:
    ctx = Context(make_decoder("llama"), n_ctx=64, n_seq_max=4, type_k="f32", type_v="f32")
    ctx.decode(Batch.one(range(10), 0))
    return ctx


def batch_of(*rows: tuple[int, int | None, list[int]]) -> Batch:
    batch = Batch()
    for token, pos, seqs in rows:
        batch.add(token, pos, seqs, logits=True)
    return batch


@pytest.mark.parametrize(
    ("rows", "index", "message"),
    [
        ([], -1, "empty"),
        ([(1, 11, [0])], 0, "pass 10"),
        ([(1, 9, [0])], 0, "does not continue sequence 0, whose last position is 9"),
        ([(1, 10, [0]), (1, 12, [0])], 1, "leaves a gap after 10"),
        ([(1, 10, [0]), (1, 11, [0]), (1, 10, [0])], 2, "comes after 11"),
        ([(1, -3, [1])], 0, r"position -3 must lie in \[0"),
        ([(1, 2**31 - 1, [1])], 0, "must lie in"),
        ([(1, 10, [0]), (V, 11, [0])], 1, r"token 64 is outside the vocabulary \[0, 64\)"),
        ([(-1, 10, [0])], 0, "token -1"),
        ([(1, 0, [4])], 0, r"sequence 4 must lie in \[0, 4\)"),
        ([(1, 0, [-1])], 0, "sequence -1"),
        ([(1, 0, [])], 0, "no sequence"),
        ([(1, 10, [0, 1])], 0, "share the token but not the tokens before it"),
        ([(1, 0, [1, 2, 3]), (1, 1, [1, 2]), (1, 1, [2, 3])], 2, "one of their own earlier"),
        ([(1, 0, [1, 2]), (1, 1, [2, 3])], 1, "had one of their own"),
        ([(1, 0, [1]), (1, 1, [1, 2])], 1, "had one of their own"),
    ],
)
def test_broken_rules(
    ctx: Context, rows: list[tuple[int, int, list[int]]], index: int, message: str
) -> None:
    positions = ctx.cache.cells.positions.copy()
    with pytest.raises(InvalidBatch, match=message) as caught:
        ctx.decode(batch_of(*rows))
    assert caught.value.index == index
    assert (ctx.cache.cells.positions == positions).all()
    assert ctx.cache.head == 10


def test_sequences_that_look_alike_but_differ_cannot_share_a_token(ctx: Context) -> None:
    # Equal ranges, different text: llama.cpp lets this pass, and answers for the first only.
    ctx.decode(batch_of(*((t, t, [1, 2]) for t in range(4)), (5, 4, [1]), (6, 4, [2])))
    with pytest.raises(InvalidBatch, match="not the tokens before it"):
        ctx.decode(batch_of((1, 5, [1, 2])))


@pytest.mark.parametrize("start", [0, 40])
def test_new_sequence_starts_anywhere(ctx: Context, start: int) -> None:
    ctx.decode(Batch.one([1, 2], start, seq=1))
    assert (ctx.cache.seq_pos_min(1), ctx.cache.seq_pos_max(1)) == (start, start + 1)


def test_missing_fields(ctx: Context) -> None:
    batch = Batch()
    for token in (5, 6, 7):
        batch.add(token)
    assert ctx.decode(batch).shape == (1, V)
    assert ctx.cache.seq_pos_max(0) == 12
    assert ctx.decode(Batch.one([1, 2], seq=3)).shape == (1, V)
    assert ctx.cache.seq_pos_max(3) == 1


def test_repeated_positions_are_allowed_within_a_batch(ctx: Context) -> None:
    assert len(ctx.decode(batch_of((1, 0, [1]), (2, 0, [1]), (3, 1, [1])))) == 3


def test_rows_that_are_wanted(ctx: Context) -> None:
    assert ctx.decode(Batch.one([1, 2, 3], 10, logits=False)).shape == (0, V)
    assert ctx.decode(Batch.one([1, 2, 3], 13, logits=True)).shape == (3, V)
    batch = Batch()
    batch.add(1, 16, logits=True)
    batch.add(2, 17)
    assert ctx.decode(batch).shape == (1, V)


def test_embeddings_are_tokens_looked_up(ctx: Context) -> None:
    tokens = [3, 1, 4, 1, 5]
    by_token = ctx.decode(Batch.one(tokens, 0, seq=1, logits=True))
    batch = Batch()
    for i, t in enumerate(tokens):
        vector = ctx.decoder.weights.floats("token_embd.weight")[t]
        batch.add_embedding(vector, i, [2], logits=True)
    assert np.abs(ctx.decode(batch) - by_token).max() < 1e-5


def test_bad_embeddings(ctx: Context) -> None:
    batch = Batch()
    with pytest.raises(InvalidBatch, match=r"\[n_embd\]"):
        batch.add_embedding(np.zeros((2, 64)))
    batch.add_embedding(np.zeros(63))
    with pytest.raises(InvalidBatch, match="63 values, the model 64"):
        ctx.decode(batch)
    batch = Batch()
    batch.add_embedding(np.full(64, np.nan))
    with pytest.raises(InvalidBatch, match="NaN"):
        ctx.decode(batch)
    batch.add(1)
    with pytest.raises(InvalidBatch, match="not both"):
        ctx.decode(batch)
