"""Divides an engine's time between prefill and decoding, learned from measured step times."""

from __future__ import annotations

from math import sqrt

AIM = 0.7
"""Fraction of the longest pause that a step is sized to take, since step times vary."""
DECODE_SHARE = 1.14
"""Seconds of decoding for each second that a chunk took.  Above 1, as the steps just after a chunk take longer:
it has emptied the processor's caches."""
DECODE_EXTRA = 0.15
"""Added to that for a single decoding request; each of n requests gets 1/n of it.  A stream that ends loses
the time it was owed, which matters most with few streams."""
ADVANCE = 1.75
"""Factor of the time owed after the first chunk of a prompt, as none is owed after its last one."""
FIRST = 16
"""Tokens of the first chunk, whose cost is not known yet."""
GROWTH = 4
"""Largest factor from one chunk to the next."""
LEAST = 4
"""Fewest tokens of a chunk: fewer take hardly less time."""
DEPTH = 2048
"""Number of preceding tokens that is assumed at first to double the cost of a token."""
DOWN = 0.5
"""Fraction learned at once when a chunk took less time than expected; when it took more, all is learned."""
INSTANT = 1e-9
"""Smallest time above zero, in seconds."""
WEIGHT = 0.2
"""Weight of the newest step in the running mean of steps without prefill."""
HELD_UP = 2.0
"""Largest multiple of the mean as which such a step counts."""


class Pace:
    """Divides time between prefill and decoding.

    After a step with a chunk, only decode steps run until they have had as much time as the chunk.  So prefill
    gets half of the time, in chunks as large as the pause allows, and decoding keeps half of its speed.

    The time of a chunk is predicted from earlier ones: a token costs more, the more tokens precede it.
    A step with a chunk may take ``max_pause`` seconds, or three times a step without one if that is longer:
    where such a step takes more than a quarter of ``max_pause``, as with a large model.
    """

    def __init__(self, max_pause: float) -> None:
        self._aim = AIM * max_pause
        self._plain: float | None = None  # seconds of a step without prefill
        self._latest = FIRST  # tokens of a chunk
        self._owed = 0.0  # seconds of decoding before the next chunk
        # Seconds of a prompt's first token, and what DEPTH preceding tokens add to that.
        self._cost: tuple[float, float] | None = None

    def decode_only(self) -> bool:
        """Whether the next step computes no prompt tokens while others decode."""
        return self._plain is None or self._owed > 0

    def tokens(self, depth: int) -> int:
        """Number of prompt tokens that a step may compute while others decode.

        ``depth`` is the number of prompt tokens already computed, the largest among several prompts.
        """
        if self._plain is None or self._cost is None:
            return FIRST
        first, more = self._cost
        seconds = max(self._aim - self._plain, 2 * self._plain)
        # n tokens take n * (each + slope * n) seconds: the mean depth is that of the middle token.
        each, slope = first + more * depth / DEPTH, more / (2 * DEPTH)
        n = 2 * seconds / (each + sqrt(each * each + 4 * slope * seconds))
        self._latest = max(LEAST, int(min(n, GROWTH * self._latest)))
        return self._latest

    def observe(
        self,
        rows: int,  # Tokens decoded
        tokens: int,  # Prompt tokens computed
        depth: float,  # Mean number of tokens before each of these
        seconds: float,  # Duration of the step
        *,
        begun: int = 0,  # Prompts that were completed, each of which decodes from now on
        # Prompts that are left; if there are more of them than decoding requests, they get more than half of
        # the time
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
        """Seconds of decoding owed after a chunk that added ``added`` seconds."""
        decoding = rows + min(begun, prompts)
        if not decoding:
            return 0.0
        part = (DECODE_SHARE + DECODE_EXTRA / decoding) * min(1.0, decoding / max(prompts, 1))
        if is_first:
            part *= ADVANCE
        if not rows:  # no decoding, so the chunk could exceed the pause
            return min(part * added, DECODE_SHARE * self._aim)
        plain = self._plain or 0.0
        # At least one step: otherwise the time of plain steps would go stale.
        return max(self._owed + part * added - plain, INSTANT)

    def _learn(self, tokens: int, depth: float, each: float) -> None:
        """Adjust the assumed token costs by the least that explains a chunk (normalised least squares).

        Chunks below LEAST tokens change little: most of their time is noise.
        """
        if self._cost is None:
            self._cost = (max(each / (1 + depth), INSTANT),) * 2
            return
        first, more = self._cost
        missed = each - (first + more * depth)
        size = 1 + depth * depth + (LEAST / tokens) ** 2
        step = (missed if missed > 0 else DOWN * missed) / size
        self._cost = max(first + step, INSTANT), max(more + step * depth, 0.0)
