"""Memory that native code takes from the C library: how much, and giving it back."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path


class _Mallinfo2(ctypes.Structure):
    """The result of glibc's ``mallinfo2`` (its manual page)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
            "keepcost",
        )
    )  # fmt: skip


def _glibc() -> ctypes.CDLL | None:
    """The C library, if it is glibc 2.33 or newer."""
    try:
        found = ctypes.CDLL(None)
        found.mallinfo2.restype = _Mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    return found


_LIBC = _glibc()
_ARENA_MAX = -8
"""A parameter of ``mallopt`` (its manual page)."""


def return_memory() -> None:
    """Give what native code has freed back to the system, where the C library can."""
    if _LIBC is not None:
        _LIBC.malloc_trim(0)


def share_arenas() -> None:
    """Have all threads take memory from two arenas of the C library, where it has arenas.

    Each has up to eight for each processor, and pages of what was freed stay in all of them: a server that
    loads and unloads models would grow (benchmarks/results/models_memory.2026-11-30.md).
    """
    if _LIBC is not None:
        _LIBC.mallopt(_ARENA_MAX, 2)


def allocated_bytes() -> int:
    """Bytes that native code of this process has allocated and not freed.

    If the C library does not report them: the resident bytes; 0 if the system does not report those either.
    """
    if _LIBC is not None:
        figures = _LIBC.mallinfo2()
        return int(figures.uordblks + figures.hblkhd)
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
