"""Guesses that a text continues as it, or an earlier text, did before."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

SIZES = (3, 2)
"""Lengths of the token runs that are searched for, longest first."""
OWN_SIZES = (16, 6, *SIZES)
"""As :data:`SIZES`, within a text: where a verse comes again, short runs have several continuations."""
MANY = 8
"""New tokens from which on their runs are cut together, which is faster."""
REMEMBERED = 2**16
"""Most tokens of earlier texts that are remembered."""
MEMORY = 0.6
"""Factor by which new guesses reduce the weight of earlier ones."""


class DraftHistory:
    """Earlier texts of an engine, found by runs of their tokens; the oldest are forgotten."""

    def __init__(self) -> None:
        self._texts: deque[tuple[str, tuple[int, ...]]] = deque()
        self._size = 0
        # By a run of tokens: the text, and the index at which its continuation begins.
        self._after: dict[tuple[str, tuple[int, ...]], tuple[tuple[int, ...], int]] = {}

    def add(self, tokens: Sequence[int], namespace: str) -> None:
        """Remember the last :data:`REMEMBERED` tokens of a text, for other texts of the same namespace."""
        text = (*tokens[-REMEMBERED:],)  # a new object, by which _forget recognises it
        self._texts.append((namespace, text))
        self._size += len(text)
        self._learn(namespace, text)
        while self._size > REMEMBERED:
            self._forget(*self._texts.popleft())

    def _learn(self, namespace: str, text: tuple[int, ...]) -> None:
        for size in SIZES:
            for end in range(size, len(text)):
                self._after[namespace, text[end - size : end]] = text, end

    def _forget(self, namespace: str, text: tuple[int, ...]) -> None:
        """Forget the oldest text, with the runs for which it is the latest text."""
        self._size -= len(text)
        for size in SIZES:
            for end in range(size, len(text)):
                key = namespace, text[end - size : end]
                if key in self._after and self._after[key][0] is text:
                    del self._after[key]

    def follow(self, last: tuple[int, ...], n: int, namespace: str) -> Sequence[int]:
        """Up to ``n`` tokens that followed the run ``last``; empty if the run never occurred."""
        text, start = self._after.get((namespace, last), ((), 0))
        return text[start : start + n]


class PromptLookup:
    """Guesses that a text continues as it did before, or as an earlier text of the engine did.

    ``history`` has earlier texts, searched within ``namespace`` only; None: only the text itself is searched.
    """

    def __init__(self, history: DraftHistory | None = None, namespace: str = "") -> None:
        self._history, self._namespace = history, namespace
        self._after: dict[tuple[int, ...], int] = {}
        self._known = 0

    def draft(self, tokens: Sequence[int], n: int) -> Sequence[int]:
        """See :class:`aleator.generate.speculative.Drafter`."""
        if len(tokens) < self._known:  # a context shift has moved all positions
            self._after, self._known = {}, 0
        self._learn(tokens)
        for size in OWN_SIZES:
            last = tuple(tokens[-size:])
            start = self._after.get(last)
            if start is not None:
                found = list(tokens[start : start + n])
                while len(found) < n:  # the continuation repeats itself
                    found.append(found[len(found) - (len(tokens) - start)])
                return found
            if self._history is not None and size in SIZES:
                earlier = self._history.follow(last, n, self._namespace)
                if earlier:
                    return earlier
        return ()

    def _learn(self, tokens: Sequence[int]) -> None:
        """Note where each new run of tokens is continued, the last time that it occurs."""
        n = len(tokens)
        for size in OWN_SIZES:
            start = max(self._known, size)
            if n - start > MANY:  # after a pause
                columns = [tokens[start - size + i : n - size + i] for i in range(size)]
                self._after.update(zip(zip(*columns, strict=True), range(start, n), strict=True))
            else:
                for end in range(start, n):
                    self._after[tuple(tokens[end - size : end])] = end
        self._known = n


class HitRate:
    """How often guesses were right lately; before the first, ``right`` of ``tried``."""

    def __init__(self, right: float, tried: float) -> None:
        self._right, self._tried = right, tried

    @property
    def likely(self) -> float:
        """Probability that a guess is right, estimated from recent ones."""
        return self._right / self._tried

    def learn(self, guessed: int, right: int) -> None:
        """Learn that the first ``right`` of ``guessed`` guesses were right; after a wrong one none counts."""
        self._right = MEMORY * self._right + right
        self._tried = MEMORY * self._tried + right + (right < guessed)


class Repeats:
    """Guesses that a text repeats itself, and counts how often such guesses would have been right."""

    def __init__(self) -> None:
        self._lookup, self._rate = PromptLookup(), HitRate(0.0, 1.0)
        self._found, self._at = list[int](), 0

    def draft(self, tokens: Sequence[int], n: int) -> Sequence[int]:
        """Up to ``n`` tokens that followed the last ones before; asked in steps without guesses, too."""
        pairs = zip(self._found, tokens[self._at :], strict=False)
        same = [each == drawn for each, drawn in pairs]
        if same:
            self._rate.learn(len(same), [*same, False].index(False))
        self._found, self._at = list(self._lookup.draft(tokens, n)), len(tokens)
        return self._found

    @property
    def likely(self) -> float:
        """See :class:`HitRate`."""
        return self._rate.likely
