r"""Aleator's own state files: a JSON header and named sections, each with its checksum.

Layout, little endian: magic ``ALEATOR\0``; u32 version; u32 length of the header; the header, JSON in
UTF-8; 8 bytes checksum of all that; then the sections in the header's order.  Each section begins, and the
file ends, at a multiple of 64; bytes between are zero.  The header's ``sections`` list name, offset, size and
checksum (hexadecimal) of each.  The checksum is XXH64, little endian: it finds damage ten times as fast as a
cryptographic digest.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from aleator._native import xxh64_blocks
from aleator.core.errors import FileFormatError
from aleator.core.json_text import loads
from aleator.core.parameter import check_replaceable
from aleator.core.records import dataclass

MAGIC = b"ALEATOR\0"
VERSION = 2
ALIGNMENT = 64
MAX_HEADER = 1 << 24
_CHECKSUM = 8
_WHOLE = 2**62  # bytes hashed at once: more than any section has

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class StateFile:
    """An open state file whose checksums have been verified; ``name`` is its path, for messages.

    The sections of a file are mapped, not read.
    """

    name: str
    header: dict[str, Any]
    sections: dict[str, memoryview]


def pack_state(header: Mapping[str, Any], sections: Mapping[str, Buffer]) -> list[Buffer]:
    """Return the parts of a state file, in order; ``header`` must be ready for JSON."""
    views = {name: memoryview(data).cast("B") for name, data in sections.items()}
    table: list[dict[str, Any]] = [
        {"name": name, "offset": 0, "size": view.nbytes, "checksum": _checksum(view).hex()}
        for name, view in views.items()
    ]
    # Offsets depend on the header's length, which depends on the offsets' digits: leave room for them.
    start = _aligned(len(_head(header, table)) + 20 * len(table))
    offset = start
    for entry in table:
        entry["offset"] = offset
        offset = _aligned(offset + entry["size"])
    head = _head(header, table)
    pieces: list[Buffer] = [head, bytes(start - len(head))]
    for view in views.values():
        pieces += [view, bytes(-view.nbytes % ALIGNMENT)]
    return pieces


def write_state_file(
    path: str | os.PathLike[str], header: Mapping[str, Any], sections: Mapping[str, Buffer]
) -> None:
    """Write a state file; an existing file is replaced only when all is written.

    ParameterError if ``path`` is something else than a file, such as a device, which would be lost.
    """
    path = Path(path)
    check_replaceable("path", path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    pieces = pack_state(header, sections)
    try:
        with partial.open("xb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_state_file(source: str | os.PathLike[str] | Buffer, *, mapped: bool = True) -> StateFile:
    """Open a state file, or the bytes of one, and verify all of it.

    ``mapped=False`` reads it into memory, so that later reads do not wait for the disk.

    FileFormatError, with field and offset, for another kind of file, a later version, or damage.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return _parse("state", memoryview(source).cast("B"))
    name = os.fsdecode(source)
    with open(name, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise FileFormatError(name, "the file is empty")
        if not mapped:
            return _parse(name, memoryview(file.read()))
        return _parse(name, memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def _parse(name: str, data: memoryview) -> StateFile:
    def wrong(message: str, field: str, offset: int) -> FileFormatError:
        return FileFormatError(name, message, field=field, offset=offset)

    if bytes(data[:8]) != MAGIC:
        raise wrong("not a state file of Aleator", "magic", 0)
    if len(data) < 16:
        raise wrong("the file is cut short", "version", 8)
    version = int.from_bytes(data[8:12], "little")
    if version != VERSION:
        raise wrong(f"version {version} is not supported, only {VERSION}", "version", 8)
    size = int.from_bytes(data[12:16], "little")
    if size > MAX_HEADER or 16 + size + _CHECKSUM > len(data):
        raise wrong(f"a header of {size} bytes does not fit into the file", "header", 12)
    end = 16 + size
    if _checksum(data[:end]) != data[end : end + _CHECKSUM]:
        raise wrong("the header is damaged", "header", 16)
    try:
        header = loads(bytes(data[16:end]))
        table = [
            (str(e["name"]), int(e["offset"]), int(e["size"]), str(e["checksum"]))
            for e in header.pop("sections")
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise wrong("the header is not what it should be", "header", 16) from None
    sections: dict[str, memoryview] = {}
    position = end + _CHECKSUM
    for section, offset, length, known in table:
        if section in sections or offset % ALIGNMENT or offset < position or length < 0:
            raise wrong("the sections overlap or are out of order", section, offset)
        if offset + length > len(data):
            missing = offset + length - len(data)
            raise wrong(f"the file is cut short: {missing} bytes are missing", section, offset)
        if bytes(data[position:offset]).strip(b"\0"):
            raise wrong("the padding before the section is not zero", section, position)
        sections[section] = data[offset : offset + length]
        if _checksum(sections[section]).hex() != known:
            raise wrong("the section is damaged", section, offset)
        position = offset + length
    end = _aligned(position)
    if len(data) < end:
        raise wrong(
            f"the file is cut short: {end - len(data)} bytes are missing", "sections", position
        )
    if len(data) > end:
        raise wrong("something follows the last section", "sections", end)
    if bytes(data[position:end]).strip(b"\0"):
        raise wrong("the padding after the last section is not zero", "sections", position)
    return StateFile(name, header, sections)


def _head(header: Mapping[str, Any], table: list[dict[str, Any]]) -> bytes:
    text = json.dumps(
        {**header, "sections": table}, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    ).encode()
    head = MAGIC + VERSION.to_bytes(4, "little") + len(text).to_bytes(4, "little") + text
    return head + _checksum(head)


def _checksum(data: Buffer) -> bytes:
    return xxh64_blocks(np.asarray(memoryview(data)), _WHOLE).astype("<u8").tobytes()


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
