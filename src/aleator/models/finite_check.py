"""Looks for NaN and infinities in matrices without making the first token wait for a pass over the file."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

AT_ONCE = 2**26
"""Bytes of matrices that are looked at as they are loaded, which takes milliseconds; the others later."""
_PIECE = 2**23
"""Bytes after which the thread in the background sees whether it is still wanted."""


class Matrices(Protocol):
    """What is looked at; :class:`~aleator.models.weights.Weights` has these."""

    def stored(self, name: str) -> Any:
        """A tensor; ``data`` has its bytes."""

    def check_finite(self, name: str, first: int = 0, most: int | None = None) -> int | None:
        """Look at some bytes of a tensor from ``first`` on; returns where to go on, None at the end."""


class FiniteCheck:
    """Looks at matrices of a file once: the first ones at once, the others in a thread of its own.

    What the thread finds is raised by the next :meth:`raise_found`.  Rows of logits that are not finite wait
    for it, so a damaged matrix that shows in them is always reported as such.  Damage that no token met is
    reported some tokens later.  Experts that no token goes through are looked at only when a row is not finite:
    looking at all would read the whole file.
    """

    def __init__(self, weights: Matrices) -> None:
        self._weights = weights
        self._left: deque[tuple[str, int]] = deque()
        self._seldom: list[str] = []
        self._known: set[str] = set()
        self._bytes = 0
        self._found: Exception | None = None
        self._lock, self._owner = threading.Lock(), os.getpid()
        self._thread: threading.Thread | None = None

    def add(self, name: str, seldom: bool = False) -> None:
        """Look at a matrix now, or after :meth:`start`; a ``seldom`` used one perhaps in :meth:`wait` alone."""
        if name in self._known:
            return
        self._known.add(name)
        self._bytes += self._weights.stored(name).data.size
        if self._bytes <= AT_ONCE:
            self._weights.check_finite(name)
        elif seldom:
            self._seldom.append(name)
        else:
            self._left.append((name, 0))

    def start(self) -> None:
        """Look at what is left in the background."""
        if self._left and (self._thread is None or not self._thread.is_alive()):
            # Not a daemon, which would be stopped in native code at the end of the process.
            self._thread = threading.Thread(target=self._work, name="aleator-finite-check")
            self._thread.start()

    def wait(self) -> None:
        """Look at all that is left; then as :meth:`raise_found`."""
        if (
            self._owner != os.getpid()
        ):  # a fork's child: the thread stayed behind, perhaps with the lock
            self._lock, self._owner = threading.Lock(), os.getpid()
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join()
        self._left.extend((name, 0) for name in self._seldom)
        self._seldom.clear()
        while self._left and self._found is None:
            self._next()
        self.raise_found()

    def raise_found(self, rows: npt.NDArray[np.float32] | None = None) -> None:
        """Raise what has been found; if ``rows`` of logits are not finite, look at what is left first."""
        if self._found is not None:
            raise self._found.with_traceback(None)
        waits = bool(self._left or self._seldom)
        if rows is not None and waits and not np.isfinite(rows).all():
            self.wait()

    def _work(self) -> None:
        while self._left and self._found is None and threading.main_thread().is_alive():
            self._next()

    def _next(self) -> None:
        """Look at the next piece, which leaves the queue when it has been looked at."""
        with self._lock:
            if not self._left:
                return
            name, first = self._left[0]
            try:
                end = self._weights.check_finite(name, first, _PIECE)
            except Exception as error:
                self._found = error
                return
            if end is None:
                self._left.popleft()
            else:  # in one step: who sees the queue empty believes that all is well
                self._left[0] = name, end
