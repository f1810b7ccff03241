"""Looks for NaN and infinities in matrices without making the first token wait for a pass over the file."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

CHUNK_BYTES = 2**26
"""Bytes of matrices that are checked during loading, which takes milliseconds; the rest follows later."""
_PIECE = 2**23
"""Bytes after which the background thread checks whether it should stop."""


class Matrices(Protocol):
    """The matrices to check; :class:`~aleator.models.weights.Weights` has these methods."""

    def stored(self, name: str) -> Any:
        """A tensor; ``data`` has its bytes."""

    def check_finite(self, name: str, first: int = 0, most: int | None = None) -> int | None:
        """Check some bytes of a tensor from ``first`` on; return where to go on, None at the end."""


class FiniteCheck:
    """Checks each matrix of a file once: the first ones at once, the others in a background thread.

    The next :meth:`raise_found` raises what the thread finds.  Rows of logits that are not finite wait for the
    thread, so that a damaged matrix is always reported as their cause.  Damage that no token met is reported
    some tokens later.  Experts that no token uses are checked only when a row is not finite, as checking all
    of them would read the whole file.
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
        """Check a matrix now or after :meth:`start`; a ``seldom`` used one perhaps only in :meth:`wait`."""
        if name in self._known:
            return
        self._known.add(name)
        self._bytes += self._weights.stored(name).data.size
        if self._bytes <= CHUNK_BYTES:
            self._weights.check_finite(name)
        elif seldom:
            self._seldom.append(name)
        else:
            self._left.append((name, 0))

    def start(self) -> None:
        """Check the rest in the background."""
        if self._left and (self._thread is None or not self._thread.is_alive()):
            # Not a daemon thread, which would be stopped inside native code at the end of the process.
            self._thread = threading.Thread(target=self._work, name="aleator-finite-check")
            self._thread.start()

    def wait(self) -> None:
        """Check the rest, then do as :meth:`raise_found`."""
        # In a fork's child the thread is gone, perhaps with the lock held
        if self._owner != os.getpid():
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
        """Raise what has been found; if ``rows`` of logits are not finite, check the rest first."""
        if self._found is not None:
            raise self._found.with_traceback(None)
        waits = bool(self._left or self._seldom)
        if rows is not None and waits and not np.isfinite(rows).all():
            self.wait()

    def _work(self) -> None:
        while self._left and self._found is None and threading.main_thread().is_alive():
            self._next()

    def _next(self) -> None:
        """Check the next piece; it leaves the queue afterwards."""
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
            else:  # in one step: an empty queue means that all is well
                self._left[0] = name, end


class Unchecked(FiniteCheck):
    """Looks for nothing, in matrices whose numbers are not there or not used."""

    def add(self, name: str, seldom: bool = False) -> None:
        """Do nothing; so nothing is left for :meth:`start`."""
