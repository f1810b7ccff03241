"""What decides a token beside the chain: a budget of reasoning, and a second prompt to be kept away from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aleator.generate.logprobs import log_softmax

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
