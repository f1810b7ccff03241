"""Teams of threads that native kernels share, one per size, and threads for single calls."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Generic, TypeVar

from aleator.core import host
from aleator.core.errors import ParameterError
from aleator.core.integers import exact

T = TypeVar("T")

ALONE = sys.platform == "emscripten"
"""Whether no thread can be started, as in Pyodide."""
MAX_THREADS = 1 if ALONE else 256
"""Size of the largest team."""
KEPT = 4
"""Number of sizes whose teams are kept; beyond that the least recently used ends with its last user."""


@lru_cache(maxsize=KEPT)
def _pool(n_threads: int) -> host.ThreadPool:
    return host.ThreadPool(n_threads)


def pool(n_threads: int | None = None) -> host.ThreadPool:
    """The team of 1 to :data:`MAX_THREADS` threads; None takes :func:`default_threads`."""
    threads = default_threads() if n_threads is None else exact(n_threads)
    if threads is None or not 1 <= threads <= MAX_THREADS:
        raise ParameterError(
            f"n_threads={n_threads!r:.60} is out of range: give 1 to {MAX_THREADS}"
        )
    return _pool(threads)


@cache
def default_threads() -> int:
    """The default number of threads: one per core that this process may use.

    The environment variable OMP_NUM_THREADS, read once, overrides it.  Two processors that share a core count
    as one, because matrix products would compete for the same arithmetic units and memory.
    """
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given) > 0:
        return min(int(given), MAX_THREADS)
    if not hasattr(os, "sched_getaffinity"):
        return min(os.cpu_count() or 1, MAX_THREADS)
    cores = {_core(processor) for processor in os.sched_getaffinity(0)}
    return max(1, min(len(cores), MAX_THREADS))


def _core(processor: int) -> str:
    """An identifier that only the processors of one core share."""
    path = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
    try:
        return path.read_text()
    except OSError:
        return str(processor)


class BackgroundCall(Generic[T]):
    """A call in its own thread while a ``with`` block runs, for work without Python's lock.

    The block ends when both have ended; an error of the call is then raised instead of one of the block.

    Attributes:
        made: the result of the call, once the block has ended.
    """

    made: T

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="aleator-beside")

    def _run(self) -> None:
        try:
            self.made = self._make()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> BackgroundCall[T]:
        try:
            self._thread.start()
        except RuntimeError:  # the system has no more threads
            self._run()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._thread.ident is not None:
            self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
