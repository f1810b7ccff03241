"""What decides a token besides the chain: a reasoning budget, a negative prompt; bans are in ``bans.py``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aleator.core.arrays import Floats
from aleator.generate.logprobs import log_softmax

_CLOSERS = b"*_`)]}'\"" + "\u2019\u201d\u00bb\u300d\u300f".encode()
"""Characters that may follow the mark at the end of a sentence."""
_SENTENCE_ENDS = tuple(each.encode() for each in ".!?\u2026\u3002\uff01\uff1f\uff61\u0964\u061f")


class ReasoningBudget:
    """Ends a text's reasoning after ``budget`` tokens, with the tokens of a message and the end mark.

    The text ``begin`` counts only at the beginning of the reply.  ``opened``: the prompt ends within reasoning.
    Up to ``grace`` more tokens may come until a sentence ends.
    """

    def __init__(
        self,
        budget: int,
        begin: bytes,
        end: bytes,
        end_tokens: Sequence[int],
        opened: bool,
        grace: int = 0,
    ) -> None:
        self._budget, self._begin, self._end, self._grace = budget, begin, end, grace
        self._end_tokens = list(end_tokens)
        self._inside = opened
        self._over = False
        self._text, self._n = b"", 0
        self._forced: list[int] = []

    def next(self) -> int | None:
        """The token that is forced now; None if the chain draws it."""
        spent = self._inside and not self._over and self._n >= self._budget
        if spent and not self._forced and _whole(self._text):
            late = self._n >= self._budget + self._grace
            self._forced = list(self._end_tokens) if late or _sentence_ended(self._text) else []
        return self._forced[0] if self._forced else None

    def take(self, token: int, piece: bytes) -> None:
        """Take in a token, drawn or forced, with its bytes."""
        if self._over:
            return
        if self._forced[:1] == [token]:
            del self._forced[0]
            self._over = not self._forced
            return
        self._forced = []  # an earlier generation, continued here, had another budget
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


def _sentence_ended(text: bytes) -> bool:
    """Whether a text ends with a sentence or a line, or is empty."""
    bare = text.rstrip()
    return b"\n" in text[len(bare) :] or not bare or bare.rstrip(_CLOSERS).endswith(_SENTENCE_ENDS)


def _whole(text: bytes) -> bool:
    """Whether a text ends with a complete character."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.end < len(text) or error.reason != "unexpected end of data"
    return True


class Guidance:
    """Moves logits away from those that another prompt gives for the same text.

    Natural-log probabilities ``log p`` with the request's own prompt and ``log q`` with the negative one give
    ``log q + scale * (log p - log q)``, in float64 and rounded to float32.  The negative prompt has a sequence
    of its own, in which the text follows it too.

    Attributes:
        prompt: The negative prompt, at least one token, and what an earlier generation drew of the text.
        seq: Its cache sequence; -1 before the request begins.
        computed: Tokens of the negative prompt that the cache holds.
        first: The logits [V] after it, once it is computed.
    """

    def __init__(self, prompt: Sequence[int], scale: float) -> None:
        self.prompt, self._scale = tuple(prompt), scale
        self.seq, self.computed = -1, 0
        self.first: Floats

    def guided(self, row: Floats, other: Floats) -> Floats:
        """The logits [V] to draw from: those of the request's own prompt, moved away from the others."""
        p, q = log_softmax(row), log_softmax(other)
        moved = q + self._scale * (p - q)
        # A token that either prompt rules out has no finite number to move.
        moved[~np.isfinite(p)] = -np.inf
        moved[~np.isfinite(q)] = p[~np.isfinite(q)]
        return moved.astype(np.float32)
