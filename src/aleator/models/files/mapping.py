"""Maps files into memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import stat
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aleator._native as _native
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


class Mapped(mmap.mmap):
    """A file in memory, and whether it is still as it was when it was mapped.

    Attributes:
        path: the file.
    """

    path = ""
    _status: os.stat_result
    _guard: _native.PageGuard | None = None

    def watch(self, path: str, status: os.stat_result) -> None:
        """Remember the file, and its state when it was opened."""
        self.path, self._status = path, status

    def guard(self) -> None:
        """Have zeros take the place of pages that can no longer be read, which else end the process.

        Who computes from them asks :meth:`changed` afterwards.
        """
        if self._guard is None:
            self._guard = _native.PageGuard(np.frombuffer(self, np.uint8))

    def changed(self) -> bool:
        """Whether the file has been written to since, or pages of it could not be read.

        A file that was deleted, or that another took the place of, stays what it was for who has mapped it.
        """
        if self._guard is not None and self._guard.lost:
            return True
        was = self._status
        try:
            now = os.stat(self.path)
        except OSError:
            return False
        same = now.st_mtime_ns == was.st_mtime_ns and now.st_size == was.st_size
        return not same and (now.st_dev, now.st_ino) == (was.st_dev, was.st_ino)


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
        mapped = Mapped(descriptor, 0, access=mmap.ACCESS_READ)
        mapped.watch(os.path.abspath(path), status)
        ask_for_large_pages(mapped)
    except OSError as error:
        raise FileFormatError(path, f"cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    return np.frombuffer(mapped, np.uint8)


class MappedFiles:
    """The files that some arrays lie in.

    Args:
        arrays: views of files that were mapped, and others.
    """

    def __init__(self, arrays: Iterable[NDArray[Any]]) -> None:
        found = [_file_of(each) for each in arrays]
        self._files = list({id(each): each for each in found if each is not None}.values())

    def guard(self) -> None:
        """See :meth:`Mapped.guard`; who computes calls :meth:`check` afterwards."""
        for each in self._files:
            each.guard()

    def changed(self) -> bool:
        """Whether one has been written to since it was mapped, or could not be read."""
        return any(each.changed() for each in self._files)

    def check(self) -> None:
        """Raise FileFormatError if one has been written to, or could not be read."""
        for each in self._files:
            if each.changed():
                raise FileFormatError(
                    each.path,
                    "it was written to, or can no longer be read, since the model was loaded: load it again",
                )


def _file_of(array: NDArray[Any]) -> Mapped | None:
    """The file that an array lies in; None: it is in memory of its own."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    owner = getattr(base, "obj", None)
    return owner if isinstance(owner, Mapped) else None
