"""What counts as an integer, and the words for what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.core.errors import ParameterError
from aleator.core.integers import (
    UNBOUNDED,
    exact,
    first_inexact,
    integer,
    integer_in,
    shared,
    token_ids,
)

NONE: list[Any] = [
    1.0,
    2.5,
    "1",
    b"1",
    None,
    True,
    np.bool_(True),
    np.float32(1),
    [1],
    float("nan"),
]


def test_a_tensor_is_an_integer_too() -> None:
    torch = pytest.importorskip("torch")
    assert type(exact(torch.tensor(7))) is int


@pytest.mark.parametrize("value", [7, np.int8(7), np.uint64(7), np.array(7)])
def test_integers_of_any_kind(value: Any) -> None:
    assert exact(value) == 7
    assert type(exact(value)) is int
    assert integer_in("n", value, 7, 7) == 7


@pytest.mark.parametrize("value", NONE, ids=repr)
def test_what_is_none(value: Any) -> None:
    assert exact(value) is None
    assert first_inexact([1, np.int64(2), value, 2.5]) == 2
    with pytest.raises(ParameterError, match="n must be an integer, not"):
        integer("n", value)
    with pytest.raises(ParameterError, match=r"n must be an integer in \[0, 5\], not") as caught:
        integer_in("n", value, 0, 5)
    assert caught.value.parameter == "n"


def test_ranges_are_named() -> None:
    assert integer_in("n", 2**31 - 1, 0, 2**31 - 1) == 2**31 - 1
    with pytest.raises(ParameterError, match=r"n must lie in \[0, 2\^31\), not -1$"):
        integer_in("n", -1, 0, 2**31 - 1)
    with pytest.raises(ParameterError, match=r"n must lie in \[1, 4096\], not 4097$"):
        integer_in("n", 4097, 1, 4096)
    with pytest.raises(ParameterError, match=r"n must be 1 or more, not 0$"):
        integer_in("n", 0, 1, UNBOUNDED)
    with pytest.raises(ParameterError, match=r"n must be an integer, 1 or more, not 0.5$"):
        integer_in("n", 0.5, 1, UNBOUNDED)


def test_token_ids() -> None:
    assert token_ids([]).tolist() == []
    assert token_ids((1, np.int64(2))).dtype == np.int32
    assert token_ids(np.array([3, 4], np.uint8)).tolist() == [3, 4]
    wrong: list[Any] = [[1.5], "12", ["1"], [[1]], [1, [2]], None, 5, [2**70], [True]]
    for tokens in wrong:
        with pytest.raises(ParameterError, match="tokens must be a list of token ids") as refused:
            token_ids(tokens)
        assert str(refused.value).endswith(f"not {tokens!r}")
    for tokens in ([-1], [2**31], [0, 2**40]):
        message = rf"tokens: token ids must lie in \[0, 2\^31\), not {tokens[-1]}$"
        with pytest.raises(ParameterError, match=message):
            token_ids(tokens)


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [([], [1], 0), ([1, 2], [1, 2, 3], 2), ((1, 2), [1, 2], 2), ([1, 5, 3], [1, 2, 3], 1)],
)
def test_how_far_two_sequences_agree(a: list[int], b: list[int], n: int) -> None:
    assert shared(a, b) == shared(b, a) == n
