"""Strings that never occur: where one does, the text goes back to where it began and another token is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from aleator.core.records import dataclass
from aleator.generate.logprobs import LogprobsOf


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
