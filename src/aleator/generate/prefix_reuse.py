"""The prompt cache's part in requests: finding, loading and keeping prefixes, also in another context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from aleator.cache.prefix_index import Match
from aleator.core.errors import CacheError
from aleator.generate.completion import ONCE
from aleator.generate.context import Context, Prefixes
from aleator.generate.request_state import RequestState

if TYPE_CHECKING:
    from aleator.generate.prefix_load import Wake  # loads SQLite
    from aleator.generate.tiered_prefixes import TieredPrefixes

SPARE = 1
"""The owner's sequence that is empty except while rows are copied."""
LEAST = 16
"""The fewest tokens for which copying pays."""


class CopiedPrefixes:
    """The prefixes that one context keeps, for a run in another one of the same model.

    A single context for both would have to reserve memory for the largest possible batch.  Rows are copied
    bit for bit, both ways; without room for the copies, nothing is found or kept.  A run's text is kept if at
    least a quarter of it is new, since a copy shares no cells.  One run keeps at most as many tokens as the
    owner has cells, prompts first.  The owner's sequence ``SPARE`` is empty.
    """

    def __init__(self, owner: Context, borrower: Context) -> None:
        self._owner, self._borrower = owner.cache, borrower.cache
        self._left = owner.n_ctx

    def match(self, tokens: Sequence[int], namespace: str = "") -> Match:
        """See :meth:`Prefixes.match`."""
        return self._owner.match(tokens, namespace)

    def reuse(self, seq: int, tokens: Sequence[int], namespace: str = "") -> int:
        """Give an empty sequence the longest cached beginning of ``tokens``; returns its length."""
        if self._owner.match(tokens, namespace).length < LEAST:
            return 0
        try:
            held = self._owner.reuse(SPARE, tokens, namespace)
            self._borrower.state_read(self._owner.state_write(SPARE), seq)
        except CacheError:
            return 0
        finally:
            self._owner.seq_rm(SPARE)
        return held

    def keep(self, seq: int, tokens: Sequence[int], namespace: str = "") -> bool:
        """Keep the beginning that a sequence holds; returns whether it is kept."""
        missing = len(tokens) - self._owner.match([*tokens, 0], namespace).length
        if missing < max(LEAST, len(tokens) // 4) or len(tokens) > self._left:
            return False
        self._left -= len(tokens)
        try:
            self._owner.state_read(self._borrower.state_write(seq), SPARE)
            return self._owner.keep(SPARE, tokens, namespace)
        except CacheError:
            return False
        finally:
            self._owner.seq_rm(SPARE)


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
