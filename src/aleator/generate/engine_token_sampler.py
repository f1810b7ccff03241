"""Samples the tokens of requests that come and go, on a device where that can be, else on the host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from weakref import WeakSet

import torch

from aleator.cache.devices import Device
from aleator.cache.storage.tensors import torch_device
from aleator.core.errors import ParameterError
from aleator.device.chain import DeviceChain
from aleator.generate.device_token_sampler import ChainDraw, DeviceTokenSampler, longest
from aleator.generate.request_state import Proposal, RequestState
from aleator.generate.token_sampler import HostTokenSampler
from aleator.samplers.greedy import Greedy

log = logging.getLogger(__name__)

MOST_TOKENS = 8192
"""Tokens of a request, its prompt's included, that a row of the device holds; longer ones draw on the host."""


class EngineTokenSampler(DeviceTokenSampler):
    """One device chain for an engine: a request takes a row when it draws first, and gives it back at its end.

    Args:
        host: draws for requests that need it: those with constraints, guesses, log-probabilities, or samplers
            that remember what they drew, that the kernels cannot run, or that are the host's.
        device: where the logits are.
        n_rows: requests that draw on the device at most.
        n_vocab: tokens of a row of logits.
        n_ctx: positions of the longest text.
        why_not: why a request's tokens must be drawn on the host; "" if they need not.
    """

    def __init__(
        self,
        host: HostTokenSampler,
        device: Device,
        n_rows: int,
        n_vocab: int,
        n_ctx: int,
        why_not: Callable[[RequestState], str],
    ) -> None:
        self.host, self._why_not = host, why_not
        self._max_tokens = min(n_ctx + 1, MOST_TOKENS)
        self.chain = DeviceChain(
            [Greedy()],
            n_rows,
            n_vocab,
            device=torch_device(device),
            max_tokens=self._max_tokens,
            kernels="torch" if device.type == "cpu" else "auto",
        )
        self._draw: ChainDraw | None = None
        self._idle = None
        self._last = torch.zeros(n_rows, dtype=torch.int64, device=self.chain.device)
        self._rows: dict[RequestState, int] = {}
        self._free = list(reversed(range(n_rows)))
        self._on_host: WeakSet[RequestState] = WeakSet()

    def draws_for(self, state: RequestState) -> bool:
        """See :class:`~aleator.generate.token_sampler.TokenSampler`: asked first before the first draw."""
        if state in self._rows:
            return True
        if state in self._on_host:
            return False
        why = self._refused(state)
        if why:
            log.debug("samplers: all run on the host, because %s", why)
            self._on_host.add(state)
        return not why

    def _refused(self, state: RequestState) -> str:
        """Give a request a row; why that cannot be, "" if it has one."""
        chain, options = state.chain, state.request.options
        hosts = (state.completer, state.speculation, state.search, options.logprobs)
        why = self._why_not(state)
        if options.sampling_device == "host":
            why = "sampling_device='host'"
        if why:
            return why
        if any(each is not None for each in hosts) or chain.constraints:
            return "constraints, guesses, beams and log-probabilities are the host's in an engine"
        if chain.adapts or chain.by_phase():
            return "what its samplers remember would be gone with a row"
        if longest(state.request, state.n_ctx) > self._max_tokens:
            return f"it may hold more than {self._max_tokens} tokens"
        plan = self.chain.plan(chain)
        if plan.host or plan.kernels.startswith("PyTorch"):
            return f"its samplers are not all kernels ({plan})"
        if not self._free:
            return "all rows are taken"
        try:
            self.chain.set_row(self._free[-1], chain)
        except (ParameterError, torch.OutOfMemoryError) as error:
            return str(error)
        self._rows[state] = self._free.pop()
        return ""

    def leave(self, state: RequestState) -> None:
        """See :class:`~aleator.generate.token_sampler.TokenSampler`: the row is free for another request."""
        row = self._rows.pop(state, None)
        if row is not None:
            self.chain.set_row(row)
            self._free.append(row)

    def draw(self, rows: Sequence[Proposal]) -> ChainDraw | None:
        """See :class:`~aleator.generate.token_sampler.TokenSampler`; None where any draws on the host."""
        self._draw = None
        return super().draw(rows) if all(state in self._rows for state, _ in rows) else None
