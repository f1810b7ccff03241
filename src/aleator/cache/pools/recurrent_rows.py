"""The memory of recurrent states: rows of arrays, each with one state of every layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from aleator.cache.devices import Device
from aleator.cache.storage import StateArrays, state_arrays
from aleator.core.errors import CacheFull, ParameterError
from aleator.core.records import dataclass


@dataclass(frozen=True)
class RecurrentShape:
    """What a layer keeps of a sequence.

    Attributes:
        channels: of the convolution.
        conv: values of each of them before the next.
        state: numbers in the state of a channel.
        inner: channels that have a state; None: those of the convolution.
    """

    channels: int
    conv: int
    state: int
    inner: int | None = None

    @property
    def state_shape(self) -> tuple[int, int]:
        """Channels with a state, and numbers of each."""
        return self.channels if self.inner is None else self.inner, self.state


@dataclass(frozen=True)
class RecurrentCheckpoint:
    """A sequence's state after its token at ``position``, copied: per layer conv and ssm."""

    position: int
    conv: tuple[Any, ...]
    ssm: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the copies."""
        return sum(t.nbytes for t in self.conv + self.ssm)


class StateRows:
    """Rows of states; what sequences hold them is written elsewhere (``States``).

    Attributes:
        arrays: makes each of :attr:`tensors`: NumPy's on the CPU, torch's on a device.
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

    def addresses(self) -> list[int]:
        """Where each array of :attr:`tensors` begins in memory."""
        return [each.address(t) for each, t in self.made]

    @property
    def made(self) -> list[tuple[StateArrays[Any], Any]]:
        """Each of :attr:`tensors` with what made it."""
        return list(zip(self.arrays, self.tensors, strict=True))

    @property
    def tensors(self) -> list[Any]:
        """All of them: each layer's convolutions, then each layer's states."""
        return self.conv + self.ssm

    def copied(self, row: int, position: int) -> RecurrentCheckpoint:
        """A copy of a row, the state after the token at ``position``."""
        copies = tuple(each.row(t, row) for each, t in self.made)
        n = len(self.conv)
        return RecurrentCheckpoint(position, copies[:n], copies[n:])

    def check_checkpoint(self, mark: RecurrentCheckpoint) -> None:
        """Raise ParameterError unless a checkpoint is of layers like these."""
        pairs = zip(self.tensors, mark.conv + mark.ssm, strict=True)
        if any(ours.shape[1:] != theirs.shape for ours, theirs in pairs):
            raise ParameterError("checkpoint", "checkpoint: it is of a model of another shape")

    def put(self, row: int, values: Sequence[Any]) -> None:
        """Store a state: a row of each of :attr:`tensors`."""
        for ours, theirs in zip(self.tensors, values, strict=True):
            ours[row] = theirs

    def zero(self, rows: Sequence[int]) -> None:
        """Zero rows."""
        for each, t in self.made:
            each.zero(t, rows)

    def grow(self, size: int, n: int, free: int) -> None:
        """Have ``size`` rows, ``n`` more than now, of which ``free`` are free; or CacheFull."""
        try:
            # Of what an interrupt left half done, some have their rows already.
            grown = [t if len(t) >= size else each.grown(t, size) for each, t in self.made]
        except (RuntimeError, MemoryError) as error:
            message = (
                f"no memory for {n} more recurrent states, which a step within a step needs: end the "
                "outer step first, or create the context with a smaller n_rollback or n_seq_max"
            )
            raise CacheFull(n, free, message=message) from error
        n = len(self.conv)
        self.conv[:], self.ssm[:] = grown[:n], grown[n:]  # in place: micro-batches have the lists


def row_bytes(layers: Iterable[RecurrentShape]) -> int:
    """Bytes of one row, in every layer."""
    return sum(4 * (s.channels * s.conv + math.prod(s.state_shape)) for s in layers)


def own_rows(n_seq_max: int, rollback: int) -> int:
    """Rows that sequences need: ``rollback`` + 1 each, and as many more for a step under way.

    A step within one takes further ones when it needs them.
    """
    return 2 * n_seq_max * (rollback + 1)
