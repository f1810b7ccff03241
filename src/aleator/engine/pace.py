"""How an engine shares its time between prompts and those who write, learned from what steps take."""

from __future__ import annotations

from math import sqrt

AIM = 0.7
"""Of the longest pause, what a step is sized to take: what steps take varies."""
WRITERS = 1.14
"""Seconds that those who write get for each second that a piece took: somewhat more, as their steps take
longer just after a piece has emptied the processor's caches."""
ENDS = 0.15
"""What one who writes alone gets on top of that; each of n gets an n-th part of it.  A stream that ends loses
what it was owed, and of few streams that is much."""
ADVANCE = 1.75
"""Times as many after the first piece of a prompt, as none follow its last one."""
FIRST = 16
"""Tokens of the first piece, while it is not known yet what they cost."""
GROWTH = 4
"""Times as many tokens as the piece before, at most."""
LEAST = 4
"""Tokens of a piece at least: fewer take hardly less time."""
DEPTH = 2048
"""Tokens before a piece after which, it is believed at first, a token costs twice as much."""
DOWN = 0.5
"""Of what a piece took less than expected, how much is believed at once; of what it took more, all."""
INSTANT = 1e-9
"""Seconds: hardly any, but more than none."""
WEIGHT = 0.2
"""Of the newest step in the running mean of steps without prompts."""
HELD_UP = 2.0
"""Times the mean that such a step counts at most."""


class Pace:
    """Shares time between prompts and those who write.

    A step with a piece of prompts is followed by steps of writers only, until these have had as much time as
    the piece.  So prompts get half of the time, in pieces that are as large as the pause allows, and
    writers keep half of their speed.

    What a piece will take is told from those before: a token costs the more, the more tokens it looks back at.
    A step with a piece may take ``max_pause`` seconds, or three times what one without takes if that is longer.
    """

    def __init__(self, max_pause: float) -> None:
        self._aim = AIM * max_pause
        self._plain: float | None = None  # seconds of a step without prompts
        self._latest = FIRST  # tokens of a piece
        self._owed = 0.0  # seconds that those who write get before the next piece
        # Seconds of a prompt's first token, and what DEPTH tokens before one add to that.
        self._cost: tuple[float, float] | None = None

    def writers_turn(self) -> bool:
        """Whether the next step computes nothing of prompts while others write."""
        return self._plain is None or self._owed > 0

    def tokens(self, depth: int) -> int:
        """Tokens of prompts that a step may compute while others write.

        ``depth`` tokens of the prompt are computed already; of several, the most.
        """
        if self._plain is None or self._cost is None:
            return FIRST
        first, more = self._cost
        seconds = max(self._aim - self._plain, 2 * self._plain)
        # n tokens take n (each + slope n), with the depth in their middle.
        each, slope = first + more * depth / DEPTH, more / (2 * DEPTH)
        n = 2 * seconds / (each + sqrt(each * each + 4 * slope * seconds))
        self._latest = max(LEAST, int(min(n, GROWTH * self._latest)))
        return self._latest

    def observe(
        self,
        rows: int,  # Tokens of those who write
        tokens: int,  # Tokens of prompts
        depth: float,  # Tokens before each of these, their mean
        seconds: float,  # How long it took
        *,
        begun: int = 0,  # Prompts that came to their end, so that one more writes from now on
        # Those that are left; more of them than there are who write get more than half of the time
        prompts: int = 1,
    ) -> None:
        """Learn from a step."""
        plain = self._plain if rows and self._plain is not None else 0.0
        if tokens == 0:
            self._owed = max(self._owed - seconds, -plain)
            if rows:
                held_up = min(seconds, HELD_UP * plain) if plain else seconds
                self._plain = plain + (WEIGHT if plain else 1.0) * (held_up - plain)
            return
        added = max(seconds - plain, 0.0)
        self._owed = self._owed_after(added, depth < tokens, rows, begun, prompts)
        self._learn(tokens, depth / DEPTH, added / tokens)

    def _owed_after(
        self, added: float, is_first: bool, rows: int, begun: int, prompts: int
    ) -> float:
        """Seconds that those who write get after a piece that added so many."""
        writers = rows + min(begun, prompts)
        if not writers:
            return 0.0
        part = (WRITERS + ENDS / writers) * min(1.0, writers / max(prompts, 1))
        if is_first:
            part *= ADVANCE
        if not rows:  # the piece could be longer than the pause
            return min(part * added, WRITERS * self._aim)
        plain = self._plain or 0.0
        # One step at least, or what these take would not be known any more.
        return max(self._owed + part * added - plain, INSTANT)

    def _learn(self, tokens: int, depth: float, each: float) -> None:
        """Change what tokens are believed to cost, as little as explains a piece (normalised least squares).

        Of pieces below LEAST little is believed: most of what they add is chance.
        """
        if self._cost is None:
            self._cost = (max(each / (1 + depth), INSTANT),) * 2
            return
        first, more = self._cost
        missed = each - (first + more * depth)
        size = 1 + depth * depth + (LEAST / tokens) ** 2
        step = (missed if missed > 0 else DOWN * missed) / size
        self._cost = max(first + step, INSTANT), max(more + step * depth, 0.0)
