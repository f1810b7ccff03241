from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import LogitsError, ParameterError


def chains(n: int) -> list[S.SamplerChain]:
    return [
        S.SamplingParams.preset("llama.cpp", seed=i, repetition_penalty=1.1).chain()
        for i in range(n)
    ]


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_batch_gives_the_tokens_of_its_rows(n_threads: int, dtype: type) -> None:
    rows: Any = np.random.default_rng(0).normal(size=(7, 3000)).astype(dtype)
    batch, single = chains(7), chains(7)
    for _ in range(5):
        tokens = S.sample_batch(batch, rows, n_threads)
        assert tokens == [chain.sample(row) for chain, row in zip(single, rows, strict=True)]
    assert [c.history for c in batch] == [c.history for c in single]


def test_rows_may_lie_apart() -> None:
    rows = np.random.default_rng(0).normal(size=(4, 100)).astype(np.float32)
    assert S.sample_batch(chains(2), rows[::2]) == S.sample_batch(chains(2), rows[::2].copy())
    assert S.sample_batch([], rows[:0]) == []


def test_a_bad_row_is_named_and_changes_no_chain() -> None:
    rows = np.random.default_rng(0).normal(size=(4, 100)).astype(np.float32)
    batch = chains(4)
    S.sample_batch(batch, rows)
    before = [chain.history for chain in batch]
    bad = rows.copy()
    bad[2] = -np.inf
    with pytest.raises(LogitsError, match="row 2"):
        S.sample_batch(batch, bad)
    assert [chain.history for chain in batch] == before
    assert S.sample_batch(batch, rows) == [
        c.sample(r) for c, r in zip(fed(rows), rows, strict=True)
    ]


def fed(rows: np.ndarray) -> list[S.SamplerChain]:
    made = chains(4)
    for chain, row in zip(made, rows, strict=True):
        chain.sample(row)
    return made


def test_wrong_arguments() -> None:
    rows = np.zeros((2, 10), np.float32)
    one = chains(1)[0]
    cases: tuple[tuple[Any, type[Exception]], ...] = (
        (([one, one], rows), ParameterError),
        (([one], rows), LogitsError),
        ((chains(2), rows.astype(np.float64)), LogitsError),
        ((chains(2), rows.T.copy().T), LogitsError),
        ((chains(2), rows[0]), LogitsError),
        ((chains(2), rows, 0), ParameterError),
    )
    for arguments, error in cases:
        with pytest.raises(error):
            S.sample_batch(*arguments)
