"""The inputs of device samplers besides the candidates: a step, and the tensors of a user's sampler."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from aleator.core.records import dataclass
from aleator.device.fixed import philox


@dataclass
class DeviceStep:
    """The inputs of samplers besides the candidates."""

    batch: int  # number of used rows, B
    position: Tensor  # int64 [B], tokens generated and accepted since the reset
    history: Tensor  # int32 [B, L], the accepted tokens
    generated: Tensor  # bool [B, L], which of them were generated
    length: Tensor  # int64 [B], the number of accepted tokens


@dataclass(eq=False)
class OwnRows:
    """The tensors and keys of a user's sampler for the B rows of a step, as ``data.own``."""

    active: Tensor  # bool [B], the rows with the sampler; changes of others are undone
    parameters: Mapping[str, Tensor]  # by name, [B, ...]
    state: Mapping[str, Tensor]  # by name, [B, ...], after the accepted tokens
    coming: Mapping[str, Tensor]  # by name, [B, ...], what propose() writes
    seed: Tensor  # int64 [B], the rows' seeds, unsigned
    stream: Tensor  # int64 [B], separates the sampler's random numbers from others
    step: DeviceStep  # the rows' histories

    @property
    def position(self) -> Tensor:
        """The number of tokens generated and accepted since the reset, int64 [B]."""
        return self.step.position

    def propose(self, name: str, value: Tensor) -> None:
        """Set what a state [B, ...] becomes if the token that the row draws in this step is accepted."""
        self.coming[name].copy_(value)

    def uniform(self, index: int = 0) -> Tensor:
        """An unsigned 64-bit random number per row, int64 [B]: equal for equal seed and position."""
        return philox(torch.full_like(self.stream, index), self.position, self.stream, self.seed)
