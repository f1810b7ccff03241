"""Samples the tokens of a run with one device chain, by PyTorch's operations or by kernels."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from aleator.cache.devices import Device
from aleator.cache.storage.tensors import torch_device
from aleator.core.errors import LogitsError
from aleator.core.forwarded import forwarded
from aleator.device.backends.torch.program import kind_of
from aleator.device.candidates import NOTHING
from aleator.device.chain import DeviceChain
from aleator.generate.complete_grammar import finish
from aleator.generate.completion import Request
from aleator.generate.logprobs import (
    Logprobs,
    LogprobsOf,
    TokenBytes,
    reported_logprobs,
    top_logprobs,
)
from aleator.generate.request_state import Proposal, RequestState
from aleator.generate.token_sampler import (
    HostTokenSampler,
    Logits,
    SampledToken,
    SampleTask,
    host_rows,
)
from aleator.models.step import Draw

log = logging.getLogger(__name__)

IdleChains = dict[Hashable, tuple[DeviceChain, torch.Tensor]]
"""Chains that nothing draws with now, by what they are for, and where they keep their last tokens."""

MOST_IDLE = 4
"""Device chains that are kept of runs that are over; each has graphs of steps that draw with it."""


class DeviceTokenSampler:
    """One device chain with a row for each request; row i samples for the request i.

    Only tokens, masks and log-probabilities are transferred to the host.  The requests' own chains accept the
    tokens too, so they can be inspected as after sampling on the host.

    Args:
        states: the requests.
        device: where the logits are.
        n_vocab: tokens of a row of logits.
        n_ctx: positions of the longest text.
        idle: device chains of runs that are over.  One of the same samplers is taken: their parameters are in
            its memory, so the graphs of its steps hold.

    Raises:
        ParameterError: chains that do not fit one another.
    """

    def __init__(
        self,
        states: Sequence[RequestState],
        device: Device,
        n_vocab: int,
        n_ctx: int,
        idle: IdleChains | None = None,
    ) -> None:
        asked = [n for state in states if (n := state.request.options.logprobs) is not None]
        logprobs = max(asked) if asked else None
        max_tokens = _room(max(longest(state.request, n_ctx) for state in states), n_ctx)
        kinds = _kinds(states)
        self._idle = None if kinds is None else idle
        self._key = kinds, n_vocab, max_tokens, logprobs
        kept = None if self._idle is None else self._idle.pop(self._key, None)
        if kept is None:
            template = states[0].chain.clone()
            template.reset()
            chain = DeviceChain(
                template,
                len(states),
                n_vocab,
                device=torch_device(device),
                max_tokens=max_tokens,
                kernels="torch" if device.type == "cpu" else "auto",
                logprobs=logprobs,
            )
            kept = chain, torch.zeros(len(states), dtype=torch.int64, device=chain.device)
        self.chain, self._last = kept
        self.host = HostTokenSampler()
        self._draw: ChainDraw | None = None
        self._rows = {state: row for row, state in enumerate(states)}
        for state, row in self._rows.items():
            self.chain.set_row(row, state.chain)
        for plan in dict.fromkeys(str(self.chain.plan(state.chain)) for state in states):
            log.info("samplers: %s", plan.replace("\n", "; "))

    def release(self) -> None:
        """See :class:`~aleator.generate.token_sampler.TokenSampler`: another run may take the chain."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle[self._key] = self.chain, self._last
            while len(idle) > MOST_IDLE:
                del idle[next(iter(idle))]

    def draws_for(self, state: RequestState) -> bool:
        """See :class:`~aleator.generate.token_sampler.TokenSampler`."""
        return True

    def leave(self, state: RequestState) -> None:
        """See :class:`~aleator.generate.token_sampler.TokenSampler`: rows stay those of their requests."""

    def row_of(self, state: RequestState) -> int:
        """The row of the chain that samples for a request."""
        return self._rows[state]

    def runs_on_device(self, state: RequestState) -> bool:
        """Whether the host need not look at its tokens: no constraint, and all samplers run on the device."""
        on_host = self.chain.runs_on_host(self._rows[state])
        return state.completer is None and not state.chain.constraints and not on_host

    def draw(self, rows: Sequence[Proposal]) -> ChainDraw | None:
        """See :class:`~aleator.generate.token_sampler.TokenSampler`; None where the host must see tokens."""
        alone = bool(rows) and all(
            len(tokens) == 1 and state.search is None and self.runs_on_device(state)
            for state, tokens in rows
        )
        self._draw = self.draws([self._rows[state] for state, _ in rows]) if alone else None
        return self._draw

    def draws(self, rows: Sequence[int], fed: bool = False) -> ChainDraw:
        """What draws for rows of the chain, in the step of a token each.

        ``fed``: the step decodes what the rows have drawn last, which the host has not seen.
        """
        return ChainDraw(self.chain, self._last, rows, fed)

    def sample(self, tasks: Sequence[SampleTask], logits: Logits) -> list[SampledToken]:
        """See :class:`~aleator.generate.token_sampler.TokenSampler`."""
        completers = {t.state: t.state.completer for t in tasks if t.left is not None}
        closing = {state for state, each in completers.items() if each is not None and each.closing}
        open_tasks = [task for task in tasks if task.state not in closing]
        tokens = self._sample(open_tasks, logits) if open_tasks else []
        report = self.chain.report
        values = [each.tolist() for each in (report.logprobs, report.top_ids, report.top_logprobs)]
        made: list[SampledToken] = []
        for task in tasks:
            state, row = task.state, self._rows[task.state]
            completer, of_logits = state.completer, partial(_of_row, logits, task.row)
            if completer is not None and state in closing:
                token = completer.close()
                self._accept(row, token)
                made.append(SampledToken(token, of_logits))
                continue
            drawn = tokens[row]
            if drawn == NOTHING:
                made.append(SampledToken(None, of_logits, error=nothing_to_draw(state)))
                continue
            state.chain.accept(drawn, generated=True)
            logprobs: LogprobsOf = of_logits
            if state.request.options.logprobs is not None:
                logprobs = partial(reported_logprobs, *(each[row] for each in values))
            token = drawn
            if completer is not None and task.left is not None:
                token = finish(completer.check(drawn, task.left))
                if token != drawn:
                    self.chain.rollback(row, 1)
                    self._accept(row, token)
                    logprobs = of_logits
            made.append(SampledToken(token, logprobs))
        return made

    def _accept(self, row: int, token: int | None) -> None:
        """Append a token that the host chose, if it chose one, to a row of the chain."""
        if token is not None:
            self.chain.accept(row, token, generated=True)

    def _sample(self, tasks: Sequence[SampleTask], rows: Logits) -> list[int]:
        """Tokens by row of the chain; -1 in rows without a task."""
        draw, self._draw = self._draw, None
        if draw is not None and draw.made is not None:
            made: list[int] = draw.made.tolist()
            return made
        logits = torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows
        batch = self.chain.max_batch
        order = [0] * batch
        for task in tasks:
            order[self._rows[task.state]] = task.row
        live = None
        if len(tasks) < batch:
            has_task = {self._rows[task.state] for task in tasks}
            live = torch.tensor([row in has_task for row in range(batch)]).to(logits.device)
        if order != list(range(len(logits))):
            logits = logits.index_select(0, torch.tensor(order).to(logits.device))
        tokens: list[int] = self.chain.sample(logits, live=live).tolist()
        return tokens


class ChainDraw(Draw):
    """Draws a token for some rows of a chain, in the graph of the step that gives their logits.

    Args:
        last: int64 [max_batch], where the rows' tokens are kept for the next step.
        rows: of the chain; row i of the logits is that of ``rows[i]``.
        fed: the step decodes those tokens.
    """

    def __init__(
        self, chain: DeviceChain, last: torch.Tensor, rows: Sequence[int], fed: bool
    ) -> None:
        self.chain, self.device, self._last = chain, chain.device, last
        self._rows, self._fed = list(rows), fed
        drawing = set(rows)
        self._counts = [int(row in drawing) for row in range(len(last))]
        self._launches = chain.launches(len(last))

    owner: DeviceChain = forwarded("chain", "The chain.")
    key: Hashable = forwarded("_launches", "What the chain's kernels are.")

    def arrays(self, n: int) -> dict[str, npt.NDArray[Any]]:
        """The rows of logits of the chain's rows, which of these draw, and where the step's ids are."""
        order, ids = np.zeros(len(self._last), np.int64), np.arange(n) + len(self._last)
        order[self._rows] = np.arange(len(self._rows))
        if self._fed:
            ids[: len(self._rows)] = self._rows
        return {"order": order, "live": np.array(self._counts, np.int32), "ids": ids}

    def inputs(self, ids: torch.Tensor, arrays: Mapping[Any, torch.Tensor]) -> torch.Tensor:
        """The rows' last tokens, or ``ids``."""
        return torch.cat((self._last, ids)).index_select(0, arrays["ids"])

    def compute(self, logits: torch.Tensor, arrays: Mapping[Any, torch.Tensor]) -> torch.Tensor:
        """Tokens int64 [max_batch], -1 in rows that draw none."""
        own = logits[:, : self.chain.n_vocab].index_select(0, arrays["order"])
        drawn = self.chain.step(own, arrays["live"] > 0)
        torch.clamp(drawn, min=0, out=self._last)  # nothing is decoded after a row without a token
        return drawn

    def begin(self) -> None:
        """The chain counts, and sees that there is room."""
        self.chain.before_replays(self._counts, launches=self._launches)


def nothing_to_draw(state: RequestState) -> LogitsError:
    """The error of a request of which the device has drawn no token."""
    return LogitsError(f"sequence {state.seq}: no token that may be drawn has a finite logit")


def _of_row(logits: Logits, row: int, token: int, top: int, token_bytes: TokenBytes) -> Logprobs:
    return top_logprobs(host_rows(logits[row]), token, top, token_bytes)


def _kinds(states: Sequence[RequestState]) -> Hashable | None:
    """What samplers requests have, in their order; None: they may change, or are a user's."""
    kinds = [
        [kind_of(sampler) for sampler, _ in state.chain.samplers_with_places] for state in states
    ]
    users = any(kind is not None and kind.user is not None for row in kinds for kind in row)
    if users or any(state.chain.by_phase() for state in states):
        return None
    return tuple(map(tuple, kinds))


def _room(tokens: int, n_ctx: int) -> int:
    """Tokens of a history: a power of two, or all that the context holds, so that few sizes occur."""
    return tokens if tokens > n_ctx else min(max(256, 1 << tokens.bit_length()), n_ctx + 1)


def longest(request: Request, n_ctx: int) -> int:
    """The most tokens that a request's chain may hold."""
    prompt = len(request.tokens)
    whole = max(prompt, n_ctx) + 1
    options = request.options
    if options.max_tokens is None:
        return whole
    wanted = prompt + max(1, options.max_tokens)
    return wanted if options.context_shift else min(wanted, whole)
