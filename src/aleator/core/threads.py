"""The teams of threads that native kernels share: one per size, kept for the life of the process."""

from __future__ import annotations

import os
from functools import cache

from aleator.core import host
from aleator.core.errors import ParameterError
from aleator.core.integers import integer_in


@cache
def _pool(n_threads: int) -> host.ThreadPool:
    return host.ThreadPool(n_threads)


def pool(n_threads: int | None = None) -> host.ThreadPool:
    """The team of 1 to 256 threads; ``None`` is one per processor."""
    threads = os.cpu_count() or 1 if n_threads is None else n_threads
    if not 1 <= threads <= 256:
        raise ParameterError("n_threads", f"n_threads={n_threads} is out of range: give 1 to 256")
    return _pool(threads)


THREADS_PER_PROCESSOR = 16
"""How many threads a user may ask for per processor: more only wait for each other."""


def most_threads() -> int:
    """How many threads may be asked for on this machine."""
    return THREADS_PER_PROCESSOR * (os.cpu_count() or 1)


def checked_threads(name: str, value: object) -> int:
    """Return a number of threads.

    Raises:
        ParameterError: it is not an integer in [1, :func:`most_threads`]; names the parameter.

    """
    remedy = f"{THREADS_PER_PROCESSOR} for each of the {os.cpu_count() or 1} processors at most"
    return integer_in(name, value, 1, most_threads(), remedy)
