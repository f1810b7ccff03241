"""Samples the tokens of a step: each request's own chain on the host, or one device chain for all requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, Union

import numpy as np

from aleator.core.arrays import Floats
from aleator.core.errors import LogitsError
from aleator.core.records import dataclass
from aleator.generate.complete_grammar import Work
from aleator.generate.logprobs import LogprobsOf, top_logprobs, with_kept
from aleator.generate.request_state import Proposal, RequestState
from aleator.models.step import Draw
from aleator.samplers import sample_batch
from aleator.samplers.kept_tokens import KeptRow

if TYPE_CHECKING:
    import torch


Logits = Union[Floats, "torch.Tensor"]
"""Rows of logits [n, V] as a context gives them: NumPy's on the CPU, PyTorch's on a device."""


LEAST_TOGETHER = 4
"""From this many requests on, sampling in several threads saves more time than waking the threads takes."""


def host_rows(logits: Logits) -> Floats:
    """Rows of logits in the host's memory."""
    if isinstance(logits, np.ndarray):
        return logits
    rows: Floats = logits.cpu().numpy()
    return rows


@dataclass(frozen=True)
class SampleTask:
    """A token to sample."""

    state: RequestState  # The request whose chain samples
    row: int  # Index of its row of logits
    left: int | None  # How many tokens may still come, this one included; None: any number
    beside: int = -1  # Row after the request's second prompt; -1: that is first, or there is none
    sampled: int | None = None  # The token, where the request's chain has drawn it already


@dataclass(frozen=True)
class SampledToken:
    """The result of a :class:`SampleTask`."""

    # The token, which the request's chain has accepted.  None: the text is complete without one, or
    # ``pending`` finds it.
    token: int | None
    logprobs: LogprobsOf  # Gives the model's log-probabilities of tokens
    # The logits [V] that the token was drawn from, where the host has them
    row: Floats | None = None
    # Work that gives the token and may take long; None: nothing is left to do
    pending: Work[int | None] | None = None
    kept: KeptRow | None = None  # What the chain keeps of the row, if the request asked for it
    error: LogitsError | None = None  # Why there is no token

    def with_own_row(self) -> SampledToken:
        """Copy the token with its row, since the next batch may overwrite the row."""
        if self.row is None:
            return self
        row = self.row.copy()
        return replace(self, row=row, logprobs=_logprobs_of(row, self.kept))


def _logprobs_of(row: Floats, kept: KeptRow | None) -> LogprobsOf:
    """Gives log-probabilities of tokens by the logits [V], and what the chain kept if that was asked for."""
    found = partial(top_logprobs, row)
    return found if kept is None else with_kept(found, kept)


class TokenSampler(Protocol):
    """Draws tokens for requests, from logits [n, V]."""

    @property
    def host(self) -> HostTokenSampler:
        """What draws for requests for which it does not itself."""

    def draws_for(self, state: RequestState) -> bool:
        """Whether it draws for a request where the logits are; its :attr:`host` does if not."""

    def draw(self, rows: Sequence[Proposal]) -> Draw | None:
        """What draws in the step that decodes ``rows`` and nothing else; None: it has to give logits.

        Asked before every step; without rows in a step that decodes more.
        """
        return None

    def sample(self, tasks: Sequence[SampleTask], logits: Logits) -> list[SampledToken]:
        """Sample one token for each task; a request has one task at most."""

    def leave(self, state: RequestState) -> None:
        """Take note that a request has ended, or begins anew."""
        return

    def release(self) -> None:
        """Take note that no request needs it any more."""
        return


class HostTokenSampler(TokenSampler):
    """Every request's own chain, on the CPU, with ``n_threads`` at the same time; 0: one after the other."""

    def __init__(self, n_threads: int | None = 0) -> None:
        self._n_threads = n_threads

    @property
    def host(self) -> HostTokenSampler:
        """See :class:`TokenSampler`."""
        return self

    def draws_for(self, state: RequestState) -> bool:
        """See :class:`TokenSampler`."""
        return False

    def sample_together(self, tasks: Sequence[SampleTask], rows: Floats) -> Sequence[SampleTask]:
        """Sample in one native call where nothing but the chain decides; returns all tasks, those with tokens.

        If one of these fails, none has sampled.  Each samples by itself then, and the error ends only one.
        """
        if self._n_threads == 0 or len(tasks) < LEAST_TOGETHER:
            return tasks
        made = list(tasks)
        alike = [i for i, task in enumerate(tasks) if task.state.draws_alone]
        # Rows that follow one another are given as they are.
        for _, run in groupby(enumerate(alike), lambda each: tasks[each[1]].row - each[0]):
            places = [i for _, i in run]
            if len(places) < LEAST_TOGETHER:
                continue
            first = tasks[places[0]].row
            chains = [tasks[i].state.chain for i in places]
            try:
                tokens = sample_batch(chains, rows[first : first + len(places)], self._n_threads)
            except LogitsError:
                continue
            for i, token in zip(places, tokens, strict=True):
                made[i] = replace(tasks[i], sampled=token)
        return made

    def sample(self, tasks: Sequence[SampleTask], logits: Logits) -> list[SampledToken]:
        """See :class:`TokenSampler`."""
        rows, drawn = host_rows(logits), []
        for task in tasks:
            state, row = task.state, rows[task.row]
            if state.guidance is not None:
                first = state.guidance.first
                row = state.guidance.guided(row, rows[task.beside] if task.beside >= 0 else first)
            thought, row = row, state.allowed(row)
            if state.on_logits is not None:
                state.on_logits(state.chain, row)
            kept = KeptRow.of(state.chain, row) if state.request.options.kept else None
            token, pending = task.sampled, None
            if token is None:
                token, pending = self._sample(task, row)
            drawn.append(SampledToken(token, _logprobs_of(thought, kept), row, pending, kept))
        return drawn

    @staticmethod
    def _sample(task: SampleTask, row: Floats) -> tuple[int | None, Work[int | None] | None]:
        """The token of a task, or the work that finds it."""
        state = task.state
        token = None if state.budget is None else state.budget.next()
        if token is not None:
            state.chain.accept(token, generated=True)
            return token, None
        if state.completer is None or task.left is None:
            return state.chain.sample(row), None
        return None, state.completer.sample(row, task.left)


class PendingTokens:
    """Does the work of :attr:`SampledToken.pending`, for a moment in each step.

    The token does not depend on how often its work had to pause.  The work of one step takes about ``seconds``,
    for all requests together; each has at least one piece of its work done.  Infinite: all work is done at
    once.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self._seconds = seconds
        self._open: dict[RequestState, SampledToken] = {}

    def __contains__(self, state: RequestState) -> bool:
        """Whether a request's token is still to be chosen."""
        return state in self._open

    def begin(self, state: RequestState, sampled: SampledToken) -> SampledToken | None:
        """Choose a request's token.

        Returns:
            It with its token; None: the work is not done yet, and :meth:`go_on` has to be called.
        """
        made = self._work_on(sampled)
        if made is None:
            self._open[state] = sampled.with_own_row()
        return made

    def go_on(self, state: RequestState) -> SampledToken | None:
        """Go on with what :meth:`begin` began; returns what that returns."""
        sampled = self._open.pop(state)
        made = self._work_on(sampled)
        if made is None:
            self._open[state] = sampled
        return made

    def drop(self, state: RequestState) -> None:
        """Give a request's work up, if there is any; its chain is as it was before it sampled."""
        sampled = self._open.pop(state, None)
        if sampled is not None and sampled.pending is not None:
            sampled.pending.close()

    def _work_on(self, sampled: SampledToken) -> SampledToken | None:
        """Work for a moment; returns the token if it is chosen then."""
        if sampled.pending is None:
            return sampled
        end = perf_counter() + self._seconds / (1 + len(self._open))
        while True:
            try:
                next(sampled.pending)
            except StopIteration as chosen:
                return replace(sampled, token=chosen.value, pending=None)
            if perf_counter() >= end:
                return None
