"""The rows of a device chain: their chains on the host, their tokens on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple

import torch
from torch import Tensor

from aleator.core import host
from aleator.core.records import dataclass
from aleator.device.device_sampler import DeviceSampler, DeviceStep
from aleator.samplers.base import Sampler
from aleator.samplers.chain import SamplerChain


@dataclass
class Row:
    """What the host knows of a row without reading from the device."""

    chain: SamplerChain  # the row's chain as it was set; with phases the current one's
    head: host.Chain | None = None  # its grammar, which the host runs
    phases: SamplerChain | None = None  # the chain with all phases, which the host runs
    phase: str = ""  # the current phase
    tail: host.Chain | None = None  # the samplers that run on the host
    top_k: int = 0  # the most candidates that are transferred for the tail; 0: all
    # The samplers that run on the device, by their places
    samplers: dict[DeviceSampler, Sampler] = field(default_factory=dict)
    used: int = 0  # an upper bound of its tokens: a row that could not draw has accepted nothing

    @property
    def followers(self) -> list[host.Chain | SamplerChain]:
        """The chains on the host that must accept the tokens that the device drew."""
        return [each for each in (self.phases, self.head) if each is not None]

    @property
    def on_host(self) -> list[host.Chain | SamplerChain]:
        """The chains on the host that accept the row's tokens."""
        return self.followers if self.tail is None else [*self.followers, self.tail]


class Mark(NamedTuple):
    """The positions of all rows at a moment."""

    length: Tensor
    position: Tensor


class Histories:
    """The tokens of all rows on the device, in tensors of ``max_batch`` rows, as in DeviceStep."""

    def __init__(self, max_batch: int, max_tokens: int, device: torch.device) -> None:
        self.max_tokens = max_tokens
        self.tokens = torch.zeros(max_batch, max_tokens, dtype=torch.int32, device=device)
        self.generated = torch.zeros(max_batch, max_tokens, dtype=torch.bool, device=device)
        self.length = torch.zeros(max_batch, dtype=torch.int64, device=device)
        self.position = torch.zeros(max_batch, dtype=torch.int64, device=device)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors."""
        return [self.tokens, self.generated, self.length, self.position]

    def step(self, batch: int) -> DeviceStep:
        """The first ``batch`` rows, as samplers see them."""
        position, length = self.position[:batch], self.length[:batch]
        return DeviceStep(batch, position, self.tokens[:batch], self.generated[:batch], length)

    def extend(self, row: int, start: int, tokens: Sequence[int], generated: bool) -> None:
        """Append tokens to a row that holds ``start`` tokens."""
        end = start + len(tokens)
        self.tokens[row, start:end] = torch.tensor(tokens, dtype=torch.int32)
        self.generated[row, start:end] = generated
        self.length[row] = end
        if generated:
            self.position[row] += len(tokens)

    def set(self, row: int, tokens: Sequence[int], generated: Sequence[bool]) -> None:
        """Set a row's tokens, and which of them were generated."""
        n = len(tokens)
        self.tokens[row, :n] = torch.tensor(tokens, dtype=torch.int32)
        self.generated[row, :n] = torch.tensor(generated, dtype=torch.bool)
        self.length[row], self.position[row] = n, sum(generated)

    def accept(self, tokens: Tensor, drawn: Tensor) -> None:
        """Append tokens, int64 [B], to the rows ``drawn``, bool [B]."""
        step = self.step(len(tokens))
        # A row that accepts nothing may be full: it writes what is there already.
        at = step.length.clamp(max=self.max_tokens - 1).unsqueeze(1)
        new = drawn.unsqueeze(1)
        value = torch.where(new, tokens.to(torch.int32).unsqueeze(1), step.history.gather(1, at))
        step.history.scatter_(1, at, value)
        step.generated.scatter_(1, at, new | step.generated.gather(1, at))
        step.length.add_(drawn)
        step.position.add_(drawn)

    def cut(self, row: int, length: int, n: int) -> None:
        """Take back the last ``n`` tokens of a row that holds ``length`` tokens."""
        self.position[row] -= self.generated[row, length - n : length].sum()
        self.length[row] = length - n

    def clear(self, row: int) -> None:
        """Forget a row's tokens."""
        self.position[row] = self.length[row] = 0

    def mark(self) -> Mark:
        """Record the positions of all rows."""
        return Mark(self.length.clone(), self.position.clone())

    def back(self, mark: Mark) -> None:
        """Take back what all rows have accepted since the mark."""
        self.length.copy_(mark.length)
        self.position.copy_(mark.position)
