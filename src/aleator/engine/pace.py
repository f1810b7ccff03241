"""How much of a prompt a step may compute without holding up those who are writing."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort

from aleator.core.records import dataclass

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
FORGET = 0.995
"""With each step the measured cost of the next longer piece is believed so much less."""
HELD_UP = 1.2
"""Times the usual seconds that a step without prompts counts at most: so the mean is near the median."""
PIECE_HELD_UP = 2.0
"""The same of what a piece adds, which varies more."""
SHARE = 0.025
"""Of the steps with prompts that may take longer than the bound."""
AIM = 0.1
"""How much less time pieces get for every step that took longer, so that no more than these do."""
LOWEST = 0.5
"""Of the time that the bound leaves to pieces, what they get at least."""
BEGIN = 0.6
"""The same at first, until it is seen how often steps take longer than they were sized for."""
EXACT = 16
"""Pieces up to so many tokens are measured each for itself: kernels change there, and cost jumps."""

Curve = tuple[list[float], list[float]]
"""Tokens, and the seconds that so many add to a step: both rising, from 0 and 0."""


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
        max_pause: How many times as long as a step without prompts one with them may take.
    """

    def __init__(self, max_pause: float) -> None:
        self._max_pause = max_pause
        self._usual: float | None = None  # seconds of a step without prompts
        self._rows = 0  # of the latest such step
        self._pieces: dict[int, Piece] = {}  # by size
        self._sizes: list[int] = []  # of these, rising
        self._since = 0  # steps since one without prompts
        self._known: Curve | None = None  # of the pieces, until one changes
        self._aim = BEGIN  # of the time that the bound leaves to pieces, what they get
        self._limit: float | None = None  # seconds that the planned step may take

    def observe(self, rows: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step.

        Args:
            rows: tokens of running requests in it.
            prompt_tokens: tokens of prompts.
            seconds: how long it took.
        """
        if prompt_tokens == 0:
            expected = None if self._usual is None else self._without(rows, self._curve())
            self._usual, self._rows = _mean(expected, seconds, HELD_UP), rows
            self._since = 0
            return
        self._since += 1
        if rows == 0 and self._usual is None and prompt_tokens < FIRST:
            return  # what a step costs whatever is in it
        if self._limit is not None:
            held_up = seconds > self._limit
            self._aim = min(1.0, max(LOWEST, self._aim + AIM * (SHARE - held_up)))
            self._limit = None
        added = max(seconds - self._without(rows, self._curve()), 0.0)
        self._known = None
        size = prompt_tokens if prompt_tokens <= EXACT else 1 << prompt_tokens.bit_length()
        piece = self._pieces.get(size)
        if piece is None:
            piece = self._pieces[size] = Piece(prompt_tokens, added)
            insort(self._sizes, size)
        longer = bisect_right(self._sizes, size)
        less = piece.seconds - added
        if less > 0.5 * max(piece.seconds, self._usual or 0.0):  # steps have become faster
            piece.seconds = added
            for each in self._sizes[longer:]:
                del self._pieces[each]
            del self._sizes[longer:]
        elif piece.doubt < 1 and added > (self._max_pause - 1) * (self._usual or 0.0):
            for other in self._pieces.values():  # it was tried in vain, and so would the others be
                other.doubt = 1.0
        elif longer < len(self._sizes):
            self._pieces[self._sizes[longer]].doubt *= FORGET
        piece.tokens = _mean(piece.tokens, prompt_tokens)
        piece.seconds = _mean(piece.seconds, added, PIECE_HELD_UP)
        piece.doubt = 1.0

    def _without(self, rows: int, curve: Curve) -> float:
        """What a step without prompts takes, for another number of rows than that of the latest one."""
        more = _seconds(curve, rows) - _seconds(curve, self._rows)
        return (self._usual or 0.0) + max(more, 0.0)

    def tokens(self, rows: int, prompts: int = 1) -> int:
        """Tokens of prompts that the next step may compute while others write.

        Every so often none, to learn again what a step without prompts costs.

        Args:
            rows: Tokens of running requests in it.
            prompts: How many are being computed.  All but one of them count as if they wrote already: their
                requests have begun, and steps will take longer by them.  Otherwise the first of many
                requests that come together would keep its pace, and the others would wait for it.
        """
        self._limit = None
        if self._usual is None or self._since >= LOOKS:
            return 0
        if not self._pieces:
            return FIRST
        curve = self._curve()
        soon = self._without(rows + prompts - 1, curve)
        self._limit = self._max_pause * soon
        bound = 1 + self._aim * (self._max_pause - 1)
        allowed = bound * soon - self._without(rows, curve)
        sizes, seconds = curve
        i = bisect_right(seconds, allowed)
        if i == 0:
            return LEAST
        tokens, added = sizes[i - 1], seconds[i - 1]
        if i < len(seconds):
            part = (allowed - added) / (seconds[i] - added)
            return max(LEAST, int(tokens + part * (sizes[i] - tokens)))
        farther = min(FARTHEST, allowed / added) if added else FARTHEST
        return max(LEAST, int(tokens * farther))

    def _curve(self) -> Curve:
        """What pieces of prompts add to a step.

        Where a longer piece cost less than a shorter one, something else held that one up.
        """
        if self._known is not None:
            return self._known
        sizes, seconds, least = list[float](), list[float](), math.inf
        for size in reversed(self._sizes):
            piece = self._pieces[size]
            least = min(least, piece.seconds * piece.doubt)
            sizes.append(piece.tokens)
            seconds.append(least)
        self._known = [0.0, *reversed(sizes)], [0.0, *reversed(seconds)]
        return self._known


def _seconds(curve: Curve, tokens: float) -> float:
    """What so many tokens add, by a curve."""
    sizes, seconds = curve
    i = bisect_left(sizes, tokens)
    if i == 0:
        return 0.0
    if i < len(sizes):
        fewer, less = sizes[i - 1], seconds[i - 1]
        return less + (seconds[i] - less) * (tokens - fewer) / (sizes[i] - fewer)
    longest = sizes[-1]
    return seconds[-1] * tokens / longest if longest else 0.0


def _mean(old: float | None, new: float, most: float = math.inf) -> float:
    """A running mean; what took over ``most`` times as long was held up, and counts as that."""
    return new if old is None else old + WEIGHT * (min(new, most * old) - old)
