"""The logits that the playground keeps, within a bound."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aleator.server.errors import ApiError


class Forgotten(ApiError):
    """The logits of a step were given up for those of later ones."""

    def __init__(self, step: int) -> None:
        super().__init__(
            410,
            f"the logits of step {step} are not kept any more: write the text again, or start the server "
            "with a larger --playground-memory",
            "step",
            code="logits_forgotten",
        )


class Row:
    """The logits of one step; texts that begin alike share it.

    Attributes:
        logits: float32 [V]; None once they were forgotten.
    """

    __slots__ = ("logits",)

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self.logits: NDArray[np.float32] | None = logits


class LogitsMemory:
    """Keeps rows of logits, and forgets the oldest where they would take more than a bound.

    Args:
        limit: bytes, 0 or more.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._used = 0
        self._rows: deque[Row] = deque()
        self._lock = threading.Lock()

    def keep(self, logits: Any) -> Row:
        """Copy a row.

        Args:
            logits: float32 [V].
        """
        kept = np.array(logits, np.float32)
        row = Row(kept)
        with self._lock:
            self._rows.append(row)
            self._used += kept.nbytes
            while self._used > self.limit:
                oldest = self._rows.popleft()
                if oldest.logits is not None:
                    self._used -= oldest.logits.nbytes
                    oldest.logits = None
        return row

    def release(self, rows: list[Row]) -> None:
        """Forget rows of a text that is given up."""
        gone = set(map(id, rows))
        with self._lock:
            for row in rows:
                if row.logits is not None:
                    self._used -= row.logits.nbytes
                    row.logits = None
            self._rows = deque(row for row in self._rows if id(row) not in gone)

    @property
    def used(self) -> int:
        """Bytes that are held now."""
        return self._used

    @property
    def rows(self) -> int:
        """Rows that are held now."""
        return len(self._rows)
