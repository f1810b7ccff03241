"""Which cells a token sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.cache import Cells
from tests.cache.caches import mask
from tests.cache.test_cells import bits

T24 = ["MM.01001", (0, 1, -1, 2, 2, 3, 4, 3)]


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, ("11010110", "11001001", "11010100")),
        ({"window": "standard"}, ("00000110", "00001001", "00010100")),
        ({"window": "chunked"}, ("00000010", "00001001", "00010100")),
        ({"window": "standard", "causal": False}, ("00000110", "00001001", "00010110")),
        ({"causal": False}, ("11010110", "11001001", "11010110")),
    ],
)
def test_mask_matrices(options: dict[str, Any], rows: tuple[str, ...]) -> None:  # [L] study T24
    cells = Cells(8, 2)
    for i, (sign, pos) in enumerate(zip(*T24, strict=True)):
        if sign != ".":
            owners = bits(cells, [0, 1] if sign == "M" else [int(sign)])
            cells.put(np.array([i]), np.array([pos], np.int32), np.array([owners], np.uint64))
    positions, seqs = np.array([4, 3, 3], np.int32), np.array([0, 1, 0], np.int32)
    visible = np.ones((3, 8), np.bool_)
    n = mask(cells, positions, seqs, visible, width=2, **options)
    assert ["".join("01"[x] for x in row) for row in visible.tolist()] == list(rows)
    assert n == visible.sum()


def test_coordinates_of_cells_that_have_none_are_refused() -> None:
    cells = Cells(8, 1)
    query, out = np.zeros(3, np.int32), np.ones((3, 8), np.bool_)
    with pytest.raises(ValueError, match="extras"):
        mask(cells, query, query, out, coordinates=np.zeros((3, 2), np.int32))
    assert out.all()
