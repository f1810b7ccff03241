"""Tokens that take long to choose: the work is done in pieces, while other requests go on."""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter

from aleator.generate.request_state import RequestState
from aleator.generate.token_sampler import SampledToken


class PendingTokens:
    """Does the work of :attr:`SampledToken.pending`, for a moment in each step.

    The token does not depend on how often its work had to pause.

    Args:
        seconds: About how long the work of one step may take, for all requests together.  Each request has at
            least one piece of its work done in a step.  Infinite: all work is done at once.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self._seconds = seconds
        self._open: dict[RequestState, SampledToken] = {}

    def __contains__(self, state: RequestState) -> bool:
        """Whether a request's token is still to be chosen."""
        return state in self._open

    def begin(self, state: RequestState, sampled: SampledToken) -> SampledToken | None:
        """Choose a request's token.

        Args:
            state: The request.
            sampled: What its sampler gave.

        Returns:
            The same with its token; None: the work is not done yet, and :meth:`go_on` has to be called.
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
