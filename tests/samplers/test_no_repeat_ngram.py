from __future__ import annotations

import itertools

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import LogitsError
from tests.samplers.steps import applied

ROW = np.zeros(8, np.float32)


@pytest.mark.parametrize(
    ("size", "history", "banned"),
    [
        (0, [1, 1, 1], []), (1, [1, 2, 1], [1, 2]), (2, [1, 2, 1], [2]), (2, [1, 2, 1, 3, 1], [2, 3]),
        (2, [1], []), (2, [1, 1], [1]), (3, [1, 2, 3, 1, 2], [3]), (3, [1, 2, 3, 2], []), (3, [1, 2], []),
        (4, [5, 6, 7, 1, 5, 6, 7], [1]), (9, [1, 2, 3], []),
    ],
)  # fmt: skip
def test_what_would_repeat_a_run_is_masked(
    size: int, history: list[int], banned: list[int]
) -> None:
    left = applied(ROW, S.NoRepeatNgram(no_repeat_ngram_size=size), history=history)
    assert left.ids.tolist() == [t for t in range(8) if t not in banned]


def test_transformers_agrees() -> None:
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers").generation.logits_process
    rng = np.random.default_rng(4)
    for size in (1, 2, 3, 5):
        for length in range(40):
            history = rng.integers(0, 3, length).tolist()
            scores = process.NoRepeatNGramLogitsProcessor(size)(
                torch.tensor([history], dtype=torch.int64), torch.zeros(1, 8)
            )
            theirs = torch.isfinite(scores[0]).nonzero().ravel().tolist()
            ours = applied(ROW, S.NoRepeatNgram(no_repeat_ngram_size=size), history=history)
            assert ours.ids.tolist() == theirs


def test_a_chain_never_repeats_and_goes_back_exactly() -> None:
    row = np.arange(9, dtype=np.float32)
    chain = S.SamplingParams(no_repeat_ngram_size=2, temperature=0).chain()
    tokens = [chain.sample(row) for _ in range(12)]
    pairs = list(itertools.pairwise(tokens))
    assert len(set(pairs)) == len(pairs)
    chain.rollback(7)
    assert [chain.sample(row) for _ in range(7)] == tokens[5:]


def test_nothing_left_is_an_error() -> None:
    chain = S.SamplerChain([S.NoRepeatNgram(no_repeat_ngram_size=1), S.Greedy()])
    row = np.zeros(3, np.float32)
    assert [chain.sample(row) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(LogitsError):
        chain.sample(row)
    assert chain.history == [0, 1, 2]
