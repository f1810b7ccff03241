"""Maps files into memory, in large pages where the system has them."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import stat
import sys
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from aleator.core.errors import FileFormatError, ModelNotFound, UnsupportedModel


def require_little_endian(path: str | os.PathLike[str]) -> None:
    """Refuse a file of weights on a big-endian machine."""
    if sys.byteorder != "little":
        raise UnsupportedModel(
            f"{path}: models need a little-endian processor, and {platform.machine()} is big-endian; "
            "samplers, grammars and caches work here"
        )


LARGE_PAGE = 2 << 20


def lock(data: NDArray[np.uint8]) -> str:
    """Lock bytes of :func:`map_file` in memory; return why the system does not, or ""."""
    try:
        mlock = ctypes.CDLL(None, use_errno=True).mlock
    except (AttributeError, OSError, TypeError):
        return "this system has no mlock"
    if mlock(ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes)) == 0:
        return ""
    return f"{os.strerror(ctypes.get_errno())}: raise the limit, ulimit -l"


def map_file(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """The bytes of a regular file, uint8 ``[size]``, read-only, each page read when it is first used.

    Pages have 2 MiB if the system has such pages for files: with 4 KiB the processor spends a fifth to a third
    of the time of reading weights on looking up pages.  Linux (on ext4 and XFS) uses large pages only for data
    that it reads from disk after the request, and for what :func:`append_in_large_pages` wrote; other data in
    its page cache stay in small pages.
    """
    try:
        # O_NONBLOCK: opening a pipe must not wait for its other end.
        descriptor = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
    except FileNotFoundError:
        raise ModelNotFound(path) from None
    except (OSError, ValueError) as error:
        raise FileFormatError(path, f"cannot be read: {error}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileFormatError(path, "is not a regular file")
        if status.st_size == 0:
            raise FileFormatError(path, "the file is empty", offset=0)
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        _ask_for_large_pages(mapped)
    except OSError as error:
        raise FileFormatError(path, f"cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    return np.frombuffer(mapped, np.uint8)


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
    _ask_for_large_pages(mapped)
    made = np.frombuffer(mapped, np.uint8)
    return made[-made.ctypes.data % LARGE_PAGE :][:size]


def _ask_for_large_pages(mapped: mmap.mmap) -> None:
    """Ask for large pages; Linux 6.18 on ext4 then uses them for data that it reads from disk.

    Bytes just written, as by ``cp``, stay in small pages until they are read anew.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel without large pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
