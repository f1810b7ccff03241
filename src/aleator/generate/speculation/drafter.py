"""What guesses tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class Drafter(Protocol):
    """Guesses what follows a text; a wrong guess costs time and changes nothing.

    ``generate(..., drafter=...)`` and ``Engine.submit(..., drafter=...)`` take one of yours.
    """

    def draft(self, tokens: Sequence[int], n: int) -> Iterable[int]:
        """Token ids that may follow.

        Args:
            tokens: the prompt and all that was drawn, as the model sees it.
            n: how many at most; 1 or more.
        """
        ...
