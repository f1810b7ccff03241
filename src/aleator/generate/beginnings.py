"""The beginnings of requests: what the prompt cache has of them, at hand or on its way, and what it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from aleator.generate.completion import ONCE
from aleator.generate.context import Prefixes
from aleator.generate.request_state import RequestState

if TYPE_CHECKING:
    from aleator.generate.arrival import Wake  # loads SQLite
    from aleator.generate.tiered_prefixes import TieredPrefixes


class Beginnings:
    """What the prompt cache does for the requests of a run.

    What must be read is read beside the steps, and ``wake`` is called, in any thread, when :meth:`take_in` has
    something to do; None: :meth:`begin` reads it.
    """

    def __init__(self, prefixes: Prefixes, wake: Wake | None) -> None:
        self._prefixes, self._wake = prefixes, wake
        self._tiers = cast("TieredPrefixes", prefixes) if hasattr(prefixes, "look_up") else None

    @property
    def tiered(self) -> bool:
        """Whether there are tiers, which write while a prompt is computed, rather than all of it at its end."""
        return self._tiers is not None

    def look_up(self, state: RequestState) -> None:
        """Have a thread look for what a tier has of a request's prompts before its turn; in any thread."""
        if self._tiers is None or self._wake is None or state.wants_prompt:
            return
        beside = () if state.guidance is None else state.guidance.prompt
        where = state.request.where
        for tokens in (state.request.remaining, beside):
            looked = self._tiers.look_up(tokens, where)
            if looked is not None:
                state.look_ups[tokens] = looked

    def begin(self, state: RequestState, seq: int, tokens: tuple[int, ...]) -> int:
        """Give an empty sequence of a request what is cached of ``tokens``; returns how many that is."""
        where = state.request.where
        if self._tiers is None or self._wake is None:
            return self._prefixes.reuse(seq, tokens, where)
        looked = state.look_ups.pop(tokens, None)
        held, arrival = self._tiers.begin(seq, tokens, where, self._wake, looked)
        if arrival is not None and not arrival.done:
            state.arrivals.append(arrival)
        return held

    def take_in(self, state: RequestState, seconds: float) -> float:
        """Take in what has come of a request's prompts, for about so many seconds each.

        Returns the seconds that it has cost, those of threads that read among them.
        """
        guidance, spent = state.guidance, 0.0
        for arrival in state.arrivals:
            before, spent_before = arrival.length, arrival.seconds
            changed = arrival.go_on(seconds)
            spent += arrival.seconds - spent_before
            if not changed:
                continue
            state.stats.reused_tokens += arrival.length - before
            if guidance is not None and arrival.seq == guidance.seq:
                guidance.computed = arrival.length
            else:
                state.tokens += state.request.remaining[before : arrival.length]
        state.arrivals = [each for each in state.arrivals if not each.done]
        return spent

    @staticmethod
    def stop(state: RequestState) -> None:
        """Wait for nothing more."""
        for arrival in state.arrivals:
            arrival.stop()
        state.arrivals = []

    def keep(self, seq: int, tokens: Sequence[int], namespace: str) -> None:
        """Keep the beginning that a sequence holds, unless its request is to leave nothing."""
        if not namespace.startswith(ONCE):
            self._prefixes.keep(seq, tokens, namespace)

    def computed(self, tokens: int, seconds: float) -> None:
        """Note how long a piece of a prompt took."""
        if self._tiers is not None:
            self._tiers.computed(tokens, seconds)
