"""How much of a prompt a step may compute without holding up those who are writing."""

from __future__ import annotations

LEAST = 8
"""Tokens of prompts in a step at least, so that a prompt comes to its end."""
FIRST = 32
"""While it is not known yet what a token costs."""
LOOKS = 32
"""Steps with prompts after which one without is made."""
WEIGHT = 0.2
"""Of the newest step in the running means."""


class Pace:
    """Learns what steps cost, and sizes the pieces of prompts by it.

    Args:
        max_pause: how many times as long as a step without prompts one with them may take.
    """

    def __init__(self, max_pause: float) -> None:
        self._max_pause = max_pause
        self._usual: float | None = None  # seconds of a step without prompts
        self._per_token: float | None = None  # seconds that a token of a prompt adds
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
        else:
            self._since += 1
            if rows == 0 and prompt_tokens < LEAST:
                return  # what a step costs whatever is in it
            base = self._usual or 0.0
            cost = max(seconds - base, 0.0) if rows else seconds
            self._per_token = _mean(self._per_token, cost / prompt_tokens)

    def tokens(self) -> int:
        """Tokens of prompts that the next step may compute while others write.

        Every so often none, to learn again what a step without prompts costs.
        """
        if self._usual is None or self._since >= LOOKS:
            return 0
        if not self._per_token:
            return FIRST
        return max(LEAST, int((self._max_pause - 1) * self._usual / self._per_token))


def _mean(old: float | None, new: float) -> float:
    """A running mean; what took much longer than ever was held up by something else, and counts less."""
    return new if old is None else old + WEIGHT * (min(new, 2 * old) - old)
