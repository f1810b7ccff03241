"""What decides a token beside the chain: a budget of reasoning, and a second prompt to be kept away from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from aleator.core.records import dataclass
from aleator.generate.logprobs import LogprobsOf, log_softmax

Row = npt.NDArray[np.float32]


class ReasoningBudget:
    """Ends a text's reasoning after so many tokens, by the tokens of its end mark.

    Args:
        budget: Tokens between the marks, 0 or more.
        begin: The text that begins reasoning; it counts at the beginning of the reply only.
        end: The text that ends it.
        end_tokens: Its tokens, at least one.
        opened: The prompt ends within reasoning.
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
        """A token has come.

        Args:
            token: Drawn or forced.
            piece: Its bytes.
        """
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

    Args:
        prompt: The negative prompt, at least one token.
        scale: 1 changes nothing.

    Attributes:
        prompt: The negative prompt.
        seq: Its sequence of the cache; -1 before the request begins.
        computed: Tokens of the prompt that the cache holds.
        first: The logits [V] after it, once it is computed.
    """

    def __init__(self, prompt: Sequence[int], scale: float) -> None:
        self.prompt, self._scale = tuple(prompt), scale
        self.seq, self.computed = -1, 0
        self.first: Row = np.empty(0, np.float32)

    def held(self, tokens: int, prompt: int) -> int:
        """Positions that its sequence has.

        Args:
            tokens: Those of the request's own sequence.
            prompt: Those of these that are the request's own prompt.
        """
        return self.computed + max(0, tokens - prompt)

    def guided(self, row: Row, other: Row) -> Row:
        """The logits [V] to draw from.

        Args:
            row: With the request's own prompt.
            other: With the negative one, after the same text.
        """
        p, q = log_softmax(row), log_softmax(other)
        moved = q + self._scale * (p - q)
        # Where one of them rules a token out there is no number to move.
        moved[~np.isfinite(p)] = -np.inf
        moved[~np.isfinite(q)] = p[~np.isfinite(q)]
        return moved.astype(np.float32)


@dataclass
class Held:
    """A token that was drawn and may have to be taken back.

    Attributes:
        token: The token.
        piece: Its bytes.
        row: The logits [V] that it was drawn from.
        logprobs: Says what the model thought of it.
    """

    token: int
    piece: bytes
    row: npt.NDArray[np.float32]
    logprobs: LogprobsOf


class BannedStrings:
    """Holds tokens back for as long as a string may begin in them.

    Args:
        strings: None of them empty.
        token_bytes: Gives the bytes of a token; none of one that is no text.

    Attributes:
        held: The tokens held back.
        longest: Bytes of the longest string: so many tokens may have to be taken back at most.
    """

    def __init__(self, strings: Sequence[str], token_bytes: Callable[[int], bytes]) -> None:
        self._strings = [text.encode() for text in strings]
        self._token_bytes = token_bytes
        self.longest = max(map(len, self._strings))
        self.held: list[Held] = []
        self._refused: list[set[int]] = []  # at the place of each held token, and of the next one

    def take(self, token: int, row: npt.NDArray[np.float32], logprobs: LogprobsOf) -> int:
        """A token was drawn.

        Args:
            token: The token.
            row: The logits [V] that it was drawn from.
            logprobs: Says what the model thought of it.

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

    def back(self, n: int) -> tuple[Held, npt.NDArray[np.float32]]:
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
        """Tokens in which no string can begin any more; they are held no longer.

        Args:
            everything: The text ends: give all of them.
        """
        text = b"".join(each.piece for each in self.held)
        open_length = 0 if everything else self._open_length(text)
        closed, n = len(text) - open_length, 0
        for each in self.held:
            closed -= len(each.piece)
            if closed < 0:
                break
            n += 1
        made = self.held[:n]
        del self.held[:n], self._refused[:n]
        return made

    def _open_length(self, text: bytes) -> int:
        """Length of the longest end of the text that begins some string."""
        for length in range(min(len(text), self.longest - 1), 0, -1):
            if any(string.startswith(text[-length:]) for string in self._strings):
                return length
        return 0
