"""What a device chain asks of the code that runs it: the host's native kernels, PyTorch, or Triton."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from torch import Tensor

from aleator.device.rows import Mark
from aleator.samplers.chain import SamplerChain
from aleator.samplers.plan import Plan

Launches = Hashable
"""Which operations a step makes; graphs hold as long as it is equal."""


class Backend(Protocol):
    """Rows of a device chain, and steps of them.  Arguments have been checked but for what is said.

    Methods that raise change nothing.  Bodies are for rows on the host, which are never replayed.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors on the device."""

    def plan(self, chain: SamplerChain) -> Plan:
        """Where a row with this chain runs what."""

    def set_row(self, row: int, chain: SamplerChain) -> None:
        """Give a row a chain, which stays as it is, and the tokens that it has accepted.

        ParameterError: a sampler cannot run here with its parameters, or there is no room.
        """

    def extend(self, row: int, tokens: Sequence[int], generated: bool) -> None:
        """Append tokens to a row.

        ParameterError: there is no room.  ConstraintError: the row's grammar does not allow a token.
        """

    def rollback(self, row: int, n: int) -> None:
        """Take back a row's last ``n`` tokens; ParameterError: there are not so many, or a sampler cannot."""

    def reset(self, row: int) -> None:
        """Forget a row's tokens."""

    def permute(self, rows: Sequence[int]) -> None:
        """Let row i be what row ``rows[i]`` was."""

    def sample(self, logits: Tensor, allowed: Tensor | None, live: Tensor | None) -> Tensor:
        """Choose and accept a token for each of the first rows, int64 [B], -1 where there is none.

        ParameterError: a row has no room.
        """

    def step(self, logits: Tensor, allowed: Tensor | None, live: Tensor | None) -> Tensor:
        """The part of :meth:`sample` that a graph holds: all of it for rows without a part on the host."""
        return self.sample(logits, allowed, live)

    def runs_on_host(self, row: int) -> bool:
        """Whether a row needs the host at every step."""

    def mark(self) -> Mark:
        """Where every row is; for rows without a part on the host."""

    def back(self, mark: Mark) -> None:
        """Take back what every row has accepted since the mark."""

    def launches(self, batch: int) -> Launches:
        """Which operations a step of so many rows makes now."""
        return None

    def check_replay(self, batch: int, captured: Launches) -> None:
        """Refuse the replay of a captured step of so many rows, if they need other operations by now.

        ``captured``: what :meth:`launches` said then; None: what the last step of so many rows made.
        """
        return

    def require_room(self, counts: Sequence[int], live: Tensor | None = None) -> None:
        """Refuse if row i cannot accept ``counts[i]`` tokens more; rows that are not live need no room."""
        return

    def count(self, counts: Sequence[int]) -> None:
        """Take note that row i has accepted at most ``counts[i]`` tokens in a replay."""
        return

    def paths(self, reset: bool) -> dict[str, int]:
        """How many rows took which path through the kernels; empty where there are no paths."""
        return {}
