"""Prompt lookup: what followed the last few tokens when they occurred before."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

SIZES = (3, 2)
"""Lengths of the runs of tokens that are looked for, the longest first."""
REMEMBERED = 2**16
"""Tokens of earlier texts that are remembered at most."""


class Texts:
    """Earlier texts of an engine, found by runs of their tokens; the oldest are forgotten."""

    def __init__(self) -> None:
        self._texts: deque[tuple[str, tuple[int, ...]]] = deque()
        self._size = 0
        # After a run of tokens: the text, and where what followed begins in it.
        self._after: dict[tuple[str, tuple[int, ...]], tuple[tuple[int, ...], int]] = {}

    def add(self, tokens: Sequence[int], namespace: str) -> None:
        """Remember a text.

        Args:
            tokens: the text; of a longer one than :data:`REMEMBERED` its end.
            namespace: other texts of this namespace may be guessed from it.
        """
        text = (*tokens[-REMEMBERED:],)  # an object of its own, by which _forget knows it
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
        """The oldest text goes: a run of tokens that was found in it last is in no other."""
        self._size -= len(text)
        for size in SIZES:
            for end in range(size, len(text)):
                key = namespace, text[end - size : end]
                if key in self._after and self._after[key][0] is text:
                    del self._after[key]

    def follow(self, last: tuple[int, ...], n: int, namespace: str) -> Sequence[int]:
        """Up to ``n`` tokens that came after some others; none if these never occurred."""
        text, start = self._after.get((namespace, last), ((), 0))
        return text[start : start + n]


class PromptLookup:
    """Guesses that a text goes on as it did before, or as an earlier one of the engine did.

    Args:
        texts: earlier ones; None: only the text itself is looked at.
        namespace: of the texts that may be looked at.
    """

    def __init__(self, texts: Texts | None = None, namespace: str = "") -> None:
        self._texts, self._namespace = texts, namespace
        self._after: dict[tuple[int, ...], int] = {}
        self._known = 0

    def draft(self, tokens: Sequence[int], n: int) -> Sequence[int]:
        """See :class:`aleator.generate.speculation.drafter.Drafter`."""
        if len(tokens) < self._known:  # a context shift has moved everything
            self._after, self._known = {}, 0
        for end in range(max(self._known, 1), len(tokens)):
            for size in SIZES:
                if end >= size:
                    self._after[tuple(tokens[end - size : end])] = end
        self._known = len(tokens)
        for size in SIZES:
            last = tuple(tokens[-size:])
            start = self._after.get(last)
            if start is not None:
                found = list(tokens[start : start + n])
                while len(found) < n:  # it goes on as it has just begun to
                    found.append(found[len(found) - (len(tokens) - start)])
                return found
            if self._texts is not None:
                earlier = self._texts.follow(last, n, self._namespace)
                if earlier:
                    return earlier
        return ()
