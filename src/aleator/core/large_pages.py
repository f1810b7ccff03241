"""Pages of 2 MiB, which a processor looks up faster than those of 4 KiB, for memory and files."""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

LARGE_PAGE = 2 << 20


def append_in_large_pages(out: BinaryIO, block: bytes | memoryview) -> None:
    """Write bytes in pieces of a large page, so that the system keeps them in such pages.

    Args:
        out: a file whose buffer holds :data:`LARGE_PAGE` bytes.
        block: what is written next.
    """
    while len(block) >= (left := LARGE_PAGE - out.tell() % LARGE_PAGE):
        out.write(block[:left])
        out.flush()
        block = block[left:]
    out.write(block)


def zeros_in_large_pages(size: int) -> NDArray[np.uint8]:
    """Zeros, uint8 ``[size]``, in pages of 2 MiB if the system has such pages for programs' memory."""
    if sys.platform != "linux" or size < LARGE_PAGE:
        return np.zeros(size, np.uint8)
    room = (size // LARGE_PAGE + 2) * LARGE_PAGE  # from a page's start on, and of whole pages
    mapped = mmap.mmap(-1, room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    ask_for_large_pages(mapped)
    made = np.frombuffer(mapped, np.uint8)
    return made[-made.ctypes.data % LARGE_PAGE :][:size]


def ask_for_large_pages(mapped: mmap.mmap) -> None:
    """Ask for large pages; Linux 6.18 on ext4 then uses them for data that it reads from disk.

    Bytes just written, as by ``cp``, stay in small pages until they are read anew.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel without large pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
