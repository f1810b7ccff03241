"""The interface of the code that runs a device chain: the host's native kernels, PyTorch, or Triton."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from torch import Tensor

from aleator.device.rows import Mark
from aleator.samplers.chain import SamplerChain
from aleator.samplers.plan import Plan

Launches = Hashable
"""Identifies the operations of a step; a graph is valid while this stays equal."""


class Backend(Protocol):
    """Rows of a device chain, and their steps.  Arguments are already checked, except where errors are listed.

    Methods that raise change nothing.  The default bodies are for rows on the host, which are never replayed.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors on the device."""

    def plan(self, chain: SamplerChain) -> Plan:
        """Where each sampler of a row with this chain runs."""

    def set_row(self, row: int, chain: SamplerChain) -> None:
        """Give a row a chain, which does not change, and the tokens that it has accepted.

        ParameterError if a sampler cannot run here with its parameters, or there is no room.
        """

    def extend(self, row: int, tokens: Sequence[int], generated: bool) -> None:
        """Append tokens to a row.

        ParameterError if there is no room; ConstraintError if the row's grammar does not allow a token.
        """

    def rollback(self, row: int, n: int) -> None:
        """Take back a row's last ``n`` tokens; ParameterError if there are fewer, or a sampler cannot."""

    def reset(self, row: int) -> None:
        """Forget a row's tokens."""

    def permute(self, rows: Sequence[int]) -> None:
        """Let row i become what row ``rows[i]`` was."""

    def sample(self, logits: Tensor, allowed: Tensor | None, live: Tensor | None) -> Tensor:
        """Choose and accept a token for each of the first rows, int64 [B], -1 if there is none.

        ParameterError if a row has no room.
        """

    def step(self, logits: Tensor, allowed: Tensor | None, live: Tensor | None) -> Tensor:
        """Do the part of :meth:`sample` that a graph holds: all of it for rows without a part on the host."""
        return self.sample(logits, allowed, live)

    def runs_on_host(self, row: int) -> bool:
        """Whether a row needs the host at every step."""

    def mark(self) -> Mark:
        """Record the positions of all rows, which must have no part on the host."""

    def back(self, mark: Mark) -> None:
        """Take back what all rows have accepted since the mark."""

    def launches(self, batch: int) -> Launches:
        """The operations of a step of ``batch`` rows now."""
        return None

    def check_replay(self, batch: int, captured: Launches) -> None:
        """Refuse the replay of a captured step of ``batch`` rows if they now need other operations.

        ``captured`` is what :meth:`launches` returned then; None means the last step of ``batch`` rows.
        """
        return

    def require_room(self, counts: Sequence[int], live: Tensor | None = None) -> None:
        """Refuse if row i cannot accept ``counts[i]`` more tokens; rows that are not live need no room."""
        return

    def count(self, counts: Sequence[int]) -> None:
        """Record that row i has accepted at most ``counts[i]`` tokens in a replay."""
        return

    def paths(self, reset: bool) -> dict[str, int]:
        """The number of rows that took each path through the kernels; empty if there are no paths."""
        return {}
