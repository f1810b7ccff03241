"""The teams of threads that native kernels share: one per size, kept for the life of the process."""

from __future__ import annotations

import os
from functools import cache

from aleator.core import host
from aleator.core.errors import ParameterError


@cache
def _pool(n_threads: int) -> host.ThreadPool:
    return host.ThreadPool(n_threads)


def pool(n_threads: int | None = None) -> host.ThreadPool:
    """The team of 1 to 256 threads; ``None`` is one per processor."""
    threads = os.cpu_count() or 1 if n_threads is None else n_threads
    if not 1 <= threads <= 256:
        raise ParameterError("n_threads", f"n_threads={n_threads} is out of range: give 1 to 256")
    return _pool(threads)
