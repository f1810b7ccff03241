"""Tokens that take long to choose: looked for piece by piece, while others are made."""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter

from aleator.generate.token_sampler import SampledToken
from aleator.generate.request_state import RequestState


class Choices:
    """Makes the choices that :attr:`SampledToken.pending` describes, each in its turn for a moment.

    What is chosen does not depend on how often a choice had to wait for its next turn.

    Args:
        seconds: That the choices of one step may take together, about; each has one piece of its work done
            in a step at least.  Infinite: each is made at once.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self._seconds = seconds
        self._open: dict[RequestState, SampledToken] = {}

    def __contains__(self, state: RequestState) -> bool:
        """Whether the token that a request has drawn is still to be chosen."""
        return state in self._open

    def begin(self, state: RequestState, drawn: SampledToken) -> SampledToken | None:
        """Choose what a request has drawn.

        Args:
            state: Which draws.
            drawn: What it has drawn.

        Returns:
            What it has drawn; None: that is not known yet, :meth:`go_on` has to be called.
        """
        made = self._made(drawn)
        if made is None:
            self._open[state] = drawn.with_own_row()
        return made

    def go_on(self, state: RequestState) -> SampledToken | None:
        """Go on with a choice that was begun; returns what :meth:`begin` does."""
        drawn = self._open.pop(state)
        made = self._made(drawn)
        if made is None:
            self._open[state] = drawn
        return made

    def drop(self, state: RequestState) -> None:
        """Give a choice up, if there is one: the request's chain is as it was before it drew."""
        drawn = self._open.pop(state, None)
        if drawn is not None and drawn.pending is not None:
            drawn.pending.close()

    def _made(self, drawn: SampledToken) -> SampledToken | None:
        """Work on a choice for as long as its turn lasts; what was chosen, if it is."""
        if drawn.pending is None:
            return drawn
        end = perf_counter() + self._seconds / (1 + len(self._open))
        while True:
            try:
                next(drawn.pending)
            except StopIteration as chosen:
                return replace(drawn, token=chosen.value, pending=None)
            if perf_counter() >= end:
                return None
