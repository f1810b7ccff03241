"""What texts are scored by, by itself: groups of texts, ratios of chains, chunks."""

from __future__ import annotations

import math
import random
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aleator.core.errors import ParameterError
from aleator.generate import vectors
from aleator.generate.scores import (
    LARGEST,
    ROWS_BYTES,
    ChainScore,
    Importance,
    chunks_of,
    groups,
    rows_at_once,
)


def test_groups_are_as_long_as_sequences_and_cells_allow() -> None:
    dice = random.Random(3)
    for _ in range(300):
        texts = [[0] * dice.randrange(1, 6) for _ in range(dice.randrange(9))]
        most, cells = dice.randrange(1, 5), dice.randrange(1, 12)
        made = list(groups(texts, most, cells))
        assert [i for group in made for i in group] == list(range(len(texts)))
        for group, following in zip_longest(made, made[1:]):
            taken = sum(len(texts[i]) for i in group)
            assert len(group) == 1 or (len(group) <= most and taken <= cells)
            if following is not None:
                assert len(group) == most or taken + len(texts[following[0]]) > cells


def test_rows_at_once() -> None:
    assert rows_at_once(1) == ROWS_BYTES // 4
    assert rows_at_once(ROWS_BYTES // 36) == 9
    assert rows_at_once(ROWS_BYTES // 32) == rows_at_once(ROWS_BYTES) == 8


def scored(*logprobs: float) -> ChainScore:
    kept: Any = tuple(SimpleNamespace(logprob=each) for each in logprobs)
    return ChainScore((1,) * len(logprobs), logprobs, kept)


@pytest.mark.parametrize(
    ("own", "other", "log", "ratio"),
    [
        (-2.0, -1.0, 1.0, math.e),
        (-1.0, -math.inf, -math.inf, 0.0),
        (-math.inf, -math.inf, -math.inf, 0.0),
        (-math.inf, -1.0, math.inf, math.inf),
        (-LARGEST, 0.0, LARGEST, math.inf),
        (-700.0, 0.0, 700.0, math.exp(700.0)),
    ],
)
def test_ratios_of_tokens(own: float, other: float, log: float, ratio: float) -> None:
    found = Importance(behaviour=scored(own), target=scored(other))
    assert found.log_ratios == (log,)
    assert found.ratios == (ratio,)
    assert found.ratio == ratio


def test_the_ratio_of_a_text() -> None:
    found = Importance(behaviour=scored(-1.0, -3.0), target=scored(-2.0, -1.5))
    assert found.ratio == pytest.approx(math.exp(0.5))
    assert found.behaviour.logprob == -4.0
    lost = Importance(behaviour=scored(-math.inf, -1.0), target=scored(-1.0, -math.inf))
    assert lost.ratio == 0.0


def test_chunks() -> None:
    assert chunks_of(range(11), 4, None) == 2
    assert chunks_of(range(12), 4, None) == 3
    assert chunks_of(range(12), 4, 1) == 1
    assert chunks_of(range(12), 4, 9) == 3
    assert chunks_of(range(4), 4, None) == 1
    for n_ctx, chunks, says in ((3, None, "at least 4"), (4, 0, "at least 1"), (13, None, "fewer")):
        with pytest.raises(ParameterError, match=says):
            chunks_of(range(12), n_ctx, chunks)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_are_pooled(pooling: str, normalize: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [(1, 2, 3), (4,), (5, 6)]
    states = {(i, at): np.array([i + 1.0, at - 2.0, 0.0]) for i in range(3) for at in range(3)}
    states[1, 0] = np.zeros(3)

    def rows(_: object, wanted: Any) -> Any:
        for i, each in enumerate(wanted):
            for at in range(each.first, len(each.tokens)):
                yield i, at, states[i, at]

    monkeypatch.setattr(vectors, "rows_of", rows)
    context: Any = SimpleNamespace(decoder=SimpleNamespace(config=SimpleNamespace(n_embd=3)))
    found = np.stack(list(vectors.pooled_of_decoder(context, texts, pooling)))
    found = vectors.normalised(found) if normalize else found.astype(np.float32)
    for i, tokens in enumerate(texts):
        own = np.array([states[i, at] for at in range(len(tokens))])
        expected = {"mean": own.mean(axis=0), "cls": own[0], "last": own[-1]}[pooling]
        assert np.array_equal(vectors.pooled(own, pooling), expected)
        length = np.linalg.norm(expected) if normalize else 1.0
        np.testing.assert_allclose(found[i], expected / (length or 1.0), rtol=1e-6)
    assert found.dtype == np.float32
