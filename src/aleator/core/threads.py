"""The teams of threads that native kernels share: one per size, the last few sizes kept."""

from __future__ import annotations

import os
from functools import cache, lru_cache
from pathlib import Path

from aleator.core import host
from aleator.core.errors import ParameterError

MAX_THREADS = 256
"""Threads of the largest team."""
KEPT = 4
"""Sizes whose teams are kept; the threads of one that has not been used for longest end with its last user."""


@lru_cache(maxsize=KEPT)
def _pool(n_threads: int) -> host.ThreadPool:
    return host.ThreadPool(n_threads)


def pool(n_threads: int | None = None) -> host.ThreadPool:
    """The team of 1 to 256 threads; None: of :func:`default_threads`."""
    threads = default_threads() if n_threads is None else n_threads
    if not 1 <= threads <= MAX_THREADS:
        raise ParameterError(f"n_threads={n_threads} is out of range: give 1 to 256")
    return _pool(threads)


@cache
def default_threads() -> int:
    """Threads where no number is given: one for each core that this process may use, at most 256.

    The variable OMP_NUM_THREADS, read once, says another number.  Two processors that share a core count as
    one: threads of matrix products wait for the same arithmetic units and the same memory.
    """
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given) > 0:
        return min(int(given), MAX_THREADS)
    if not hasattr(os, "sched_getaffinity"):
        return min(os.cpu_count() or 1, MAX_THREADS)
    cores = {_core(processor) for processor in os.sched_getaffinity(0)}
    return max(1, min(len(cores), MAX_THREADS))


def _core(processor: int) -> str:
    """What the processors of one core have in common, and no others."""
    path = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
    try:
        return path.read_text()
    except OSError:
        return str(processor)
