"""How much of a prompt a step may compute without holding up those who are writing."""

from __future__ import annotations

from dataclasses import dataclass

LEAST = 2
"""Tokens of prompts in a step at least, so that a prompt comes to its end."""
FIRST = 16
"""While it is not known yet what tokens cost."""
FARTHEST = 4
"""Times as many tokens as were ever measured, at most."""
LOOKS = 32
"""Steps with prompts after which one without is made."""
WEIGHT = 0.2
"""Of the newest step in the running means."""
FORGET = 0.98
"""With each step the measured cost of the next longer piece is believed so much less."""
EXACT = 16
"""Pieces up to so many tokens are measured each for itself: kernels change there, and cost jumps."""


@dataclass
class Piece:
    """What pieces of prompts of about one size were seen to cost.

    Attributes:
        tokens: Their mean size.
        seconds: What they add to a step.
        doubt: So many times the seconds are believed; less with every step that computes less, so
            that longer pieces are tried again.
    """

    tokens: float
    seconds: float
    doubt: float = 1.0


class Pace:
    """Learns what steps cost, and sizes the pieces of prompts by it.

    Args:
        max_pause: how many times as long as a step without prompts one with them may take.
    """

    def __init__(self, max_pause: float) -> None:
        self._max_pause = max_pause
        self._usual: float | None = None  # seconds of a step without prompts
        self._pieces: dict[int, Piece] = {}  # by size
        self._since = 0  # steps since one without prompts

    def observe(self, rows: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step.

        Args:
            rows: tokens of running requests in it.
            prompt_tokens: tokens of prompts.
            seconds: how long it took.
        """
        if prompt_tokens == 0:
            self._usual = _mean(self._usual, seconds)
            self._since = 0
            return
        self._since += 1
        if rows == 0 and self._usual is None and prompt_tokens < FIRST:
            return  # what a step costs whatever is in it
        added = max(seconds - (self._usual or 0.0), 0.0)
        size = prompt_tokens if prompt_tokens <= EXACT else 1 << prompt_tokens.bit_length()
        larger = sorted(each for each in self._pieces if each > size)
        piece = self._pieces.setdefault(size, Piece(prompt_tokens, added))
        if added < 0.5 * piece.seconds:  # steps have become faster
            for each in larger:
                del self._pieces[each]
        elif larger:
            self._pieces[larger[0]].doubt *= FORGET
        piece.tokens = _mean(piece.tokens, prompt_tokens)
        piece.seconds = _mean(piece.seconds, added)
        piece.doubt = 1.0

    def tokens(self) -> int:
        """Tokens of prompts that the next step may compute while others write.

        Every so often none, to learn again what a step without prompts costs.
        """
        if self._usual is None or self._since >= LOOKS:
            return 0
        if not self._pieces:
            return FIRST
        allowed = (self._max_pause - 1) * self._usual
        tokens = added = 0.0
        for _, piece in sorted(self._pieces.items()):
            more = piece.seconds * piece.doubt - added
            if added + more > allowed:  # between this piece and the one before
                return max(LEAST, int(tokens + (allowed - added) / more * (piece.tokens - tokens)))
            tokens, added = piece.tokens, added + more
        farther = min(FARTHEST, allowed / added) if added else FARTHEST
        return max(LEAST, int(tokens * farther))


def _mean(old: float | None, new: float) -> float:
    """A running mean; what took much longer than ever was held up by something else, and counts less."""
    return new if old is None else old + WEIGHT * (min(new, 2 * old) - old)
