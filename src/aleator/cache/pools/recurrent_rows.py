"""States of recurrent layers: their rows, the runs of tokens that compute them, and micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from aleator._native import States
from aleator.cache.devices import Device
from aleator.cache.options import END
from aleator.cache.storage.layer import StateArrays
from aleator.cache.storage.storage import state_arrays
from aleator.core.arrays import Int32s, Int64s, UInt64s
from aleator.core.errors import CacheFull, CannotRewind, ParameterError
from aleator.core.records import dataclass

History = tuple[tuple[int, int], ...]
"""(row, position) of a sequence's states, oldest first."""


@dataclass
class Run:
    """Consecutive tokens of one micro-batch that continue one state."""

    source: int  # the row to start from, or -1 for the initial state
    owners: tuple[int, ...]
    tokens: list[int]  # indices in the micro-batch, ascending
    positions: list[int]
    # (index in ``tokens``, row): the tokens after which the state is kept, and its row
    stores: list[tuple[int, int]]


def rewound(history: History, p0: int, seq: int, rollback: int) -> History:
    """Return a sequence's states, which are not empty, without position ``p0`` and later ones.

    CannotRewind, with the oldest legal position, if no state before ``p0`` is held and ``p0`` is not 0.
    """
    if p0 == 0:
        return ()
    kept = tuple(state for state in history if state[1] < p0)
    if not kept:
        oldest = history[0][1] + 1
        raise CannotRewind(
            f"sequence {seq} cannot be rewound to position {p0}: the oldest legal position is {oldest}, "
            f"or 0 to remove all of it; create the context with a larger n_rollback (now {rollback})",
            oldest,
        )
    return kept


def relabelled(
    history: History, p0: int, p1: int, move: Callable[[int], int], name: str, seq: int
) -> History:
    """Return a sequence's states with other positions in [p0, p1), which contains the newest.

    Older states stay while their positions are in the range, below those of later ones, and not below 0.
    ParameterError, which names the argument ``name``, if the newest position would not lie in [0, 2^31 - 1).
    """
    newest = history[-1][1]
    if not 0 <= move(newest) < END:
        raise ParameterError(
            f"{name}: position {newest} of sequence {seq} would become {move(newest)}; it must lie "
            "in [0, 2^31 - 1)"
        )
    moved: list[tuple[int, int]] = []
    for row, position in reversed(history):
        to = move(position)
        if not (p0 <= position < p1 and to >= 0 and (not moved or to < moved[-1][1])):
            break
        moved.append((row, to))
    return tuple(reversed(moved))


@dataclass(frozen=True)
class RecurrentShape:
    """The shape of what a layer stores of a sequence.

    Attributes:
        channels: number of channels of the convolution.
        conv: number of past values of each channel.
        state: number of values in the state of a channel.
        inner: number of channels that have a state; None: those of the convolution.
    """

    channels: int
    conv: int
    state: int
    inner: int | None = None

    @property
    def state_shape(self) -> tuple[int, int]:
        """The number of channels with a state, and of values in each."""
        return self.channels if self.inner is None else self.inner, self.state


@dataclass(frozen=True)
class RecurrentCheckpoint:
    """A copy of a sequence's state after its token at ``position``: per layer conv and ssm."""

    position: int
    conv: tuple[Any, ...]
    ssm: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the copies."""
        return sum(t.nbytes for t in self.conv + self.ssm)


class StateRows:
    """Rows of states.

    Attributes:
        states: the bookkeeping: which sequences hold which rows.
        arrays: makes each of :attr:`tensors`: NumPy arrays on the CPU, torch tensors on a device.
        conv: per layer float32 [rows, channels, conv].
        ssm: per layer float32 [rows, inner, state].
    """

    def __init__(
        self, layers: Sequence[RecurrentShape], n_rows: int, devices: Sequence[Device]
    ) -> None:
        self.devices = list(devices)
        arrays = [state_arrays(device) for device in devices]
        pairs = list(zip(arrays, layers, strict=True))
        self.arrays = arrays * 2
        self.conv = [each.zeros((n_rows, s.channels, s.conv)) for each, s in pairs]
        self.ssm = [each.zeros((n_rows, *s.state_shape)) for each, s in pairs]
        self.states = States(n_rows)

    def addresses(self) -> list[int]:
        """The memory address of each of :attr:`tensors`."""
        return [each.address(t) for each, t in self.made]

    @property
    def made(self) -> list[tuple[StateArrays, Any]]:
        """Each of :attr:`tensors` with what made it."""
        return list(zip(self.arrays, self.tensors, strict=True))

    @property
    def tensors(self) -> list[Any]:
        """All arrays: each layer's convolutions, then each layer's states."""
        return self.conv + self.ssm

    def copied(self, row: int, position: int) -> RecurrentCheckpoint:
        """A copy of a row, the state after the token at ``position``."""
        copies = tuple(each.row(t, row) for each, t in self.made)
        n = len(self.conv)
        return RecurrentCheckpoint(position, copies[:n], copies[n:])

    def check_checkpoint(self, mark: RecurrentCheckpoint) -> None:
        """Raise ParameterError unless a checkpoint has the shapes of these layers."""
        if [t.shape[1:] for t in self.tensors] != [t.shape for t in (*mark.conv, *mark.ssm)]:
            raise ParameterError("checkpoint: it is of a model of another shape")

    def put(self, row: int, values: Sequence[Any]) -> None:
        """Store a state: a row of each of :attr:`tensors`."""
        for tensor, value in zip(self.tensors, values, strict=True):
            tensor[row] = value

    def zero(self, rows: Sequence[int]) -> None:
        """Zero rows."""
        for each, t in self.made:
            each.zero(t, rows)

    def free_rows(self, n: int) -> list[int]:
        """The next ``n`` rows that no sequence holds; CacheFull if there is no memory for them.

        A nested step keeps the rows that the outer one made.  If there are too few rows, more are allocated,
        and stay.
        """
        rows = self.states.free_rows(n)
        if len(rows) < n:
            self._grow(n - len(rows), len(rows))
            rows = self.states.free_rows(n)
        return rows

    def _grow(self, n: int, free: int) -> None:
        """Allocate ``n`` more rows, beside ``free`` free ones; or raise CacheFull."""
        size = self.states.n_rows + n
        try:
            # If an interrupt stopped this halfway, some arrays have grown already.
            grown = [t if len(t) >= size else each.grown(t, size) for each, t in self.made]
        except (RuntimeError, MemoryError) as error:
            message = (
                f"no memory for {n} more recurrent states, which a step within a step needs: end the "
                "outer step first, or create the context with a smaller n_rollback or n_seq_max"
            )
            raise CacheFull(n, free, message=message) from error
        layers = len(self.conv)
        # In place: micro-batches have the lists.
        self.conv[:], self.ssm[:] = grown[:layers], grown[layers:]
        self.states.grow(n)


def row_bytes(layers: Iterable[RecurrentShape]) -> int:
    """Bytes of one row over all layers."""
    return sum(4 * (s.channels * s.conv + math.prod(s.state_shape)) for s in layers)


def own_rows(n_seq_max: int, rollback: int) -> int:
    """The number of rows that sequences need: ``rollback`` + 1 each, and as many again for a running step.

    A nested step allocates more when it needs them.
    """
    return 2 * n_seq_max * (rollback + 1)


class RecurrentBatch:
    """The states of one micro-batch of T tokens.

    Attributes:
        runs: ordered so that each run comes after the one whose state it continues.
        conv, ssm: per layer float32 [rows, channels, conv] and [rows, channels, state].
        order: int64 [T], the tokens run by run.
        starts: int64 [runs + 1], the index in ``order`` at which each run begins.
        sources: int64 [runs], the rows to start from, or -1.
        stores: int64 [T], by index in ``order``: the row that keeps the state after the token, or -1.
        outputs: int64, indices of the tokens whose logits are computed.
    """

    def __init__(
        self,
        conv: list[Any],
        ssm: list[Any],
        runs: list[Run],
        positions: Int32s,
        tokens: slice = slice(None),
        outputs: Int64s | None = None,
    ) -> None:
        self.positions, self.tokens = positions, tokens
        self.outputs = np.arange(len(positions)) if outputs is None else outputs
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
    """A batch of T tokens, cut: int32 [T], uint64 [T, words], and int64, the indices of outputs.

    Any change of ``version`` makes the plan void.  ``rows`` is None, as rows are in batch order.
    """

    positions: Int32s
    owners: UInt64s
    outputs: Int64s
    parts: tuple[slice, ...]
    version: int
    rows: None = None

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.positions)
