"""What device samplers see besides the candidates: a step, and in it the own tensors of a user's sampler."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from aleator.core.records import dataclass
from aleator.device.fixed import philox


@dataclass
class DeviceStep:
    """What samplers see besides the candidates."""

    batch: int  # how many of the rows are in use, B
    position: Tensor  # int64 [B], tokens generated and accepted since the reset
    history: Tensor  # int32 [B, L], the accepted tokens
    generated: Tensor  # bool [B, L], which of them were generated
    length: Tensor  # int64 [B], how many there are


@dataclass(eq=False)
class OwnRows:
    """A user's sampler's own tensors and keys for the B rows of a step, as ``data.own``."""

    active: Tensor  # bool [B], which rows have the sampler; what is done to others is undone
    parameters: Mapping[str, Tensor]  # by name, [B, ...]
    state: Mapping[str, Tensor]  # by name, [B, ...], as the accepted tokens left it
    coming: Mapping[str, Tensor]  # by name, [B, ...], what propose() writes
    seed: Tensor  # int64 [B], the rows' seeds, unsigned
    stream: Tensor  # int64 [B], what keeps the sampler's random numbers apart from those of others
    step: DeviceStep  # the rows' histories

    @property
    def position(self) -> Tensor:
        """int64 [B], tokens generated and accepted since the reset."""
        return self.step.position

    def propose(self, name: str, value: Tensor) -> None:
        """Say what a state [B, ...] will be if the token is accepted that the row draws in this step."""
        self.coming[name].copy_(value)

    def uniform(self, index: int = 0) -> Tensor:
        """int64 [B], an unsigned 64-bit random number of each row: the same for equal seed and position."""
        return philox(torch.full_like(self.stream, index), self.position, self.stream, self.seed)
