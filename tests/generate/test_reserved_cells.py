"""Cells that are reserved for a run of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from aleator.generate import Batch, Context
from aleator.generate.reserved_cells import ReservedCells
from tests.conftest import MakeDecoder


def test_cells_are_reserved_where_the_first_layers_are(make_decoder: MakeDecoder) -> None:
    cache = Context(make_decoder("llama"), n_ctx=600).cache
    assert len(cache.devices) == 2

    class Elsewhere:
        devices = ("meta", "cpu")

        def __getattr__(self, name: str) -> object:
            return getattr(cache, name)

    elsewhere: Any = Elsewhere()
    cells = ReservedCells(elsewhere, 4, lambda layer, keys, distances: keys)
    assert cells.cell_ids.device == cells.count.device == torch.device("meta")


def test_rows_see_the_first_of_their_cells(make_decoder: MakeDecoder) -> None:
    """Of lists at random, of which some repeat others; shapes are of whole buckets."""
    context, dice = Context(make_decoder("llama"), n_ctx=600), np.random.default_rng(2)
    context.decode(Batch.one([3] * 560, 0, logits=False))
    cells = ReservedCells(context.cache, 4, lambda layer, keys, distances: keys)
    assert [cells._all_rows.numel(), *cells._all_ranks.shape] == [768, 4, 768]
    for n in (1, 255, 256, 257, 512, 513):
        for k in (1, 3):
            cut = dice.integers(1, n + 1, k)
            cut[0] = n
            places = dice.permutation(560)[:n]
            lists = [places] if k == 1 else [dice.choice(places, c, False) for c in cut]
            source = dice.integers(0, k, 4).tolist()
            counts = [int(dice.integers(1, len(lists[i]) + 1)) for i in source]
            cells.take(lists, source)
            cells.begin(torch.arange(4), torch.tensor(counts))
            assert cells.shape == (-(-n // 256) * 256, False)
            assert cells.cell_ids.tolist() == [0, 1, 2, 3]
            mask, rows = cells.mask(0), cells._all_rows.numpy()
            assert mask is not None
            for row, i, count in zip(mask, source, counts, strict=True):
                seen = torch.isfinite(row).nonzero().flatten().tolist()
                assert sorted(rows[seen]) == sorted(lists[i][:count])
    context.cache.seq_rm(0, 2, 3)
    context.cache.seq_add(0, 3, -1, -1)
    cells.take([np.array([0, 1])], [0] * 4)
    assert cells.shape == (256, False)
    cells.take([np.array([0, 1, 5])], [0] * 4)
    assert cells.shape == (256, True)
    assert cells._all_distances[:4].tolist() == [0, 0, -1, 0]
