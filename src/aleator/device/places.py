"""What every device sampler has: a row of parameters per sequence, and ``apply`` on all rows at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from aleator.core.philox import stream
from aleator.device.candidates import DeviceCandidates
from aleator.device.fixed import philox

Fields = dict[str, tuple[torch.dtype, Any]]
"""Name of each tensor: its type, and the value that does nothing."""


@dataclass
class DeviceStep:
    """What samplers see besides the candidates.

    Attributes:
        batch: how many of the rows are in use, B.
        position: int64 [B], tokens generated and accepted since the reset.
        history: int32 [B, L], the accepted tokens.
        generated: bool [B, L], which of them were generated.
        length: int64 [B], how many there are.

    """

    batch: int
    position: Tensor
    history: Tensor
    generated: Tensor
    length: Tensor


class DeviceSampler:
    """One place in a device chain, with the parameters of ``max_batch`` rows.

    A subclass lists its tensors in ``fields`` as name: (dtype, value that does nothing), and fills a row
    of them in :meth:`values`.  Tensors are made once and only ever written to.
    """

    fields: ClassVar[Fields] = {}

    def __init__(self, max_batch: int, n_vocab: int, device: torch.device, max_tokens: int) -> None:
        self.max_batch, self.n_vocab, self.device = max_batch, n_vocab, device
        self.max_tokens = max_tokens
        self.rows: dict[str, Tensor] = {
            "active": torch.zeros(max_batch, dtype=torch.bool, device=device)
        }
        for name, (dtype, fill) in self.fields.items():
            self.rows[name] = torch.full(
                (max_batch, *self.shape(name)), fill, dtype=dtype, device=device
            )

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a row of the tensor ``name``."""
        return ()

    def get(self, name: str, step: DeviceStep) -> Tensor:
        """The rows in use of a tensor."""
        return self.rows[name][: step.batch]

    @property
    def nbytes(self) -> int:
        """Bytes that its tensors take."""
        return sum(tensor.nbytes for tensor in self.rows.values())

    def set(self, row: int, sampler: Any, place: Any) -> None:
        """Give a row the parameters of a sampler, which stands at ``place`` in its chain."""
        values = {} if sampler.neutral else {"active": True, **self.values(sampler, place)}
        self._write(row, values)

    def values(self, sampler: Any, place: Any) -> dict[str, Any]:
        """A row's parameters; may raise ParameterError."""
        raise NotImplementedError

    def clear(self, row: int) -> None:
        """Let a row do nothing."""
        self._write(row, {})

    def _write(self, row: int, values: dict[str, Any]) -> None:
        """A row of every tensor: the value given, or the one that does nothing."""
        self.rows["active"][row] = values.get("active", False)
        for name, (_, fill) in self.fields.items():
            value: Any = values.get(name, fill)
            self.rows[name][row] = value

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Do what the sampler does to all rows that are active."""
        raise NotImplementedError

    def accepted(self, drawn: Tensor, step: DeviceStep) -> None:
        """Take note that the rows ``drawn``, bool [B], accepted what they selected, at the new position."""

    def carried(self, row: int, position: int) -> None:
        """Take note that a row accepted a token that it did not draw, and is now at ``position``."""


def key(seed: int, purpose: Any, place: Any) -> dict[str, int]:
    """The constant part of a row's random numbers, for the fields ``seed`` and ``stream``."""
    return {
        "seed": int(np.uint64(seed).astype(np.int64)),
        "stream": stream(purpose, place.ordinal, place.completion),
    }


def uniform(sampler: DeviceSampler, step: DeviceStep) -> Tensor:
    """One unsigned 64-bit uniform per row, for the place's stream at the row's position."""
    stream_ = sampler.get("stream", step)
    return philox(torch.zeros_like(stream_), step.position, stream_, sampler.get("seed", step))


RANDOM: Fields = {
    "seed": (torch.int64, 0),
    "stream": (torch.int64, 0),
}
