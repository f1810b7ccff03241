"""Reads safetensors files: ``model.safetensors``, or several and their index.

A file is the length of its header as u64, the header, a JSON object, and the data.  The header has each
tensor's type, its shape, and where in the data it begins and ends; "__metadata__" is skipped.  The format's
own package would be a dependency for a little JSON, and it copies tensors.  What it refuses is refused here
too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.core.json_text import loads
from aleator.models.files.fields import read_json
from aleator.models.files.mapping import map_file, require_little_endian
from aleator.models.files.tensor_types import StoredTensor

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SIZES = {"F32": 4, "F16": 2, "BF16": 2}
"""Bytes of one element."""
_OTHER_SIZES = {"I32": 4, "I64": 8, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1}
"""The same of parts of quantised matrices (prequantised.py), and of tables of tokens (draft_head.py)."""
MAX_HEADER = 100_000_000
"""Bytes of the longest header, as in the format's own reader."""
MAX_DIMENSIONS = 8
MAX_NAME = 1000
"""Characters of the longest name of a tensor, which messages repeat."""


def read_directory(
    directory: Path, other_types: bool = False
) -> Iterator[tuple[Path, str, StoredTensor]]:
    """The files, names and tensors of a model in one file or several shards, their data still on disk.

    ``other_types``: see :func:`read_file`.
    """
    index = directory / _INDEX
    if not index.exists():
        file = directory / _SINGLE
        if not file.exists():
            raise FileFormatError(directory, f"the directory has neither {_SINGLE} nor {_INDEX}")
        for name, tensor in read_file(file, other_types).items():
            yield file, name, tensor
        return
    fields = read_json(index)
    shards: dict[str, list[str]] = {}
    for name, shard in fields.require("weight_map", dict).items():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise fields.error(
                "weight_map", f"{shard!r:.80} is not the name of a file beside the index"
            )
        shards.setdefault(shard, []).append(name)
    for shard, wanted in shards.items():
        file = directory / shard
        if not file.exists():
            raise FileFormatError(file, f"the shard is missing; {_INDEX} names it")
        found = read_file(file, other_types)
        for name in wanted:
            if name not in found:
                raise FileFormatError(
                    file, f"the tensor {name!r} is missing; {_INDEX} places it here", field=name
                )
            yield file, name, found[name]


def _is_plain_name(name: str) -> bool:
    """Whether ``name`` stays inside the directory that it is joined to."""
    return (
        name not in ("", ".", "..")
        and len(name) <= 255
        and not set(name) & {"/", "\\", ":", "\0"}
        and (os.path.basename(name) == name)
    )


def read_file(file: Path, other_types: bool = False) -> dict[str, StoredTensor]:
    """All tensors of one file, their data mapped, without gaps.

    ``other_types``: single numbers, integers, truth values and float8 are read too.
    """
    require_little_endian(file)
    data = map_file(file)
    if data.size < 8:
        raise FileFormatError(file, "not a sound safetensors file: it is cut short", offset=0)
    length = int(data[:8].view("<u8")[0])
    if length > min(MAX_HEADER, data.size - 8):
        raise FileFormatError(
            file,
            f"not a sound safetensors file: its header of {length} bytes is longer than the file or than "
            f"{MAX_HEADER}",
            offset=0,
        )
    start = 8 + length
    header = _header(file, bytes(data[8:start]))
    header.pop("__metadata__", None)
    tensors: dict[str, StoredTensor] = {}
    places: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if len(name) > MAX_NAME:
            raise FileFormatError(
                file, f"a tensor's name has {len(name)} characters; at most {MAX_NAME} are read"
            )
        kind, shape, begin, end = _entry(file, name, entry, data.size - start, other_types)
        places.append((begin, end, name))
        tensors[name] = StoredTensor(kind, shape, data[start + begin : start + end])
    at = 0
    for begin, end, name in sorted(places):
        if begin != at:
            raise FileFormatError(
                file, f"its data begin at {begin} instead of {at}", field=name, offset=start + begin
            )
        at = end
    if at != data.size - start:
        raise FileFormatError(file, f"{data.size - start - at} bytes follow the last tensor")
    return {name: tensors[name] for _, _, name in sorted(places)}


def _header(file: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name is listed twice")
        return found

    try:
        header = loads(text.decode(), object_pairs_hook=unique)
    except ValueError as error:
        raise FileFormatError(file, f"its header is not valid JSON: {error}", offset=8) from None
    if not isinstance(header, dict):
        raise FileFormatError(file, "its header is no JSON object", offset=8)
    return header


def _entry(
    file: Path, name: str, entry: Any, size: int, other_types: bool
) -> tuple[str, tuple[int, ...], int, int]:
    """A tensor's type, shape, and where its data begin and end.

    ``size``: bytes of all data; ``other_types``: see :func:`read_file`.
    """
    sizes = _SIZES | _OTHER_SIZES if other_types else _SIZES
    fields = entry if isinstance(entry, dict) else {}
    kind, shape, place = (
        fields.get("dtype"),
        _counts(fields, "shape"),
        _counts(fields, "data_offsets"),
    )
    if not isinstance(kind, str) or shape is None or place is None or len(place) != 2:
        raise FileFormatError(file, "its entry in the header is damaged", field=name)
    if kind not in sizes:
        raise UnsupportedModel(
            f"{file}: tensor {name!r} has the type {kind}, which is not supported; "
            f"supported are {', '.join(sizes)}"
        )
    if not shape and other_types:
        shape = [1]
    if not 1 <= len(shape) <= MAX_DIMENSIONS or 0 in shape:
        raise FileFormatError(file, f"has the shape {shape}", field=name)
    begin, end = place
    if not begin <= end <= size or end - begin != math.prod(shape) * sizes[kind]:
        raise FileFormatError(
            file,
            f"its data, bytes {begin} to {end} of {size}, are not {shape} of {kind}",
            field=name,
        )
    return kind, tuple(shape), begin, end


def _counts(fields: dict[str, Any], key: str) -> list[int] | None:
    """A list of integers that are not negative; None if it is something else."""
    values = fields.get(key)
    if isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 62 for v in values):
        return values
    return None
