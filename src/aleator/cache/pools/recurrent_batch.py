"""Micro-batches of recurrent layers: which states tokens start from, and which they leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aleator.cache.cells.batch_rules import bits_of
from aleator.cache.pools.history import Run
from aleator.cache.pools.kept_states import StatePool
from aleator.core.records import dataclass


class RecurrentBatch:
    """The states of one micro-batch of T tokens.

    Attributes:
        runs: in an order in which a run comes after the one whose state it continues.
        conv, ssm: per layer float32 [rows, channels, conv] and [rows, channels, state].
        order: int64 [T], the tokens run by run.
        starts: int64 [runs + 1], where in ``order`` a run begins.
        sources: int64 [runs], the rows to start from, or -1.
        stores: int64 [T], by index in ``order``: the row that keeps the state after the token, or -1.
        wanted: int64, which of its tokens want logits.

    """

    __slots__ = (
        "conv",
        "order",
        "positions",
        "runs",
        "sources",
        "ssm",
        "starts",
        "stores",
        "tokens",
        "wanted",
    )

    def __init__(
        self,
        conv: list[Any],
        ssm: list[Any],
        runs: list[Run],
        positions: npt.NDArray[np.int32],
        tokens: slice = slice(None),
        wanted: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.positions, self.tokens = positions, tokens
        self.wanted = np.arange(len(positions)) if wanted is None else wanted
        self.runs, self.conv, self.ssm = runs, conv, ssm
        self.order = np.array([t for run in runs for t in run.tokens], dtype=np.int64)
        self.starts = np.zeros(len(runs) + 1, dtype=np.int64)
        self.starts[1:] = np.cumsum([len(run.tokens) for run in runs])
        self.sources = np.array([run.source for run in runs], dtype=np.int64)
        self.stores = np.full(len(self.order), -1, dtype=np.int64)
        for run, start in zip(runs, self.starts.tolist(), strict=False):
            for index, row in run.stores:
                self.stores[start + index] = row


@dataclass(frozen=True, eq=False, slots=True)
class RecurrentPlan:
    """A batch of T tokens, cut: int32 [T], uint64 [T, words], and int64, the wanted tokens' indices.

    The plan is void after any change of ``version``; rows come in the order of the batch, so ``rows`` is None.
    """

    positions: npt.NDArray[np.int32]
    owners: npt.NDArray[np.uint64]
    wanted: npt.NDArray[np.int64]
    parts: tuple[slice, ...]
    version: int
    rows: None = None

    def __len__(self) -> int:
        """How many tokens."""
        return len(self.positions)


class Placement:
    """Makes the runs of one micro-batch, and the changes that its states are."""

    def __init__(self, pool: StatePool) -> None:
        self._pool = pool
        self._runs: list[Run] = []
        self._open: dict[int, Run] = {}  # by sequence

    def runs(self, positions: npt.NDArray[np.int32], owners: npt.NDArray[np.uint64]) -> list[Run]:
        """The runs of T tokens; ``owners``: uint64 [T, words], the sequences of each as bits."""
        for token, (position, group) in enumerate(
            zip(positions.tolist(), _owner_sets(owners), strict=True)
        ):
            run = self._open.get(group[0])
            if run is None or run.owners != group:
                # What these sequences have read so far in this micro-batch ends here.
                self._finish([r for s in group if (r := self._open.get(s))])
                run = Run(self._pool.newest_row(group[0]), group, [], [], [])
                self._open.update(dict.fromkeys(group, run))
            run.tokens.append(token)
            run.positions.append(position)
        self._finish(list(self._open.values()))
        return self._runs

    def _finish(self, ended: list[Run]) -> None:
        """Keep the states after the runs' last tokens, in rows that no history needs.

        A row that is free now is one that only runs closed before have read, so in the order of closing
        none is overwritten too early.
        """
        pool, depth = self._pool, self._pool.rollback + 1
        for run in {id(run): run for run in ended}.values():
            for seq in run.owners:
                del self._open[seq]
            kept = min(depth, len(run.tokens))
            histories = {seq: pool.states.history(seq) for seq in run.owners}
            histories = {s: h[max(0, len(h) + kept - depth) :] for s, h in histories.items()}
            pool.states.change(histories)
            first = len(run.tokens) - kept
            rows = pool.free_rows(kept)
            new = tuple(zip(rows, run.positions[first:], strict=True))
            pool.states.change({seq: history + new for seq, history in histories.items()})
            run.stores.extend((first + i, row) for i, row in enumerate(rows))
            if pool.keeper is not None:
                pool.keeper.take(run)
            self._runs.append(run)


def _owner_sets(owners: npt.NDArray[np.uint64]) -> list[tuple[int, ...]]:
    """The sequences of each token."""
    if len(owners) == 1 and owners.shape[1] == 1:
        word = int(owners[0, 0])
        return [tuple(bit for bit in range(word.bit_length()) if word >> bit & 1)]
    known: dict[bytes, tuple[int, ...]] = {}
    sets = []
    for row in bits_of(owners):
        key = row.tobytes()
        if key not in known:
            known[key] = tuple(np.flatnonzero(row).tolist())
        sets.append(known[key])
    return sets
