"""Runs of layers that keep a state: those that share a row are in one chain, in their order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("triton")
import torch

from aleator.cache.pools.recurrent_rows import RecurrentBatch, Run
from aleator.models.config import MAX_CONV
from aleator.models.kernels.runs import Runs, numbers_of

ROWS = 9


def batch_of(seed: int) -> RecurrentBatch:
    """Up to seven runs that read a row or none and write some; no two write the same."""
    rng = np.random.default_rng(seed)
    rows, tokens = rng.permutation(ROWS).tolist(), rng.permutation(40).tolist()
    runs = []
    for _ in range(int(rng.integers(0, 8))):
        own = sorted(tokens.pop() for _ in range(int(rng.integers(1, 5))))
        kept = [i for i in range(len(own)) if rng.random() < 0.4 and rows]
        stores = [(i, rows.pop()) for i in kept if rows]
        runs.append(Run(int(rng.integers(-1, ROWS)), (0,), own, own, stores))
    used = sorted(token for each in runs for token in each.tokens)
    for each in runs:
        each.tokens[:] = map(used.index, each.tokens)
    return RecurrentBatch([], [], runs, np.zeros(len(used), np.int32))


def chains_of(runs: list[Run]) -> list[list[int]]:
    """Runs that write what another one reads or writes, taken together until nothing changes."""
    touched = [{row for _, row in run.stores} | ({run.source} - {-1}) for run in runs]
    written = [{row for _, row in run.stores} for run in runs]
    chain = list(range(len(runs)))
    for _ in runs:
        for a in range(len(runs)):
            for b in range(len(runs)):
                if written[a] & touched[b]:
                    chain[a] = chain[b] = min(chain[a], chain[b])
    return [[i for i, first in enumerate(chain) if first == each] for each in sorted(set(chain))]


@pytest.mark.parametrize("padding", [0, 3])
def test_chains_are_those_of_shared_rows(padding: int) -> None:
    for seed in range(60):
        batch = batch_of(seed)
        n, t = len(batch.runs), len(batch.order)
        numbers = numbers_of(batch, n + padding, t + padding)
        assert numbers.dtype == np.int64
        made = Runs.within(torch.from_numpy(numbers), n + padding, t + padding)
        chains, starts = made.chains.tolist(), made.starts.tolist()
        found = [list(range(begin, end)) for begin, end in pairwise(chains)]
        assert not any(found[len(chains_of(batch.runs)) :])  # padding is of chains without runs
        order = [run for chain in chains_of(batch.runs) for run in chain]
        assert [len(each) for each in found if each] == [len(c) for c in chains_of(batch.runs)]
        assert [run for chain in found for run in chain] == list(range(n))
        for place, run in enumerate(order):
            own = batch.runs[run]
            part = slice(starts[place], starts[place + 1])
            assert made.order[part].tolist() == own.tokens
            assert int(made.sources[place]) == own.source
            rows = [dict(own.stores).get(i, -1) for i in range(len(own.tokens))]
            assert made.stores[part].tolist() == rows
        assert starts[n:] == [t] * (padding + 1)
        assert made.stores[t:].tolist() == [-1] * padding
        newest: dict[int, int] = {}
        previous: dict[int, int] = dict(enumerate(made.previous.tolist()))
        for own in batch.runs:
            row = -1 - MAX_CONV * (own.source + 1)
            assert previous.pop(own.tokens[0]) == newest.get(own.source, row)
            assert [previous.pop(t) for t in own.tokens[1:]] == own.tokens[:-1]
            newest |= {row: own.tokens[i] for i, row in own.stores}
        assert set(previous.values()) <= {-1}
