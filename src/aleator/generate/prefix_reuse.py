"""The prompt cache's part in requests: finding, loading and keeping prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from aleator.generate.completion import ONCE
from aleator.generate.context import Prefixes
from aleator.generate.request_state import RequestState

if TYPE_CHECKING:
    from aleator.generate.prefix_load import Wake  # loads SQLite
    from aleator.generate.tiered_prefixes import TieredPrefixes


class PrefixReuse:
    """The prompt cache for the requests of a run.

    Loading from tiers runs beside the steps; ``wake`` is called, in any thread, when :meth:`take_arrived` has
    something to do.  None: :meth:`begin` loads.
    """

    def __init__(self, prefixes: Prefixes, wake: Wake | None) -> None:
        self._prefixes, self._wake = prefixes, wake
        self._tiers = cast("TieredPrefixes", prefixes) if hasattr(prefixes, "look_up") else None

    @property
    def tiered(self) -> bool:
        """Whether there are tiers, which store a prompt while it is computed rather than at its end."""
        return self._tiers is not None

    def look_up(self, state: RequestState) -> None:
        """Start looking up a request's prompts in the tiers before its turn; may be called in any thread."""
        if self._tiers is None or self._wake is None or state.wants_prompt:
            return
        beside = () if state.guidance is None else state.guidance.prompt
        prompt, namespace = state.request.remaining, state.request.cache_namespace
        first, before = state.request.before_adapters
        if first:
            prompt, namespace = prompt[: first + 1], before
        for tokens in (prompt, beside):
            looked = self._tiers.look_up(tokens, namespace)
            if looked is not None:
                state.look_ups[tokens] = looked

    def begin(self, state: RequestState, seq: int, tokens: tuple[int, ...]) -> int:
        """Give an empty sequence of a request the cached prefix of ``tokens``; return the prefix's length."""
        namespace = state.request.cache_namespace
        first, before = state.request.before_adapters
        if first and self._prefixes.match(tokens, namespace).length < first:
            tokens, namespace = tokens[: first + 1], before
        if self._tiers is None or self._wake is None:
            return self._prefixes.reuse(seq, tokens, namespace)
        looked = state.look_ups.pop(tokens, None)
        held, load = self._tiers.begin(seq, tokens, namespace, self._wake, looked)
        if load is not None and not load.done:
            state.prefix_loads.append(load)
        return held

    def take_arrived(self, state: RequestState, seconds: float) -> float:
        """Take in what has arrived of a request's prompts, for about ``seconds`` seconds each.

        Returns the seconds that it cost, including those of reading threads.
        """
        guidance, spent = state.guidance, 0.0
        for load in state.prefix_loads:
            before, spent_before = load.length, load.seconds
            load.go_on(seconds)
            spent += load.seconds - spent_before
            state.stats.reused_tokens += load.length - before
            if guidance is not None and load.seq == guidance.seq:
                guidance.computed = load.length
            else:
                state.tokens += state.request.remaining[before : load.length]
        state.prefix_loads = [each for each in state.prefix_loads if not each.done]
        return spent

    @staticmethod
    def stop(state: RequestState) -> None:
        """Stop loading for a request."""
        for load in state.prefix_loads:
            load.stop()
        state.prefix_loads = []

    def keep_prompt(self, state: RequestState) -> None:
        """Keep what is computed of a request's prompt, and by itself what precedes its adapters."""
        first, before = state.request.before_adapters
        if first:
            self.keep(state.seq, state.tokens[:first], before)
        if len(state.tokens) > first:
            self.keep(state.seq, state.tokens, state.request.cache_namespace)

    def keep(self, seq: int, tokens: Sequence[int], namespace: str) -> None:
        """Keep the prefix that a sequence holds, unless its request is to leave nothing."""
        if not namespace.startswith(ONCE):
            self._prefixes.keep(seq, tokens, namespace)

    def computed(self, tokens: int, seconds: float) -> None:
        """Note how long a chunk of a prompt took."""
        if self._tiers is not None:
            self._tiers.computed(tokens, seconds)
