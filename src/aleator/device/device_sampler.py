"""The base of device samplers: a row of parameters per sequence, and ``apply`` on all rows at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from aleator.core.arrays import Doubles
from aleator.core.contract import Purpose
from aleator.core.philox import stream
from aleator.device.arguments import ChainOptions
from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import philox
from aleator.device.step import DeviceStep as DeviceStep
from aleator.samplers.base import Place, Sampler

Values = Mapping[str, float | Tensor]
"""The values of one row, by tensor name."""

S = TypeVar("S", bound=Sampler)


class Field(NamedTuple):
    """A tensor that a device sampler has for all rows."""

    dtype: torch.dtype  # its type
    neutral: float  # the value in rows that do not have the sampler
    shape: tuple[int, ...] = ()  # of one row, or BITS


BITS = (-1,)
"""The shape of one bit per token of the vocabulary, 32 in each element."""

Fields = dict[str, Field]
"""The tensors of a device sampler, by name."""

RANDOM: Fields = {"seed": Field(torch.int64, 0), "stream": Field(torch.int64, 0)}
"""The constant part of the key of a row's random numbers; see :func:`key`."""


class DeviceSampler:
    """One place in a device chain, with the parameters of ``max_batch`` rows.

    A subclass is for samplers of one class.  It declares its parameters in ``fields`` and its state in
    ``state``, and fills a row of both in :meth:`values`.  Tensors are made once and then only written to.

    State is kept for every position, so that a rollback is exact.  :meth:`apply` reads it with
    :meth:`get_state` and calls :meth:`propose` with the state after the row's drawn token is accepted; a token
    that the row did not draw does not change it.

    Args:
        sampler: the first sampler that takes the place.
        options: of the chain.

    Attributes:
        rows: the tensors by name; a state ``name`` also has ``next_name``.
        tables: tensors by name that are the same for all rows and never written to.
        waits: whether the PyTorch form has to read the number of operations from the device, for any row so
            far; a step then waits, and cannot be captured.
        launch: numbers that determine the operations of :meth:`apply`: the largest that any row has needed so
            far.  Graphs are valid while they stay the same.
    """

    fields: ClassVar[Fields] = {}
    state: ClassVar[Fields] = {}

    def __init__(self, sampler: Sampler, options: ChainOptions) -> None:
        self.max_batch, self.max_tokens = options.max_batch, options.max_tokens
        self.n_vocab, self.device = options.n_vocab, options.device
        self.rows: dict[str, Tensor] = {}
        self.tables: dict[str, Tensor] = {}
        self.waits = False
        self._neutral: dict[str, float] = {}
        self.launch = self.needs(sampler)
        self._add("active", Field(torch.bool, False))
        fields, self._states = self.declared(sampler)
        for name, field in fields.items():
            self._add(name, field)
        for name, field in self._states.items():
            self._add(name, field._replace(shape=(self.max_tokens + 1, *field.shape)))
            self._add(f"next_{name}", field)

    def declared(self, sampler: Sampler) -> tuple[Fields, Fields]:
        """Parameters and states of a place that this sampler takes."""
        return self.fields, self.state

    def needs(self, sampler: Any) -> tuple[int, ...]:
        """Numbers that determine the operations of a row with this sampler."""
        return ()

    def _add(self, name: str, field: Field) -> None:
        self._neutral[name] = field.neutral
        shape = (-(-self.n_vocab // 32),) if field.shape == BITS else field.shape
        self.rows[name] = torch.full(
            (self.max_batch, *shape), field.neutral, dtype=field.dtype, device=self.device
        )

    def get(self, name: str, step: DeviceStep) -> Tensor:
        """The used rows of a tensor, [B, ...]."""
        return self.rows[name][: step.batch]

    def get_state(self, name: str, step: DeviceStep) -> Tensor:
        """A state at the rows' positions, [B, ...]."""
        return _at(self.get(name, step), step.position)

    def uniform(self, step: DeviceStep) -> Tensor:
        """One unsigned 64-bit uniform per row, for the place's stream at the row's position."""
        stream_ = self.get("stream", step)
        return philox(torch.zeros_like(stream_), step.position, stream_, self.get("seed", step))

    def propose(self, name: str, value: Tensor, step: DeviceStep) -> None:
        """Set what a state [B, ...] becomes if the token that the row draws in this step is accepted."""
        self.get(f"next_{name}", step).copy_(value)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.nbytes for tensor in (*self.rows.values(), *self.tables.values()))

    @property
    def stateful(self) -> bool:
        """Whether it has state."""
        return bool(self._states)

    def set(self, row: int, sampler: Any, place: Place) -> None:
        """Give a row the parameters of a sampler at ``place`` in its chain."""
        self._write(row, {"active": True, **self.values(sampler, place)})
        self.launch = tuple(map(max, self.launch, self.needs(sampler)))

    def resume(self, row: int, states: Mapping[str, Doubles]) -> None:
        """Set a row's states to those on the host after each number of generated tokens."""
        for name, values in states.items():
            self.rows[name][row, : len(values)] = torch.from_numpy(values).to(self.device)

    def values(self, sampler: Any, place: Place) -> Values:
        """Return a row's parameters and initial states; change nothing.

        ParameterError for parameters with which the sampler cannot run here.
        """
        return {}

    def rewound(self, row: int, position: int, *, begins: bool = False) -> None:
        """Record that a row is now at an earlier position, or (``begins``) that its text began there."""

    def clear(self, row: int) -> None:
        """Make a row neutral."""
        self._write(row, {})

    def _write(self, row: int, values: Values) -> None:
        for name, neutral in self._neutral.items():
            self.rows[name][row] = values.get(name, neutral)

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Apply the sampler to all active rows."""
        raise NotImplementedError

    def accepted(self, drawn: Tensor, step: DeviceStep) -> None:
        """Record that the rows ``drawn``, bool [B], accepted what they selected, at the new position."""
        for name in self._states:
            kept, coming = self.get(name, step), self.get(f"next_{name}", step)
            before = _at(kept, (step.position - drawn.to(torch.int64)).clamp(min=0))
            moved = torch.where(_like(drawn, coming), coming, before)
            index = _like(step.position, coming).expand_as(coming).unsqueeze(1)
            kept.scatter_(1, index, moved.unsqueeze(1))

    def carried(self, row: int, position: int) -> None:
        """Record that a row accepted a token that it did not draw, and is now at ``position``."""
        for name in self._states:
            self.rows[name][row, position] = self.rows[name][row, position - 1]


def _like(rows: Tensor, values: Tensor) -> Tensor:
    """``rows`` [B] with as many dimensions as ``values`` [B, ...]."""
    return rows.view(-1, *(1,) * (values.dim() - 1))


def _at(kept: Tensor, position: Tensor) -> Tensor:
    """The entries [B, ...] at ``position`` of ``kept`` [B, positions, ...]."""
    index = position.view(-1, *(1,) * (kept.dim() - 1)).expand(-1, 1, *kept.shape[2:])
    return kept.gather(1, index).squeeze(1)


def expect(kind: type[S], sampler: Sampler) -> S:
    """Return a sampler as the class that a device form is for."""
    if not isinstance(sampler, kind):
        raise TypeError(f"a place for {kind.__name__} was given {type(sampler).__name__}")
    return sampler


def signed64(x: int) -> int:
    """The int64 with the bits of an unsigned number."""
    return int(np.uint64(x).astype(np.int64))


def key(seed: int, purpose: Purpose, place: Place) -> dict[str, int]:
    """A row of the fields ``RANDOM``."""
    return {
        "seed": signed64(seed),
        "stream": stream(purpose, place.ordinal, place.completion),
    }
