"""Importance matrices: for every column of a matrix the mean square of its inputs.

Files are llama.cpp's (tools/imatrix/imatrix.cpp): GGUF with ``NAME.in_sum2`` and ``NAME.counts`` for every
matrix, or the older form without a magic number, which is only read, not written.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aleator.core.errors import FileFormatError
from aleator.core.records import dataclass
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.gguf_writer import NewTensor, field, write_gguf
from aleator.models.files.mapping import map_file

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ImportanceMatrix:
    """The contents of a file.

    Attributes:
        path: the file.
        means: mean squares by the matrices' names, float32 ``[matrices * columns]``; all 1 for a matrix
            without data, such as an expert that no token used.
        datasets: names of the texts.
        chunks: how many chunks of them were read; 0: unknown.
    """

    path: Path
    means: Mapping[str, Floats]
    datasets: tuple[str, ...]
    chunks: int


def read_imatrix(path: str | os.PathLike[str]) -> ImportanceMatrix:
    """Read a file of either form.

    Raises:
        ModelNotFound: it is missing.
        FileFormatError: it is damaged, not an importance matrix, or has numbers that are not mean squares.
    """
    path = Path(path)
    read = _read_gguf if bytes(map_file(path)[:4]) == b"GGUF" else _read_old
    with np.errstate(all="ignore"):  # for numbers that are refused below
        found = read(path)
    for name, means in found.means.items():
        if not (np.isfinite(means) & (means >= 0)).all():
            raise FileFormatError(path, "a mean of squares is negative or not finite", field=name)
    if not found.means:
        raise FileFormatError(path, "has no entries")
    return found


def _read_gguf(path: Path) -> ImportanceMatrix:
    file = GGUFFile(path)
    kind = file.get("general.type", "model")
    if kind != "imatrix":
        raise file.fields.error("general.type", f"is a {kind}, no importance matrix")
    datasets = file.require("imatrix.datasets", list)
    chunks = file.fields.integer("imatrix.chunk_count", 0, 1 << 31)
    file.fields.integer("imatrix.chunk_size", 0, 1 << 31)
    means = {}
    for entry in file.tensors:
        name = entry.removesuffix(".in_sum2")
        if name == entry:
            continue
        sums, counts = (file.stored(f"{name}.{what}") for what in ("in_sum2", "counts"))
        if (sums.type, counts.type) != ("F32", "F32") or sums.n_elements % counts.n_elements:
            raise FileFormatError(path, "sums and counts do not belong together", field=name)
        n = np.rint(counts.floats().reshape(-1, 1))
        total = sums.floats().reshape(len(n), -1)
        mean = np.divide(total, n, out=np.ones_like(total), where=n > 0)
        means[name] = mean.reshape(-1)
    return ImportanceMatrix(path, means, tuple(map(str, datasets)), chunks)


def _read_old(path: Path) -> ImportanceMatrix:
    data, at = bytes(map_file(path)), 0

    def take(size: int, what: str) -> bytes:
        nonlocal at
        if not 0 <= size <= len(data) - at:
            raise FileFormatError(
                path, "no importance matrix, or cut short or damaged", field=what, offset=at
            )
        at += size
        return data[at - size : at]

    def number(what: str) -> int:
        value: int = struct.unpack("<i", take(4, what))[0]
        return value

    means: dict[str, Floats] = {}
    for index in range(number("entries")):
        name = take(number("name"), f"name {index}").decode(errors="replace")
        calls, n = number(name), number(name)
        values = np.frombuffer(take(4 * n, name), np.float32)
        means[name] = values / np.float32(max(1, calls))
    chunks, datasets = 0, []
    if at < len(data):
        chunks = max(0, number("chunks"))
        datasets.append(take(number("dataset"), "dataset").decode(errors="replace"))
    return ImportanceMatrix(path, means, tuple(datasets), chunks)


def write_imatrix(
    path: Path,
    sums: Mapping[str, tuple[NDArray[np.float64], NDArray[np.int64]]],
    datasets: Sequence[str],
    chunks: int,
    chunk_size: int,
) -> None:
    """Write a file.

    Args:
        path: the file's path.
        sums: by the matrices' names, sums of squares [matrices, columns] and numbers of rows [matrices].
        datasets: names of the texts.
        chunks: how many chunks of them were read.
        chunk_size: tokens of a chunk.
    """
    fields = [
        field("general.type", "imatrix"),
        field("imatrix.datasets", datasets),
        field("imatrix.chunk_count", chunks),
        field("imatrix.chunk_size", chunk_size),
    ]
    tensors, values = [], {}
    for name in sorted(sums):
        total, rows = sums[name]
        for what, array in (("in_sum2", total), ("counts", rows.reshape(-1, 1))):
            shape = array.shape if len(rows) > 1 else array.shape[1:]
            made = NewTensor(f"{name}.{what}", "F32", shape)
            tensors.append(made)
            values[made.name] = array.astype("<f4")
    write_gguf(path, fields, tensors, lambda each: [values[each.name]])
