"""How batches are cut; the table of the study's section 3.2."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aleator.cache.batches import RULES, split
from aleator.core.errors import ParameterError


def lengths(*per_sequence: int) -> list[tuple[int, ...]]:
    return [(s,) for s, n in enumerate(per_sequence) for _ in range(n)]


@pytest.mark.parametrize(
    ("lens", "n_ubatch", "options", "expected"),
    [
        ((5,), 2, {"rule": "simple"}, [[0, 1], [2, 3], [4]]),
        ((4, 2), 8, {"rule": "equal"}, [[0, 1, 4, 5], [2, 3]]),
        ((2, 2), 4, {"rule": "equal", "keep_tail": 2}, [[0, 1, 2, 3]]),
        ((2, 3), 4, {"rule": "equal", "keep_tail": 2}, [[0, 1], [2, 3, 4]]),
        ((3, 3), 4, {"rule": "equal", "keep_tail": 2}, [[0, 1, 2], [3, 4, 5]]),
        ((5,), 4, {"rule": "equal", "keep_tail": 2}, [[0, 1, 2], [3, 4]]),
        ((6,), 4, {"rule": "equal", "keep_tail": 2}, [[0, 1, 2, 3], [4, 5]]),
        ((3, 4), 6, {"rule": "equal", "keep_tail": 2}, [[0, 1, 2], [3, 4, 5, 6]]),
        ((6, 6), 8, {"rule": "equal", "keep_tail": 2}, [[*range(4), *range(6, 10)], [4, 5, 10, 11]]),
        ((4, 4), 4, {"rule": "equal", "keep_tail": 3}, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ((3, 3, 3), 2, {"rule": "equal"}, [[0, 3], [1, 4], [2, 5], [6, 7], [8]]),
        ((2, 1), 4, {"rule": "sequence"}, [[0, 1], [2]]),
        ((3, 1), 2, {"rule": "sequence"}, [[0, 1], [2], [3]]),
    ],
)  # fmt: skip
def test_table(
    lens: tuple[int, ...], n_ubatch: int, options: dict[str, Any], expected: list[list[int]]
) -> None:
    assert split(lengths(*lens), n_ubatch, **options) == expected


def test_coupled_tokens() -> None:
    coupled = [(0, 1), (0, 1)]
    assert split(coupled, 8, "equal") == [[0, 1]]
    with pytest.raises(ParameterError, match="several sequences"):
        split(coupled, 8, "equal", sequential=True)
    # The set shrinks: {0, 1}, then 0 alone, which 1 is no part of any more.
    assert split([(0, 1), (0,), (1,), (0,)], 8, "sequence") == [[0, 1, 3], [2]]
    # Overlapping sets are not in one micro-batch.
    assert split([(0, 1), (0,), (1,)], 8, "equal") == [[0], [1, 2]]


def test_consecutive_ids() -> None:
    sequences = [(0,), (2,), (3,), (0,), (2,), (3,)]
    assert split(sequences, 8, "equal", sequential=True) == [[0, 3], [1, 4, 2, 5]]
    assert split(sequences, 8, "equal") == [[0, 3, 1, 4, 2, 5]]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"n_ubatch": 0}, "n_ubatch"),
        ({"rule": "even"}, "rule"),
        ({"rule": "equal", "keep_tail": 4}, "keep_tail"),
        ({"rule": "equal", "keep_tail": -1}, "keep_tail"),
    ],
)
def test_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        split(lengths(3), **{"n_ubatch": 4, **options})
    assert caught.value.parameter == name


@given(
    st.lists(st.sampled_from([(0,), (1,), (2,), (3,)]), min_size=1, max_size=40),
    st.integers(1, 9),
    st.sampled_from(RULES),
    st.data(),
)
def test_every_token_once_in_its_sequences_order(
    sequences: list[tuple[int, ...]], n_ubatch: int, rule: str, data: st.DataObject
) -> None:
    keep = data.draw(st.integers(0, n_ubatch - 1)) if rule == "equal" else 0
    parts = split(sequences, n_ubatch, rule, keep_tail=keep)
    flat = [i for part in parts for i in part]
    assert sorted(flat) == list(range(len(sequences)))
    assert all(0 < len(part) <= n_ubatch for part in parts)
    for s in range(4):
        mine = [i for i in flat if sequences[i] == (s,)]
        assert mine == sorted(mine)
        if keep and mine:  # its last `keep` tokens are together
            tail = set(mine[-keep:])
            assert any(tail <= set(part) for part in parts)
