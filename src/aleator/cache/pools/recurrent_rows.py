"""The memory of recurrent states: rows of tensors, each with one state of every layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from aleator.core.errors import CacheFull, ParameterError


@dataclass(frozen=True)
class RecurrentShape:
    """What a layer keeps: ``conv`` values of each channel before the next, and ``state`` numbers."""

    channels: int
    conv: int
    state: int


@dataclass(frozen=True)
class RecurrentCheckpoint:
    """A sequence's state after its token at ``position``, copied: per layer conv and ssm."""

    position: int
    conv: tuple[torch.Tensor, ...]
    ssm: tuple[torch.Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the copies."""
        return sum(t.nbytes for t in self.conv + self.ssm)


class StateRows:
    """Rows of states; what sequences hold them is written elsewhere (``States``).

    Args:
        layers: what each layer keeps.
        n_rows: how many rows.
        device: where they are.

    Attributes:
        device: where they are.
        conv: per layer float32 [rows, channels, conv].
        ssm: per layer float32 [rows, channels, state].

    Raises:
        RuntimeError: there is no memory for them; or MemoryError.

    """

    def __init__(self, layers: Sequence[RecurrentShape], n_rows: int, device: torch.device) -> None:
        self.device = device
        with torch.inference_mode(False):  # they are written in and outside of that mode
            self.conv = [torch.zeros(n_rows, s.channels, s.conv, device=device) for s in layers]
            self.ssm = [torch.zeros(n_rows, s.channels, s.state, device=device) for s in layers]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All of them: each layer's convolutions, then each layer's states."""
        return self.conv + self.ssm

    def copied(self, row: int, position: int) -> RecurrentCheckpoint:
        """A copy of a row, the state after the token at ``position``."""
        return RecurrentCheckpoint(
            position,
            tuple(t[row].clone() for t in self.conv),
            tuple(t[row].clone() for t in self.ssm),
        )

    def check_checkpoint(self, mark: RecurrentCheckpoint) -> None:
        """Raise ParameterError unless a checkpoint is of layers like these."""
        pairs = [
            *zip(self.conv, mark.conv, strict=True),
            *zip(self.ssm, mark.ssm, strict=True),
        ]
        if any(ours.shape[1:] != theirs.shape for ours, theirs in pairs):
            raise ParameterError("checkpoint", "checkpoint: it is of a model of another shape")

    def put(self, row: int, conv: Sequence[torch.Tensor], ssm: Sequence[torch.Tensor]) -> None:
        """Store a state: per layer [channels, conv] and [channels, state]."""
        for tensors, values in ((self.conv, conv), (self.ssm, ssm)):
            for ours, theirs in zip(tensors, values, strict=True):
                ours[row] = theirs

    def zero(self, rows: Sequence[int]) -> None:
        """Zero rows."""
        index = torch.tensor(rows, device=self.device)
        for t in self.tensors:
            t.index_fill_(0, index, 0)

    def grow(self, size: int, n: int, free: int) -> None:
        """Have ``size`` rows, ``n`` more than now; ``free`` of those that there are are free.

        Raises:
            CacheFull: there is no memory for them.

        """
        try:
            with torch.inference_mode(False):
                # Of what an interrupt left half done, some have their rows already.
                grown = [
                    [
                        t
                        if len(t) >= size
                        else torch.cat((t, t.new_zeros(size - len(t), *t.shape[1:])))
                        for t in side
                    ]
                    for side in (self.conv, self.ssm)
                ]
        except (RuntimeError, MemoryError) as error:
            message = (
                f"no memory for {n} more recurrent states, which a step within a step needs: end the "
                "outer step first, or create the context with a smaller n_rollback or n_seq_max"
            )
            raise CacheFull(n, free, message=message) from error
        self.conv[:], self.ssm[:] = grown  # in place: micro-batches have the lists


def row_bytes(layers: Iterable[RecurrentShape]) -> int:
    """Bytes of one row, in every layer."""
    return sum(4 * s.channels * (s.conv + s.state) for s in layers)


def own_rows(n_seq_max: int, rollback: int) -> int:
    """Rows that sequences need: ``rollback`` + 1 each, and as many more for a step under way.

    A step within one takes further ones when it needs them.
    """
    return 2 * n_seq_max * (rollback + 1)
