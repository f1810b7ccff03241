"""What tokens see, as kernels read it: the same cells, each with what its key lags behind or is rotated by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
import torch

from aleator.models.kernels.seen import SeenTensors, VisibleCells, apart, listed


def cells_of(sight: VisibleCells, token: int) -> tuple[list[int], list[int]]:
    """The places in the lists that a kernel reads for a token, and their cells."""
    start, sinks, first, n, _ = (int(each) for each in sight.tokens[:, token])
    places = [start + (i if i < sinks else i - sinks + first) for i in range(n)]
    return places, [int(sight.cells[place]) for place in places]


def arrays(seed: int) -> dict[str, Any]:
    """Three lists, the first of them empty, and tokens that see the beginning of one."""
    rng = np.random.default_rng(seed)
    lengths = [0, 9, 5]
    which = np.array([1, 1, 2, 0, 2, 1], np.int32)
    return {
        "cells": rng.permutation(40)[:14].astype(np.int32), "start": np.cumsum([0, *lengths]),
        "which": which, "counts": np.array([9, 4, 5, 0, 0, 1]), "deltas": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "sinks"),
    [
        (None, None), ([0, 0, 0, 0, 0, 0], None), ([3, 4, 5, 0, 0, 0], None), ([5, 4, 9, 0, 2, 7], None),
        ([3, 2, 4, 0, 0, 1], [1, 1, 3, 0, 0, 1]), ([2, 1, 5, 0, 0, 1], [2, 2, 4, 1, 1, 1]),
        ([0, 0, 0, 0, 0, 0], [2] * 6), ([9, 4, 5, 0, 0, 1], [1, 2, 1, 0, 0, 0]),
    ],
)  # fmt: skip
def test_the_cells_of_windows_and_sinks(first: list[int] | None, sinks: list[int] | None) -> None:
    given = arrays(1)
    low = None if first is None else np.array(first)
    sunk = None if sinks is None else np.array(sinks)
    sight = listed(**given, first=low, sinks=sunk, positions=np.arange(6, dtype=np.int32) + 50)
    assert sight.tokens.dtype == np.int32
    assert sight.tokens[4].tolist() == list(range(50, 56))
    for token in range(6):
        begin = int(given["start"][given["which"][token]])
        wanted = [
            int(given["cells"][begin + i])
            for i in range(int(given["counts"][token]))
            if i >= (first or [0] * 6)[token] or i < (sinks or [0] * 6)[token]
        ]
        assert cells_of(sight, token)[1] == wanted
    tensors = SeenTensors(
        sight, torch.from_numpy(sight.tokens), torch.from_numpy(sight.cells), None, None
    )
    assert tensors.longest == int(sight.tokens[3].max())
    assert tensors.places.tolist() == list(range(14))
    assert tensors.places is not tensors.places  # a graph replays in memory that it took itself
    assert (tensors.n_tokens, tensors.n_rotations, tensors.raw) == (6, 1, False)


@pytest.mark.parametrize(
    "deltas", [[0] * 14, [7, 0, 0, 3, 7, 7, 30, 3, 0, 0, 0, 1, 30, 7], [5] * 14]
)
def test_what_keys_lag_behind(deltas: list[int]) -> None:
    moved = np.array(deltas, np.int32)
    sight = listed(**arrays(2) | {"deltas": moved})
    assert sight.deltas is not None
    assert sight.rows is not None
    assert sight.deltas[sight.rows].tolist() == deltas
    assert sight.deltas[0] == 0
    assert len(sight.deltas) == len({0, *deltas})
    tokens, cells, rows = (torch.from_numpy(x) for x in (sight.tokens, sight.cells, sight.rows))
    n = len(sight.deltas)
    assert SeenTensors(sight, tokens, cells, rows, None).n_rotations == n
    assert SeenTensors(sight, tokens, cells, rows, None, rotations=n + 1).n_rotations == n + 1
    with pytest.raises(ValueError, match=f"keys need {n} rotations, more than {n - 1}"):
        SeenTensors(sight, tokens, cells, rows, None, rotations=n - 1)


def test_raw_keys_have_their_positions() -> None:
    at = np.arange(14, dtype=np.int32)[::-1].copy()
    for deltas, rows in ((at, at), (None, np.zeros(14, np.int32))):
        sight = listed(**arrays(3) | {"deltas": deltas}, raw=True)
        assert sight.deltas is None
        assert sight.rows is not None
        assert sight.rows.tolist() == rows.tolist()
        tensors = SeenTensors(sight, torch.zeros(5, 6), torch.zeros(14), None, None, longest=9)
        assert (tensors.raw, tensors.n_rotations, tensors.longest) == (True, 1 + int(rows.max()), 9)
    with pytest.raises(ValueError, match="a token sees 9 cells, more than 8"):
        SeenTensors(sight, torch.zeros(5, 6), torch.zeros(14), None, None, longest=8)
    at[3] = -1
    with pytest.raises(ValueError, match="position is negative"):
        listed(**arrays(3) | {"deltas": at}, raw=True)


def test_of_no_cells_nothing_is_seen() -> None:
    none = np.zeros(0, np.int32)
    given: dict[str, Any] = {
        "cells": none, "start": np.zeros(2, np.int64), "which": np.zeros(1, np.int32),
        "counts": np.zeros(1, np.int64),
    }  # fmt: skip
    for deltas in (None, none):
        for raw in (False, True):
            sight = listed(**given, deltas=deltas, raw=raw)
            assert cells_of(sight, 0) == ([], [])
            tensors = SeenTensors(sight, torch.zeros(5, 1), torch.zeros(0), None, None)
            assert (tensors.longest, tensors.n_rotations) == (0, 1)


@pytest.mark.parametrize(
    ("counts", "lists", "expected"),
    [
        ([3, 3], [0, 1], True),  # 0 1 7 and 2 3 8
        ([2, 3], [2, 2], False),  # 4 7 and 4 7 8
        ([3, 3], [0, 3], False),  # 7 is of both sequences
        ([3], [0], True),
        ([2], [0], False),  # 0 1: without its own
    ],
)
def test_tokens_are_apart_that_see_only_their_own_new_cells(
    counts: list[int], lists: list[int], expected: bool
) -> None:
    cells = np.array([0, 1, 7, 2, 3, 8, 4, 7, 8, 3, 7, 8], np.int32)
    given = {"cells": cells, "start": np.arange(0, 13, 3), "list": np.array(lists)}
    seen = SimpleNamespace(**given, counts=np.array(counts))
    batch: Any = SimpleNamespace(seen=seen, cell_ids=np.array([7, 8][: len(lists)]))
    assert apart(batch) is expected
