"""Batches of a context: which token a refusal names, and which steps are given what draws from their logits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aleator.core.errors import InvalidBatch, ParameterError
from aleator.generate import Batch, Context, context
from tests.conftest import MakeDecoder


def added(**third: Any) -> Batch:
    """A batch of two sound tokens and a third."""
    batch = Batch()
    for given in ({"token": 1}, {"token": 2}, {"token": 3, **third}):
        batch.add(**given)
    return batch


def embedded(third: Any, **options: Any) -> Batch:
    batch = Batch()
    for vector in (np.zeros(64), np.ones(64)):
        batch.add_embedding(vector)
    batch.add_embedding(third, **options)
    return batch


@pytest.mark.parametrize("wrong", ["x", 1.5, True, b"1", [1]])
def test_a_refusal_names_the_token(wrong: Any) -> None:
    cases: list[tuple[int, Callable[[], Batch]]] = [
        (2, lambda: Batch.one([1, 2, wrong, wrong])), (0, lambda: Batch.one([1, 2], wrong)),
        (0, lambda: Batch.one([1, 2], 0, wrong)), (2, lambda: added(token=wrong)),
        (2, lambda: added(pos=(0, wrong))), (2, lambda: added(seqs=(0, wrong))),
        (2, lambda: embedded(np.zeros((2, 2)))), (2, lambda: embedded("x")),
        (2, lambda: embedded(np.zeros(64), seqs=(wrong, 0))),
    ]  # fmt: skip
    for index, make in cases:
        with pytest.raises(InvalidBatch) as refused:
            make()
        assert refused.value.index == index
    for seqs, says in ((5, "must be a list of ids"), ((1, 0, 1), "name one twice")):
        with pytest.raises(InvalidBatch, match=f"batch token 2: sequences .*{says}") as refused:
            added(seqs=seqs)
        assert refused.value.index == 2


def test_a_decode_names_the_token_that_it_refuses(make_decoder: MakeDecoder) -> None:
    made = Context(make_decoder("llama"), n_ctx=16)
    for token, sound in ((-1, False), (0, True), (63, True), (64, False)):
        batch = added(token=token)
        if sound:
            assert len(made.decode(batch)) == 1
        else:
            with pytest.raises(InvalidBatch, match=r"batch token 2: token .* \[0, 64\)"):
                made.decode(batch)
    for vector, says in (
        (np.zeros(63), "has 63 values, the model 64"), (np.full(64, np.nan), "holds NaN or infinity"),
        (np.r_[np.zeros(63), -np.inf], "holds NaN or infinity"),
    ):  # fmt: skip
        with pytest.raises(InvalidBatch, match=f"batch token 2: the embedding {says}"):
            made.decode(embedded(vector))


def test_what_was_not_trained_is_warned_of(
    make_decoder: MakeDecoder, caplog: pytest.LogCaptureFixture
) -> None:
    """The model was trained with 512 positions of a sequence."""
    decoder = make_decoder("llama")
    with caplog.at_level(logging.WARNING):
        Context(decoder, n_ctx=512)
        Context(decoder, n_ctx=1024, n_seq_max=2)
    assert caplog.messages == []
    with caplog.at_level(logging.WARNING):
        Context(decoder, n_ctx=1025, n_seq_max=2)
    assert caplog.messages == ["n_ctx=1025: the model was trained with 512 positions"]


def test_few_threads_are_asked_for(
    make_decoder: MakeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = Context(make_decoder("llama"), n_ctx=8, n_threads=2, n_threads_batch=4)
    run, asked = made._step.run, []

    def noted(*given: Any) -> Any:
        asked.append(given[4])
        return run(*given[:4], 1, *given[5:])

    monkeypatch.setattr(made._step, "run", noted)
    monkeypatch.setattr(context, "MAX_THREADS", 3)
    made.decode(Batch.one([1]))
    made.decode(Batch.one([1, 2]))
    assert asked == [2, 3]


@pytest.mark.parametrize(
    ("sequences", "logits", "n_ubatch", "draws"),
    [
        ([0, 1, 2], [True] * 3, 8, [True]),  # each token wants its logits, in one micro-batch
        ([0], [None], 8, [True]),
        ([0, 0], [None, None], 8, [False]),
        ([0, 1, 2], [True, False, True], 8, [False]),
        ([0, 1, 2], [True] * 3, 2, [False, False]),
        ([1, 0, 1], [True] * 3, 8, [False, False]),  # the cut puts them into another order
    ],
)
def test_what_draws_is_given_to_whole_steps_alone(
    sequences: list[int], logits: Any, n_ubatch: int, draws: list[bool],
    make_decoder: MakeDecoder, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    made: Any = Context(
        make_decoder("llama"), n_ctx=16, n_seq_max=3, n_ubatch=n_ubatch, split="equal"
    )
    run, given, draw = made._step.run, list[Any](), object()

    def noted(*asked: Any) -> Any:
        given.append(asked[5])
        return run(*asked[:5], None, *asked[6:])

    monkeypatch.setattr(made._step, "run", noted)
    batch = Batch()
    for i, (seq, wanted) in enumerate(zip(sequences, logits, strict=True)):
        batch.add(i, seqs=[seq], logits=wanted)
    made.decode(batch, draw)
    assert [each is draw for each in given] == draws
    assert all(each in (draw, None) for each in given)


@pytest.mark.parametrize(
    ("name", "options", "split"),
    [
        ("llama", {}, "simple"), ("llama", {"policy": "streams"}, "equal"), ("mamba", {}, "simple"),
        ("jamba", {}, "equal"), ("gemma3", {}, "simple"), ("jamba", {"split": "sequence"}, "sequence"),
        ("llama", {"policy": "streams", "split": "simple"}, "simple"),
    ],
)  # fmt: skip
def test_how_batches_are_cut(
    name: str, options: dict[str, Any], split: str, make_decoder: MakeDecoder
) -> None:
    made = Context(make_decoder(name), n_ctx=32, n_threads=3, **options)
    assert made.split == split
    assert made.n_threads_batch == 3


@pytest.mark.parametrize(
    ("name", "why"),
    [("llama", ""), ("mamba", "a state knows"), ("jamba", "a state"), ("gemma3", "windows know")],
)
def test_all_tokens_are_seen_where_the_cache_allows_it(
    name: str, why: str, make_decoder: MakeDecoder
) -> None:
    if not why:
        assert not Context(make_decoder(name), n_ctx=32, causal_attn=False).causal_attn
        return
    with pytest.raises(ParameterError, match=f"causal_attn=False: {why}"):
        Context(make_decoder(name), n_ctx=32, causal_attn=False)
