"""Writes GGUF files, version 3: a file appears only when it is complete."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from aleator.core.errors import ParameterError
from aleator.core.large_pages import LARGE_PAGE, append_in_large_pages
from aleator.core.parameter import check_replaceable
from aleator.core.records import dataclass
from aleator.models.files.fields import Value
from aleator.models.files.tensor_types import TENSOR_TYPES

_BYTE, _STRING, _ARRAY = 0, 8, 9
# Python's types -> number of the type, and its struct code
_SCALARS = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}
_SIGNED = (5, "i")


@dataclass(frozen=True)
class NewTensor:
    """A tensor to write: its type's name, and its shape with rows first."""

    name: str
    type: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        kind = TENSOR_TYPES[self.type]
        return int(np.prod(self.shape, dtype=np.int64)) // kind.block * kind.size


def field(key: str, value: Value) -> bytes:
    """An entry of the metadata; numbers have 32 bits, integers a sign if they are negative or in a list.

    Bytes become a list of numbers of eight bits.
    """
    if isinstance(value, str):
        return _text(key) + struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, bool | int | float):
        number, code = _SIGNED if value < 0 and type(value) is int else _SCALARS[type(value)]
        return _text(key) + struct.pack(f"<I{code}", number, value)
    if isinstance(value, bytes):
        return _text(key) + struct.pack("<IIQ", _ARRAY, _BYTE, len(value)) + value
    kind = type(value[0]) if value else str
    number, code = (_STRING, "") if kind is str else _SIGNED if kind is int else _SCALARS[kind]
    head = _text(key) + struct.pack("<IIQ", _ARRAY, number, len(value))
    if kind is str:
        return head + b"".join(map(_text, value))  # type: ignore[arg-type]
    return head + struct.pack(f"<{len(value)}{code}", *value)


def _text(value: str) -> bytes:
    data = value.encode(errors="replace")  # in names of files
    return struct.pack("<Q", len(data)) + data


def write_gguf(
    path: Path,
    fields: Sequence[bytes],
    tensors: Sequence[NewTensor],
    pieces: Callable[[NewTensor], Iterable[NDArray[np.generic]]],
    alignment: int = 32,
) -> int:
    """Write a file; it replaces a file of that name once it is complete.

    Args:
        path: the file's path.
        fields: entries of the metadata, as :func:`field` makes them.
        tensors: the tensors, in this order.
        pieces: returns a tensor's bytes; called for one tensor after the other.
        alignment: of the tensors' data; a value other than 32 needs a field that says so.

    Returns:
        The bytes written.

    Raises:
        ParameterError: it would not fit, or ``path`` is something else than a file.
    """
    start, size = beginning(fields, tensors, alignment)
    with whole_file(path, size) as file:
        append_in_large_pages(file, start)
        for each in tensors:
            for piece in pieces(each):
                append_in_large_pages(
                    file, np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
                )
            append_in_large_pages(file, bytes(-each.nbytes % alignment))
    return size


def beginning(
    fields: Sequence[bytes], tensors: Sequence[NewTensor], alignment: int = 32
) -> tuple[bytes, int]:
    """A file's bytes before the tensors' data, and the bytes of the whole file."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(fields)), *fields]
    offset = 0
    for each in tensors:
        dims = each.shape[::-1]
        head.append(_text(each.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        head.append(struct.pack("<IQ", TENSOR_TYPES[each.type].id, offset))
        offset += each.nbytes + -each.nbytes % alignment
    start = b"".join(head)
    start += bytes(-len(start) % alignment)
    return start, len(start) + offset


def target(path: Path, read: Iterable[Path] = (), size: int = 0) -> Path:
    """Where a file of that name will be; raise early the errors that would come after the work.

    Args:
        path: the file's path.
        read: files that it must not replace.
        size: its bytes, as far as they are known.

    Raises:
        ParameterError: it is one of them, or not a file, or would not fit.
        OSError: its directory is missing or cannot be written to.
    """
    check_replaceable("out", path)
    if path.exists() and any(each.exists() and path.samefile(each) for each in read):
        raise ParameterError(
            "out", f"{path} is the file that is read: give the new one another name"
        )
    path = Path(os.path.realpath(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "no such directory: make it, or write elsewhere", str(path.parent)
        )
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path.parent))
    free = shutil.disk_usage(path.parent).free
    if size > free:
        raise ParameterError(
            "out",
            f"{path} will have {size:,} bytes, and {free:,} are free on its disk: free some, or write "
            "elsewhere",
        )
    return path


@contextmanager
def whole_file(path: Path, size: int) -> Iterator[BinaryIO]:
    """A file of ``size`` bytes that gets its name at the end of the block, unless an error ends it.

    On systems with unnamed files (Linux), nothing is left behind even if the process is killed.
    """
    path = target(path, size=size)
    beside = path.with_name(f".{path.name[:40]}.{os.urandom(4).hex()}.part")
    nameless = None
    with suppress(AttributeError, OSError):
        nameless = os.open(path.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
    try:
        opened = beside if nameless is None else nameless
        with open(opened, "xb" if nameless is None else "wb", buffering=LARGE_PAGE) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if nameless is not None:
                # Python follows the link only with a directory.
                os.link(f"/proc/self/fd/{nameless}", beside, src_dir_fd=nameless)
        os.replace(beside, path)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # of a write: the disk is full
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
    finally:
        beside.unlink(missing_ok=True)
