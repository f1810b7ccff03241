"""Device chains by the native kernels: rows are sampler chains on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aleator.core.errors import LogitsError, ParameterError
from aleator.device.arguments import ChainOptions
from aleator.device.backends.backend import Backend
from aleator.device.backends.torch.logits import check_tokens
from aleator.device.candidates import NOTHING
from aleator.device.host_steps import accept_all, applied
from aleator.device.report import Report
from aleator.device.rows import Mark
from aleator.device.token_bits import allow
from aleator.samplers.chain import SamplerChain, sample_batch
from aleator.samplers.logit_bias import LogitBias
from aleator.samplers.plan import Plan


class HostBackend(Backend):
    """Runs all rows with the native kernels."""

    nbytes = 0

    def __init__(self, options: ChainOptions, template: SamplerChain, report: Report) -> None:
        self._options, self._report = options, report
        self._chains = [template.clone() for _ in range(options.max_batch)]

    def plan(self, chain: SamplerChain) -> Plan:
        names = tuple(
            sampler.name for sampler, _ in chain.samplers_with_places if not sampler.neutral
        )
        return Plan("cpu, native kernels", names, (), split=len(chain))

    def set_row(self, row: int, chain: SamplerChain) -> None:
        """Give a row any chain."""
        for sampler, _ in chain.samplers_with_places:
            if isinstance(sampler, LogitBias):
                check_tokens(sampler.logit_bias, self._options.n_vocab)
        self._chains[row] = chain.clone()

    def extend(self, row: int, tokens: Sequence[int], generated: bool) -> None:
        accept_all([self._chains[row]], tokens, generated)

    def rollback(self, row: int, n: int) -> None:
        self._chains[row].rollback(n)

    def reset(self, row: int) -> None:
        self._chains[row].reset()

    def permute(self, rows: Sequence[int]) -> None:
        self._chains = [self._chains[row] for row in rows]

    def sample(self, logits: Tensor, allowed: Tensor | None, live: Tensor | None) -> Tensor:
        batch = len(logits)
        z = logits
        if allowed is not None:
            z = allow(logits, allowed, torch.arange(self._options.n_vocab))
        if z.stride(1) != 1:
            z = z.contiguous()
        if live is None and not self._report.wanted:
            return torch.tensor(_drawn(self._chains[:batch], z))
        rows = list(range(batch)) if live is None else torch.nonzero(live).flatten().tolist()
        tokens = torch.full((batch,), NOTHING)
        if self._report.wanted:
            tokens[:] = torch.tensor(
                [self._reported(row, z[row], row in rows) for row in range(batch)]
            )
            self._report.before(logits, tokens)
        elif rows:
            tokens[rows] = torch.tensor(_drawn([self._chains[row] for row in rows], z[rows]))
        return tokens

    def _reported(self, row: int, z: Tensor, live: bool) -> int:
        """Draw a row's token, and put its candidates into the report."""
        chain = self._chains[row]
        left = applied(chain.kernels, z.float().numpy()) if live else None
        token = NOTHING if left is None or left.selected is None else left.selected
        if token != NOTHING:
            chain.accept(token, generated=True)
        self._report.after_on_host(row, left, token)
        return token

    def runs_on_host(self, row: int) -> bool:
        return True

    def mark(self) -> Mark:
        """Refuse, because rows are on the host."""
        raise ParameterError("kernels='host' has no marks: roll back row by row")

    def back(self, mark: Mark) -> None:
        """Refuse, as :meth:`mark`."""
        self.mark()


def _drawn(chains: Sequence[SamplerChain], rows: Tensor) -> list[int]:
    """Draw a token for each row; -1 if it has no candidate."""
    try:
        return sample_batch(chains, rows)
    except LogitsError:  # nothing has changed, so draw row by row
        return [token_or_none_left(chain, row) for chain, row in zip(chains, rows, strict=True)]


def token_or_none_left(chain: SamplerChain, row: Any) -> int:
    """Draw and accept a row's token; -1 if it has no candidate."""
    try:
        return chain.sample(row)
    except LogitsError:
        return NOTHING
