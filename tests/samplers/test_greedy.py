from __future__ import annotations

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import LogitsError
from tests.samplers.steps import INF, NAN, Row, applied, f32


@pytest.mark.parametrize(
    ("row", "token"),
    [
        (f32(1, 3, 2), 1),
        (f32(2, 5, 5, 5), 1),  # ties: the lowest id
        (f32(-0.0, 0.0), 0),  # they are equal
        (f32(NAN, -INF, -3e38), 2),
        (f32(3e38, INF, INF), 1),
        (f32(1e-45, 0, -1e-45), 0),
    ],
)
def test_the_highest_logit_is_selected(row: Row, token: int) -> None:
    assert applied(row, S.Greedy()).selected == token
    for numerics in ("portable", "llama.cpp"):
        assert S.SamplerChain([S.Greedy()], numerics=numerics).sample(row) == token


def test_it_keeps_all() -> None:
    assert applied(f32(1, 3, 2), S.Greedy()).ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize("n", [1, 127, 128, 129, 5000])
def test_any_place(n: int) -> None:
    for place in {0, n // 2, n - 1}:
        row = np.full(n, -1, np.float32)
        row[place:] = 2
        assert S.SamplerChain([S.Greedy()]).sample(row) == place


def test_what_stands_before_it_counts() -> None:
    row = f32(1, 3, 2)
    assert applied(row, S.LogitBias({2: 1.5}), S.Greedy()).selected == 2
    assert applied(row, S.TokenMask([0, 2]), S.Greedy()).selected == 2
    assert applied(row, S.Temperature(temperature=30), S.Greedy()).selected == 1


def test_nothing_finite_is_an_error_where_llama_cpp_says_zero() -> None:
    for numerics in ("portable", "llama.cpp"):
        with pytest.raises(LogitsError, match="finite"):
            S.SamplerChain([S.Greedy()], numerics=numerics).sample(f32(-INF, NAN))
