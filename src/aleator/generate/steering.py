"""What decides a token beside the chain: a budget of reasoning, a negative prompt, banned strings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aleator.core.arrays import Floats
from aleator.core.records import dataclass
from aleator.generate.completion import open_length
from aleator.generate.logprobs import LogprobsOf, TokenBytes, log_softmax


class ReasoningBudget:
    """Ends a text's reasoning after ``budget`` tokens, by the tokens of its end mark.

    The text ``begin`` counts at the beginning of the reply only.  ``opened``: the prompt ends within reasoning.
    """

    def __init__(
        self, budget: int, begin: bytes, end: bytes, end_tokens: Sequence[int], opened: bool
    ) -> None:
        self._budget, self._begin, self._end = budget, begin, end
        self._end_tokens = list(end_tokens)
        self._inside = opened
        self._over = False
        self._text, self._n = b"", 0
        self._forced: list[int] = []

    def next(self) -> int | None:
        """The token that must come now; None if the chain draws it."""
        spent = self._inside and not self._over and self._n >= self._budget
        if spent and not self._forced and _whole(self._text):
            self._forced = list(self._end_tokens)
        return self._forced[0] if self._forced else None

    def take(self, token: int, piece: bytes) -> None:
        """Take in a token, drawn or forced, with its bytes."""
        if self._over:
            return
        if self._forced:
            del self._forced[0]
            self._over = not self._forced
            return
        self._text += piece
        if self._inside:
            self._n += 1
            self._over = self._end in self._text
            return
        text = self._text.lstrip()
        if text.startswith(self._begin):
            self._inside, self._text = True, text[len(self._begin) :]
        else:
            self._over = not self._begin.startswith(text)


def _whole(text: bytes) -> bool:
    """Whether a text does not end within a character."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.end < len(text) or error.reason != "unexpected end of data"
    return True


class Guidance:
    """Moves logits away from what another prompt would make of the same text.

    Natural-log probabilities ``log p`` with the request's own prompt and ``log q`` with the negative one give
    ``log q + scale * (log p - log q)``, in float64 and rounded to float32.  The negative prompt has a sequence
    of its own, which the text follows there too.

    Attributes:
        prompt: The negative prompt, at least one token.
        seq: Its sequence of the cache; -1 before the request begins.
        computed: Tokens of the prompt that the cache holds.
        first: The logits [V] after it, once it is computed.
    """

    def __init__(self, prompt: Sequence[int], scale: float) -> None:
        self.prompt, self._scale = tuple(prompt), scale
        self.seq, self.computed = -1, 0
        self.first: Floats = np.empty(0, np.float32)

    def guided(self, row: Floats, other: Floats) -> Floats:
        """The logits [V] to draw from: those of the request's own prompt, moved away from the other ones."""
        p, q = log_softmax(row), log_softmax(other)
        moved = q + self._scale * (p - q)
        # Where one of them rules a token out there is no number to move.
        moved[~np.isfinite(p)] = -np.inf
        moved[~np.isfinite(q)] = p[~np.isfinite(q)]
        return moved.astype(np.float32)


@dataclass
class Held:
    """A token that was drawn from the logits [V] ``row`` and may have to be taken back."""

    token: int
    piece: bytes
    row: Floats
    logprobs: LogprobsOf


class BannedStrings:
    """Holds tokens back for as long as a string may begin in them.

    ``token_bytes`` gives the bytes of a token; none of one that is no text.

    Attributes:
        held: The tokens held back.
        longest: Bytes of the longest string: so many tokens may have to be taken back at most.
    """

    def __init__(self, strings: Sequence[str], token_bytes: TokenBytes) -> None:
        self._strings = [text.encode() for text in strings]
        self._token_bytes = token_bytes
        self.longest = max(map(len, self._strings))
        self.held: list[Held] = []
        self._refused: list[set[int]] = []  # at the place of each held token, and of the next one

    def take(self, token: int, row: Floats, logprobs: LogprobsOf) -> int:
        """Take in a token that was drawn from the logits [V] ``row``.

        Returns:
            How many of the tokens held, the last ones, must be taken back; 0: none.
        """
        self.held.append(Held(token, self._token_bytes(token), row, logprobs))
        if len(self._refused) < len(self.held):
            self._refused.append(set())
        text = b"".join(each.piece for each in self.held)
        found = [at for string in self._strings if (at := text.find(string)) >= 0]
        if not found:
            return 0
        start, end = min(found), 0
        for i, each in enumerate(self.held):
            end += len(each.piece)
            if end > start:
                return len(self.held) - i
        raise AssertionError("a string that was found begins in a token")

    def back(self, n: int) -> tuple[Held, Floats]:
        """Take back the last ``n`` tokens.

        Returns:
            The first of them, and the logits [V] to draw another one from: without it, and without those
            refused at its place before.
        """
        first = len(self.held) - n
        gone = self.held[first]
        del self.held[first:], self._refused[first + 1 :]
        self._refused[first].add(gone.token)
        row = gone.row.copy()
        row[list(self._refused[first])] = -np.inf
        return gone, row

    def ready(self, everything: bool) -> list[Held]:
        """Tokens in which no string can begin any more, or all where the text ends; they are held no longer."""
        text = b"".join(each.piece for each in self.held)
        closed, n = len(text), 0
        if not everything:
            closed -= open_length(text, self._strings, self.longest)
        for each in self.held:
            closed -= len(each.piece)
            if closed < 0:
                break
            n += 1
        made = self.held[:n]
        del self.held[:n], self._refused[:n]
        return made
