"""Quantises models into the same bytes as ``llama-quantize``, with or without importance matrices.

A model is a GGUF file, or a directory that is converted meanwhile (:mod:`aleator.models.conversion.convert`).
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import aleator._native as _native
from aleator.core.errors import FileFormatError
from aleator.core.records import dataclass
from aleator.core.threads import pool
from aleator.models.conversion.file_types import FILE_TYPES, Rules, category, file_type, in_order
from aleator.models.files.gguf import GGUFFile, open_parts
from aleator.models.files.gguf_writer import NewTensor, field, target, write_gguf
from aleator.models.files.imatrix import Floats, ImportanceMatrix
from aleator.models.files.tensor_types import FLOAT_TYPES, TENSOR_TYPES, StoredTensor

log = logging.getLogger(__name__)
Progress = Callable[[int, int], None]

_AT_ONCE = 1 << 24
"""Bytes that are copied at a time."""
_VERSION = 2
"""Version of the blocks' layouts (GGML_QNT_VERSION)."""
_OWN_FIELDS = (
    "general.quantization_version", "general.file_type", "split.no", "split.count", "split.tensors.count",
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """A tensor, with its old and its new type."""

    new: NewTensor
    before: str

    @property
    def changes(self) -> bool:
        """Whether the type changes."""
        return self.new.type != self.before


class Quantisation:
    """What quantising a model will do; :meth:`write` does it.

    Attributes:
        kind: the file type, as in :data:`~aleator.models.conversion.file_types.FILE_TYPES`; None: types stay.
        changes: the tensors in the order of the new file.
        widened: how many tensors come from types that have already lost precision, by type.
        unweighed: matrices of layers that the importance matrix lacks.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | GGUFFile,
        kind: str | None,
        imatrix: ImportanceMatrix | None = None,
    ) -> None:
        """Plan the quantisation.

        Args:
            source: a GGUF file, by its path (the first of a split model) or open.
            kind: the name of a file type, such as "Q4_K_M"; None: every tensor keeps its type.
            imatrix: the importance matrix, which weighs errors.

        Raises:
            ParameterError: no such file type.
            ModelNotFound, FileFormatError: the file is missing or damaged, or the importance matrix belongs to
                another model.
            UnsupportedModel: an architecture or a tensor type that is not supported.
        """
        self.kind, self._imatrix = None if kind is None else file_type(kind), imatrix
        self._gguf = source if isinstance(source, GGUFFile) else open_parts(Path(source))
        rules = None if self.kind is None else Rules(self._gguf, self.kind, imatrix is not None)
        chosen = ((each, None) for each in in_order(self._gguf)) if rules is None else rules.types()
        self.changes = []
        for info, new in chosen:
            before = self._gguf.type_of(info.name)
            shape = info.shape if rules is None else _without_ones(info.shape)
            self.changes.append(Change(NewTensor(info.name, new or before, shape), before))
        if not self.changes:
            raise FileFormatError(self._gguf.path, "has no tensors: it is a vocabulary alone")
        changed = [each for each in self.changes if each.changes]
        self.widened = Counter(each.before for each in changed if each.before not in FLOAT_TYPES)
        self.unweighed: list[str] = []
        if imatrix is not None:
            if not self._gguf.tensors.keys() & imatrix.means.keys():
                raise FileFormatError(
                    imatrix.path,
                    f"has no matrix of {self._gguf.path}: it was made of another model",
                )
            lacking = [e.new.name for e in changed if self._importance(e.new) is None]
            # Embedding and output are in none that `aleator imatrix` or llama-imatrix makes unasked.
            self.unweighed = [n for n in lacking if category(n) not in ("embedding", "output")]

    @property
    def size(self) -> tuple[int, int]:
        """Bytes of all tensors before and after."""
        before = sum(replace(each.new, type=each.before).nbytes for each in self.changes)
        return before, sum(each.new.nbytes for each in self.changes)

    @property
    def n_elements(self) -> int:
        """Numbers in all tensors."""
        return sum(int(np.prod(each.new.shape, dtype=np.int64)) for each in self.changes)

    def write(
        self,
        out: str | os.PathLike[str],
        n_threads: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Write the new file; it appears only when it is complete.

        Args:
            out: the path; a file of that name is replaced.
            n_threads: threads; None: as many as for decoding.
            progress: called with (bytes read, bytes in all).

        Returns:
            The bytes written.

        Raises:
            ParameterError: ``out`` is a file that is read, or would not fit on the disk.
            FileFormatError: a tensor has a NaN or an infinity, or is too large for the type.
        """
        out, team = Path(out), pool(n_threads)
        given = [] if self._imatrix is None else [self._imatrix.path]
        target(out, [*given, *self._gguf.files()])
        total, done = self.size[0], 0
        before = {each.new.name: each.before for each in self.changes}

        def pieces(new: NewTensor) -> Iterator[NDArray[np.generic]]:
            nonlocal done
            stored = self._gguf.stored(new.name)
            log.info("%s %s: %s -> %s", new.name, list(new.shape), before[new.name], new.type)
            made = (
                self._copied(stored)
                if new.type == stored.type
                else self._stored(new, stored, before[new.name], team)
            )
            for share, piece in made:
                yield piece
                done += share
                if progress is not None:
                    progress(done, total)

        tensors = [each.new for each in self.changes]
        return write_gguf(out, self._fields(), tensors, pieces, self._gguf.alignment)

    def _fields(self) -> list[bytes]:
        """The metadata; only fields about the types and the file change."""
        metadata = self._gguf.metadata
        new: dict[str, int | str] = {"general.quantization_version": _VERSION}
        if self.kind is not None:
            new["general.file_type"] = FILE_TYPES[self.kind].number
        elif "general.file_type" in metadata:
            new["general.file_type"] = metadata["general.file_type"]
        if self._imatrix is not None:
            new["quantize.imatrix.file"] = _shortened(str(self._imatrix.path))
            if self._imatrix.datasets:
                new["quantize.imatrix.dataset"] = _shortened(self._imatrix.datasets[0])
            new["quantize.imatrix.entries_count"] = len(self._imatrix.means)
            if self._imatrix.chunks:
                new["quantize.imatrix.chunks_count"] = self._imatrix.chunks
        kept = [key for key in metadata if key not in new and key not in _OWN_FIELDS]
        return [*map(metadata.stored, kept), *(field(key, value) for key, value in new.items())]

    def _importance(self, new: NewTensor) -> Floats | None:
        """The weights of errors, float32 [matrices, columns]; None: unknown."""
        means = None if self._imatrix is None else self._imatrix.means.get(new.name)
        if self._imatrix is None or means is None:
            return None
        matrices = int(np.prod(new.shape[:-2], dtype=np.int64))
        if means.size == matrices * new.shape[-1]:
            return means.reshape(matrices, -1)
        if category(new.name) == "embedding":  # the importance of the product with the output
            return None
        raise FileFormatError(
            self._imatrix.path,
            f"{means.size} numbers for {matrices} matrices of {new.shape[-1]} columns: it was made of another "
            "model",
            field=new.name,
        )

    @staticmethod
    def _copied(stored: StoredTensor) -> Iterator[tuple[int, NDArray[np.generic]]]:
        for first in range(0, stored.data.size, _AT_ONCE):
            part = stored.data[first : first + _AT_ONCE]
            yield part.size, part

    def _stored(
        self, new: NewTensor, stored: StoredTensor, before: str, team: _native.ThreadPool
    ) -> Iterator[tuple[int, NDArray[np.generic]]]:
        """A tensor in its new type, piece by piece, with the bytes that each piece had before."""
        index, _ = stored.first_nonfinite()
        if index is not None:
            raise FileFormatError(
                self._gguf.path,
                f"holds a NaN or an infinity at or after element {index}",
                field=new.name,
            )
        weights = self._importance(new)
        columns, kind = new.shape[-1], TENSOR_TYPES[new.type]
        height = new.shape[-2]
        row_bytes = columns // kind.block * kind.size
        share = replace(new, type=before, shape=(columns,)).nbytes
        for first, rows in stored.pieces():
            while len(rows):
                count = len(rows)
                if weights is not None:  # rows of one matrix, which has its own weights
                    count = min(count, height - first % height)
                part, rows = rows[:count], rows[count:]
                weight = None if weights is None else weights[first // height]
                made = np.empty((count, row_bytes), np.uint8)
                _native.quantise_rows(team, new.type, part, weight, made)
                written = StoredTensor(new.type, part.shape, made.reshape(-1))
                if written.first_nonfinite()[0] is not None:
                    raise FileFormatError(
                        self._gguf.path,
                        f"its numbers are too large for {new.type}: give a type of a larger range, as BF16",
                        field=new.name,
                    )
                yield count * share, made
                first += count


def _shortened(text: str) -> str:
    """The part of a name that llama.cpp keeps."""
    return text.encode(errors="replace")[:127].decode(errors="ignore")


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape as ggml writes it: single matrices, and rows alone, have no dimension for that."""
    return next((shape[i:] for i, size in enumerate(shape) if size != 1), shape[-1:])
