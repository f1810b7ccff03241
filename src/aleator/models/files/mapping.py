"""Maps files into memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import stat
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aleator.core.errors import FileFormatError, ModelNotFound, UnsupportedModel
from aleator.core.large_pages import ask_for_large_pages


def require_little_endian(path: str | os.PathLike[str]) -> None:
    """Refuse a file of weights on a big-endian machine."""
    if sys.byteorder != "little":
        raise UnsupportedModel(
            f"{path}: models need a little-endian processor, and {platform.machine()} is big-endian; "
            "samplers, grammars and caches work here"
        )


def lock(data: NDArray[Any]) -> str:
    """Lock an array without gaps in memory; return why the system does not, or ""."""
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
        ask_for_large_pages(mapped)
    except OSError as error:
        raise FileFormatError(path, f"cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    return np.frombuffer(mapped, np.uint8)
