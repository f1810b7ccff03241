"""What device samplers see besides the candidates: a step, and in it the own tensors of a user's sampler."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from aleator.core.records import dataclass
from aleator.device.fixed import philox


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


@dataclass(eq=False)
class OwnRows:
    """A user's sampler's own tensors and keys for the B rows of a step, as ``data.own``.

    Attributes:
        active: bool [B], which rows have the sampler; what is done to others is undone.
        parameters: by name, [B, ...].
        state: by name, [B, ...], as the accepted tokens left it.
        coming: by name, [B, ...], what :meth:`propose` writes.
        seed: int64 [B], the rows' seeds, unsigned.
        stream: int64 [B], what keeps the sampler's random numbers apart from those of others.
        step: the rows' histories.
    """

    active: Tensor
    parameters: Mapping[str, Tensor]
    state: Mapping[str, Tensor]
    coming: Mapping[str, Tensor]
    seed: Tensor
    stream: Tensor
    step: DeviceStep

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
