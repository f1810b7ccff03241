"""Compiled grammars that are kept for the next request, as long as their memory is within bounds."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from aleator.samplers.constrained import ConstraintSampler

KEPT = 64
"""Compiled grammars that are kept, those used last."""
KEPT_BYTES = 2**27
"""Of memory that those which are kept take together, as far as the process shows."""
RETURNED_BYTES = 2**24
"""When more is freed, the C library is told to return what it holds to the system: it would keep most of it."""


class KeptGrammars:
    """Compiled grammars by their text: those used last, within a number and an amount of memory.

    A grammar goes on growing after it is compiled: llguidance makes the states of its automaton when a text
    reaches them, and keeps them for the next text (whole numbers that are multiples of 300,100 begin with
    45 MiB, and have 130 after 512 digits).  It does not tell how much.  So the bound is on what the whole
    process allocates beyond what it had when no grammar was kept; what others allocate meanwhile counts until
    all have been dropped once.

    Args:
        allocated: Tells the bytes that the process has allocated.
    """

    def __init__(self, allocated: Callable[[], int] | None = None) -> None:
        self._made: OrderedDict[str, ConstraintSampler] = OrderedDict()
        self._allocated = allocated or allocated_bytes
        self._without = self._allocated()  # any grammar
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._made)

    def find(self, key: str) -> ConstraintSampler | None:
        """A grammar that is kept, or None; it is the one used last from now on."""
        with self._lock:
            known = self._made.get(key)
            if known is not None:
                self._made.move_to_end(key)
            self._evict()
            return known

    def keep(self, key: str, grammar: ConstraintSampler) -> None:
        """Keep a grammar that was compiled just now."""
        with self._lock:
            self._made[key] = grammar
            self._evict()

    def _evict(self) -> None:
        now = first = self._allocated()
        while self._made and (len(self._made) > KEPT or now - self._without > KEPT_BYTES):
            self._made.popitem(last=False)
            now = self._allocated()
        if first - now > RETURNED_BYTES and _LIBC is not None:
            _LIBC.malloc_trim(0)
        self._without = min(self._without, now) if self._made else now


class _Mallinfo2(ctypes.Structure):
    """What glibc's ``mallinfo2`` returns (its manual page)."""

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


def allocated_bytes() -> int:
    """Bytes that native code of this process has allocated and not freed.

    Where the C library does not tell: the bytes that are in memory; 0 where the system does not tell either.
    """
    if _LIBC is not None:
        told = _LIBC.mallinfo2()
        return int(told.uordblks + told.hblkhd)
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
