"""Reads GGUF files, versions 2 and 3 (github.com/ggml-org/ggml/blob/master/docs/gguf.md).

The file is memory-mapped, and hostile until checked: every count and length is compared with the
bytes that are left before anything is allocated or read.  Opening walks over the metadata and the
list of tensors; values are decoded on access, tensor data never.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aleator._native as _native
from aleator.core.errors import FileFormatError
from aleator.core.records import dataclass
from aleator.models.files.fields import Fields
from aleator.models.files.mapping import map_file, require_little_endian
from aleator.models.files.tensor_types import BY_ID, StoredTensor, unsupported_type

_STRING, _ARRAY, _BOOL = 8, 9, 7
# Value types of fixed size: number -> struct code.
_SCALARS = dict(enumerate("BbHhIifB")) | {10: "Q", 11: "q", 12: "d"}
_MIN_ENTRY = 8 + 1 + 4 + 1  # key length, key, value type, value
_MIN_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, dimensions, one of them, type, offset
_FOREIGN = {
    b"PK\x03\x04": "a zip archive, perhaps a PyTorch checkpoint, which could run code when loaded",
    b"vers": "a Git LFS pointer, not the file itself: fetch it with `git lfs pull`",
    b"lmgg": "a GGML file from before GGUF",
    b"tjgg": "a GGJT file from before GGUF",
}


@dataclass(frozen=True)
class TensorInfo:
    """An entry of the file's list of tensors."""

    name: str  # unique in the file
    type_id: int  # number of its ggml type
    shape: tuple[int, ...]  # in PyTorch's order, the reverse of the file's
    offset: int  # of the tensor's data, from the start of the file


@dataclass(frozen=True)
class _Entry:
    """Where a metadata value lies: ``count`` elements of type ``kind`` at ``offset``, up to ``end``."""

    kind: int
    count: int
    offset: int
    is_array: bool
    end: int


class _Cursor:
    """Reads forward through the file, never past its end."""

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self.path, self.data, self.offset = path, data, 0
        self.view = data.data

    def error(self, field: str, message: str, offset: int | None = None) -> FileFormatError:
        return FileFormatError(
            self.path, message, field=field, offset=self.offset if offset is None else offset
        )

    @property
    def left(self) -> int:
        return len(self.data) - self.offset

    def take(self, size: int, field: str) -> int:
        """Move over ``size`` bytes; return the offset where they start."""
        if size > self.left:
            raise self.error(
                field, f"the file is cut short or damaged: {size} bytes needed, {self.left} left"
            )
        start = self.offset
        self.offset += size
        return start

    def number(self, code: str, field: str) -> Any:
        return self.numbers(code, field)[0]

    def numbers(self, codes: str, field: str) -> tuple[Any, ...]:
        codes = "<" + codes
        return struct.unpack_from(codes, self.view, self.take(struct.calcsize(codes), field))

    def name(self, field: str) -> str:
        length = self.number("Q", field)
        start = self.take(length, field)
        try:
            text = bytes(self.view[start : start + length]).decode()
        except UnicodeDecodeError as error:
            raise self.error(field, f"is not UTF-8: {error.reason}", start) from None
        if not text:
            raise self.error(field, "is empty", start)
        return text


class Metadata(Mapping[str, Any]):
    """Key -> int, float, bool, str, or a list of one of them, decoded at each access."""

    def __init__(self, cursor: _Cursor, entries: dict[str, _Entry]) -> None:
        self._cursor, self._entries = cursor, entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __getitem__(self, key: str) -> Any:
        entry = self._entries[key]
        values = self._decode(key, entry)
        return values if entry.is_array else values[0]

    def stored(self, key: str) -> bytes:
        """The bytes of the entry in the file, including its key."""
        entry, name = self._entries[key], key.encode()
        start = entry.offset - 4 - 12 * entry.is_array - len(name) - 8
        return bytes(self._cursor.view[start : entry.end])

    def array(self, key: str) -> _Entry | None:
        """Where the array ``key`` lies; None if the file has none."""
        entry = self._entries.get(key)
        return entry if entry is not None and entry.is_array else None

    def strings(self, key: str) -> _native.StringArray | None:
        """The strings of the array ``key``, in place; None if it is not an array of strings."""
        entry = self.array(key)
        if entry is None or entry.kind != _STRING:
            return None
        stored = _native.StringArray(self._cursor.data, entry.offset, entry.count)
        if len(stored) < entry.count:
            raise self._not_utf8(key, len(stored), stored.broken)
        return stored

    def numbers(self, key: str) -> NDArray[Any] | None:
        """The numbers of the array ``key``, in place; None if it is not an array of numbers."""
        entry = self.array(key)
        if entry is None or entry.kind in (_STRING, _BOOL):
            return None
        return self._numbers(entry)

    def _not_utf8(self, key: str, index: int, offset: int) -> FileFormatError:
        return self._cursor.error(key, f"string {index} is not UTF-8", offset)

    def _numbers(self, entry: _Entry) -> NDArray[Any]:
        dtype = np.dtype(_SCALARS[entry.kind]).newbyteorder("<")
        end = entry.offset + entry.count * dtype.itemsize
        return self._cursor.data[entry.offset : end].view(dtype)

    def _decode(self, key: str, entry: _Entry) -> list[Any]:
        cursor = self._cursor
        if entry.kind == _STRING:
            strings, offset = _native.gguf_read_strings(cursor.data, entry.offset, entry.count)
            if len(strings) < entry.count:
                raise self._not_utf8(key, len(strings), offset)
            return list(strings)
        values = self._numbers(entry)
        if entry.kind == _BOOL:
            if (values > 1).any():
                raise cursor.error(key, "a boolean is neither 0 nor 1", entry.offset)
            values = values.astype(bool)
        return list(values.tolist())


class GGUFFile:
    """An open GGUF file, which must not change while it is open.

    Attributes:
        path: the file.
        data: its bytes, uint8 ``[size]``, mapped.
        version: 2 or 3.
        metadata: keys to Python values, decoded on access.
        fields: the same mapping with checks of presence, type and range; ``require`` and ``get`` are its own.
        alignment: alignment of tensor data, in bytes.
        tensors: entries of tensors by name; a split model has those of all files.
        parts: the files of the model in order, this one first; see :func:`open_parts`.
    """

    def __init__(self, path: str | os.PathLike[str], beginning: bytes = b"") -> None:
        """Open a file.

        Args:
            path: the file.
            beginning: the bytes before the tensors' data of a file that is not written yet, to read instead.

        Raises:
            ModelNotFound: it is not there.
            FileFormatError: it is not a sound GGUF file; names field and offset.
            UnsupportedModel: this processor is big-endian.
        """
        require_little_endian(path)
        self.path = Path(path)
        self.data = np.frombuffer(beginning, np.uint8) if beginning else map_file(path)
        cursor = _Cursor(self.path, self.data)
        self.version = _read_version(cursor)
        n_tensors = _read_count(cursor, "tensor_count", _MIN_TENSOR)
        n_entries = _read_count(cursor, "metadata_kv_count", _MIN_ENTRY)
        entries: dict[str, _Entry] = {}
        for index in range(n_entries):
            key = cursor.name(f"metadata key {index}")
            if key in entries:
                raise cursor.error(key, "the key occurs twice")
            entries[key] = _walk_value(cursor, key)
        self.metadata = Metadata(cursor, entries)
        self.fields = Fields(self.path, self.metadata)
        self.require, self.get = self.fields.require, self.fields.get
        self.alignment = self.fields.integer("general.alignment", 1, 1 << 30, default=32)
        if self.alignment & (self.alignment - 1):
            raise self.fields.error(
                "general.alignment", f"the alignment {self.alignment} is not a power of two"
            )
        size = None if beginning else len(self.data)
        self.tensors = _read_tensors(cursor, n_tensors, self.alignment, size)
        self.parts: list[GGUFFile] = [self]
        self._elsewhere: dict[str, GGUFFile] = {}

    def take(self, part: GGUFFile) -> None:
        """Add the tensors of another file of the same model; no name may be in both."""
        for name, info in part.tensors.items():
            if name in self.tensors:
                where = self._elsewhere.get(name, self).path.name
                raise FileFormatError(
                    part.path, f"the tensor {name!r} is in {where} as well", field=name
                )
            self.tensors[name] = info
            self._elsewhere[name] = part
        self.parts.append(part)

    def array_length(self, key: str) -> int | None:
        """Length of the array ``key`` without decoding it; None if the file has none."""
        entry = self.metadata.array(key)
        return None if entry is None else entry.count

    def stored(self, name: str) -> StoredTensor:
        """The tensor ``name`` as the file stores it."""
        if name not in self.tensors:
            raise FileFormatError(self.path, f"the tensor {name!r} is missing", field=name)
        if name in self._elsewhere:
            return self._elsewhere[name].stored(name)
        info, kind = self.tensors[name], self.type_of(name)
        return StoredTensor(
            kind, info.shape, self.data[info.offset : info.offset + _tensor_bytes(info)]
        )

    def type_of(self, name: str) -> str:
        """The type of the tensor ``name``; UnsupportedModel if it is not supported."""
        info = self.tensors[name]
        if info.type_id not in BY_ID:
            raise unsupported_type(self._elsewhere.get(name, self).path, name, info.type_id)
        return BY_ID[info.type_id].name

    def files(self) -> list[Path]:
        """All files that are read."""
        return [part.path for part in self.parts]


def _read_version(cursor: _Cursor) -> int:
    magic = bytes(cursor.view[:4])
    if magic != b"GGUF":
        what = _FOREIGN.get(magic, f"it starts with {magic!r} instead of b'GGUF'")
        raise cursor.error("magic", f"not a GGUF file: {what}")
    cursor.offset = 4
    version = int(cursor.number("I", "version"))
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in (1, 2, 3):
            raise cursor.error("version", "a big-endian GGUF file; only little-endian is read", 4)
        raise cursor.error("version", f"GGUF version {version}; versions 2 and 3 are read", 4)
    return version


def _read_count(cursor: _Cursor, field: str, smallest: int) -> int:
    """A count of entries that take at least ``smallest`` bytes each."""
    start = cursor.offset
    count = int(cursor.number("Q", field))
    if count > cursor.left // smallest:
        raise cursor.error(
            field, f"the file claims {count} entries and has {cursor.left} bytes left", start
        )
    return count


def _walk_value(cursor: _Cursor, key: str) -> _Entry:
    """Move over the value of ``key``, which stays undecoded."""
    kind_offset = cursor.offset
    kind, count = cursor.number("I", key), 1
    is_array = kind == _ARRAY
    if is_array:
        kind_offset = cursor.offset
        kind = cursor.number("I", key)
        if kind == _ARRAY:
            raise cursor.error(key, "an array of arrays; no known model has one", kind_offset)
        if kind == _STRING or kind in _SCALARS:
            size = 8 if kind == _STRING else struct.calcsize(_SCALARS[kind])
            count = _read_count(cursor, key, size)
    if kind == _STRING:
        start = cursor.offset
        done, cursor.offset = _native.gguf_skip_strings(cursor.data, start, count)
        if done < count:
            raise cursor.error(key, f"string {done} of {count} reaches past the end of the file")
        return _Entry(kind, count, start, is_array, cursor.offset)
    if kind not in _SCALARS:
        raise cursor.error(key, f"unknown value type {kind}", kind_offset)
    start = cursor.take(count * struct.calcsize(_SCALARS[kind]), key)
    return _Entry(kind, count, start, is_array, cursor.offset)


def _read_tensors(
    cursor: _Cursor, count: int, alignment: int, size: int | None
) -> dict[str, TensorInfo]:
    """The list of tensors of a file of ``size`` bytes; None: unknown."""
    tensors: dict[str, TensorInfo] = {}
    # Where data begin, relative to the first, and their bytes
    listed: list[tuple[int, int, str]] = []
    for index in range(count):
        name = cursor.name(f"tensor name {index}")
        if name in tensors:
            raise cursor.error(name, "the tensor is listed twice")
        tensors[name] = info = _read_tensor(cursor, name, alignment)
        listed.append((info.offset, _tensor_bytes(info), name))
    start = -(-cursor.offset // alignment) * alignment
    end, before = start, ""
    for offset, n_bytes, name in sorted(listed, key=lambda each: each[0]):
        offset += start
        if offset < end:
            raise cursor.error(name, f"its data overlaps that of {before!r}", offset)
        end, before = offset + n_bytes, name
        if size is not None and end > size:
            raise cursor.error(
                name, f"the file is cut short: the tensor ends at {end}, the file at {size}", size
            )
    return {
        name: TensorInfo(name, info.type_id, info.shape, start + info.offset)
        for name, info in tensors.items()
    }


def _read_tensor(cursor: _Cursor, name: str, alignment: int) -> TensorInfo:
    """An entry of the list; its offset still counts from the start of the data."""
    start = cursor.offset
    n_dims = cursor.number("I", name)
    if not 1 <= n_dims <= 4:
        raise cursor.error(name, f"has {n_dims} dimensions; 1 to 4 are allowed", start)
    start = cursor.offset
    *dims, type_id, offset = cursor.numbers(f"{n_dims}QIQ", name)
    if not 0 < math.prod(dims) < 1 << 62:
        raise cursor.error(name, f"its dimensions {dims} are zero or too large", start)
    start += 8 * n_dims
    kind = BY_ID.get(type_id)
    if kind and dims[0] % kind.block:
        raise cursor.error(
            name, f"rows of {dims[0]} are not whole {kind.name} blocks of {kind.block}", start
        )
    if offset % alignment:
        raise cursor.error(
            name, f"its data offset {offset} is not a multiple of {alignment}", start + 4
        )
    return TensorInfo(name, type_id, tuple(reversed(dims)), offset)


def _tensor_bytes(info: TensorInfo) -> int:
    """Bytes of a tensor's data; 0 if its type, hence its size, is unknown."""
    kind = BY_ID.get(info.type_id)
    if kind is None:
        return 0
    return math.prod(info.shape) // kind.block * kind.size


PART = r"(.+)-(\d{5})-of-(\d{5})\.gguf"
MOST = 99_999
"""The most parts that the digits in a name can count."""


def open_parts(path: Path) -> GGUFFile:
    """Open a GGUF file; if it is the first of a split model, add the tensors of the others.

    Files are split as by llama.cpp's ``gguf-split``: the first, ``NAME-00001-of-0000N.gguf``, has all metadata.
    Each has a part of the tensors; its ``split.no`` (from 0), ``split.count`` and ``split.tensors.count`` say
    which part.
    """
    first = GGUFFile(path)
    count = first.fields.integer("split.count", 0, MOST, default=0)
    if count <= 1:
        return first
    named = re.fullmatch(PART, path.name)
    if named is None or int(named[3]) != count:
        raise first.fields.error(
            "split.count",
            f"the model is split into {count} files, whose names must end in -00001-of-{count:05}.gguf "
            f"to -{count:05}-of-{count:05}.gguf",
        )
    number = first.fields.integer("split.no", 0, count - 1)
    if number != 0:
        raise first.fields.error(
            "split.no",
            f"this is part {number + 1} of {count}: give the first, {named[1]}-00001-of-{count:05}.gguf",
        )
    for part in range(2, count + 1):
        file = GGUFFile(path.with_name(f"{named[1]}-{part:05}-of-{count:05}.gguf"))
        _check_number(file, part, count)
        first.take(file)
    total = first.fields.integer("split.tensors.count", 0, 1 << 31, default=len(first.tensors))
    if total != len(first.tensors):
        raise first.fields.error(
            "split.tensors.count",
            f"the model has {total} tensors, its {count} files {len(first.tensors)}",
        )
    return first


def _check_number(file: GGUFFile, part: int, count: int) -> None:
    """Refuse a file whose part number differs from its name."""
    stated = file.fields.integer("split.no", 0, MOST), file.fields.integer("split.count", 0, MOST)
    if stated != (part - 1, count):
        raise file.fields.error(
            "split.no",
            f"the file says that it is part {stated[0] + 1} of {stated[1]}, its name that it is part {part} of "
            f"{count}",
        )
