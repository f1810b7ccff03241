"""The runs of a micro-batch of layers that keep a state, as Triton's kernels take them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from aleator.cache.pools.recurrent_rows import RecurrentBatch
from aleator.core.arrays import Int64s
from aleator.models.config import MAX_CONV


class Runs(NamedTuple):
    """The runs of a micro-batch, int64, on the device of its states.

    Runs of one chain read or write rows that other runs of it write, so they are computed one after the other.
    Different chains share no such row.  Padding consists of chains without runs.
    """

    chains: torch.Tensor  # [runs + 1], where among the runs a chain begins
    starts: torch.Tensor  # [runs + 1], where in ``order`` a run begins
    sources: torch.Tensor  # [runs], the row of states to start from, or -1: zeros
    order: torch.Tensor  # [T], the tokens, run by run
    # [T], by index in ``order``: the row that keeps the state after the token, or -1
    stores: torch.Tensor
    # [T], by token: the one before it; or -1 - MAX_CONV * (row + 1), the newest in a row of states, whose older
    # ones have lower numbers, one after the other; or -1: there is none
    previous: torch.Tensor

    @staticmethod
    def within(numbers: torch.Tensor, runs: int, tokens: int) -> Runs:
        """Views of the result of :func:`numbers_of` for as many runs and tokens, on a device."""
        return Runs(*torch.split(numbers, [runs + 1, runs + 1, runs, *[tokens] * 3]))


def numbers_of(batch: RecurrentBatch, runs: int, tokens: int) -> Int64s:
    """The numbers of :class:`Runs`, one after the other, padded to ``runs`` and ``tokens``.

    Tokens outside all runs keep no state, and their results are undefined.
    """
    n = len(batch.sources)
    chain = list(range(n))  # of each run; a chain's number is that of its first run

    def first(run: int) -> int:
        while chain[run] != run:
            chain[run] = run = chain[chain[run]]
        return run

    lengths = np.diff(batch.starts)
    stored = np.flatnonzero(batch.stores >= 0)
    writers = np.repeat(np.arange(n), lengths)[stored]
    at: dict[int, int] = {}  # row: a run that writes it
    for run, row in zip(writers.tolist(), batch.stores[stored].tolist(), strict=True):
        a, b = first(run), first(at.setdefault(row, run))
        chain[max(a, b)] = min(a, b)
    for run, row in enumerate(batch.sources.tolist()):
        a, b = first(run), first(at.get(row, run))
        chain[max(a, b)] = min(a, b)
    firsts = np.array([first(run) for run in range(n)], np.int64)
    sequence = np.argsort(firsts, kind="stable")
    pieces = [np.arange(batch.starts[run], batch.starts[run + 1]) for run in sequence]
    index = np.concatenate([*pieces, np.zeros(0, np.int64)])
    numbers = np.zeros(3 * runs + 2 + 3 * tokens, np.int64)
    chains, starts, sources, order, stores, previous = np.split(
        numbers, np.cumsum([runs + 1, runs + 1, runs, tokens, tokens])
    )
    begins = np.flatnonzero(np.diff(firsts[sequence], prepend=-1))
    chains[:] = n
    chains[: len(begins)] = begins
    starts[:] = len(index)
    starts[0] = 0
    starts[1 : n + 1] = np.cumsum(lengths[sequence])
    sources[:n] = batch.sources[sequence]
    order[: len(index)] = batch.order[index]
    stores[:] = -1
    stores[: len(index)] = batch.stores[index]
    previous[:] = -1
    newest: dict[int, int] = {}  # row: the token that has written it
    for each in batch.runs:
        before = newest.get(each.source, -1 - MAX_CONV * (each.source + 1))
        previous[each.tokens] = [before, *each.tokens[:-1]]
        newest.update((row, each.tokens[i]) for i, row in each.stores)
    return numbers
