"""A handle on one sequence of a cache: fork, cut, shift, rewind; each operation is exact or is refused."""

from __future__ import annotations

import os
from collections.abc import Sequence as Seq
from typing import NamedTuple
from weakref import ref

import numpy as np

from aleator._native import Cells
from aleator.cache.formats.state_file import Buffer
from aleator.cache.journal import Journal, atomic
from aleator.cache.options import END, HoldsCells, checked_delta, checked_divisor
from aleator.cache.pools.pool import Pool
from aleator.cache.prefix_index import Match
from aleator.cache.sequence_verbs import Checkpoint, Restored, SequenceVerbs
from aleator.core.arrays import Int32s, Int64s
from aleator.core.errors import CacheError, CacheFull, CannotRewind, ParameterError
from aleator.core.forwarded import forwarded
from aleator.core.integers import UNBOUNDED, integer_in


class ContextShift(NamedTuple):
    """The number of positions that :meth:`Sequence.slide` removed, and the new length."""

    removed: int
    new_len: int


class Handles(SequenceVerbs):
    """The part of a cache that makes handles on sequences."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self._handles: dict[int, ref[Sequence]] = {}

    @atomic
    def sequence(self, id: int | None = None) -> Sequence:
        """Make a handle on a sequence; see :class:`aleator.cache.Sequence`.

        Args:
            id: the sequence; None takes the lowest that is empty and has no handle.

        Raises:
            CacheFull: every sequence is in use.
        """
        if id is None:
            empty = (s for s in range(self.n_seq_max) if self.pool.seq_pos_max(s) < 0)
            id = next((s for s in empty if not self._has_handle(s)), None)
            if id is None:
                raise CacheFull(
                    0,
                    0,
                    message=f"all {self.n_seq_max} sequences are in use: close one, or create the "
                    "context with a larger n_seq_max",
                )
        self._check("id", id)
        if self._has_handle(id):
            raise CacheError(f"sequence {id} has a handle already: use that, or close it")
        made = self._handle(id)
        self.journal.put(self._handles, id, ref(made))
        return made

    def _handle(self, id: int) -> Sequence:
        return Sequence(self, id)

    def _has_handle(self, id: int) -> bool:
        handle = self._handles.get(id)
        return handle is not None and handle() is not None

    def forget(self, id: int) -> None:
        """Release a sequence's handle."""
        self.journal.drop(self._handles, id)


class Sequence(HoldsCells):
    """One sequence of a :class:`KVCache`, made by :meth:`KVCache.sequence` or :meth:`fork`.

    As a context manager it releases its cells and its id at the end.  Unlike llama.cpp's functions it never
    moves a cell of another sequence: shared cells are copied first.  Every method does what it says, or
    raises and changes nothing.

    Attributes:
        id: its number, for batches.
    """

    def __init__(self, cache: Handles, id: int) -> None:
        self._cache: Handles | None = cache
        self.id = id

    @property
    def cache(self) -> Handles:
        """The cache of the sequence; CacheError once the sequence is closed."""
        if self._cache is None:
            raise CacheError(f"the handle on sequence {self.id} is closed: make a new one")
        return self._cache

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the sequence's cells and its id; a second call does nothing."""
        if self._cache is not None:
            self._cache.journal.run(self._close, self._cache)

    def _close(self, cache: Handles) -> None:
        cache.seq_rm(self.id)
        cache.forget(self.id)
        cache.journal.set(self, "_cache", None)

    journal: Journal = forwarded("cache.journal", "The journal that records changes of the cache.")
    _cells: Cells = forwarded("cache.first.cells", "The cells whose positions are all known.")

    def __repr__(self) -> str:
        if self._cache is None:
            return f"Sequence({self.id}, closed)"
        return f"Sequence({self.id}, {len(self)} cells, next position {self.next})"

    def __len__(self) -> int:
        """The number of cells of the sequence."""
        return self._cells.seq_cells(self.id)

    @property
    def pos_min(self) -> int | None:
        """The lowest position; None if the sequence is empty."""
        return self._cells.seq_pos_min(self.id) if len(self) else None

    @property
    def pos_max(self) -> int | None:
        """The highest position; None if the sequence is empty."""
        return self.cache.seq_pos_max(self.id) if len(self) else None

    @property
    def next(self) -> int:
        """The position of the next token."""
        return self.cache.seq_pos_max(self.id) + 1

    @property
    def positions(self) -> Int32s:
        """The positions of the sequence, ascending, int32."""
        return np.sort(self._cells.positions[self.cells])

    @property
    def cells(self) -> Int64s:
        """The cells of the sequence in order of position, int64."""
        cells = self._cells.seq_cell_list(self.id)
        return cells[np.argsort(self._cells.positions[cells], kind="stable")]

    @atomic
    def fork(self, upto: int | None = None) -> Sequence:
        """Make a sequence that shares these cells, or only those of positions below ``upto``.

        Raises:
            CacheFull: no sequence id is free.
        """
        if upto is not None:
            upto = integer_in("upto", upto, 0, UNBOUNDED)
        other = self.cache.sequence()
        self.cache.seq_cp(self.id, other.id, 0, END if upto is None else upto)
        return other

    # Going back

    def oldest_rewind(self) -> int:
        """The lowest n above 0 that :meth:`truncate` accepts; 0 if no layer forgets, so that any n will do."""
        return self.cache.oldest_rewind(self.id)

    def can_truncate(self, n: int) -> bool:
        """Whether :meth:`truncate` would work."""
        return n == 0 or n >= min(self.oldest_rewind(), self.next)

    def truncate(self, n: int) -> None:
        """Remove every position from ``n`` on, so that ``n`` is the next one.

        Raises:
            ParameterError: ``n`` is negative.
            CannotRewind: a layer with a window or a state has forgotten what came before ``n``.
        """
        n = integer_in("n", n, 0, UNBOUNDED)
        self.cache.seq_rm(self.id, n, END)

    def checkpoint(self) -> Checkpoint:
        """Mark this point, for :meth:`restore`.

        For full attention, which forgets nothing, the mark stores only the next position.  What layers with
        windows or states hold is copied.
        """
        copy = self.cache.checkpoint(self.id) if self.next else None
        mark = Checkpoint(self.id, self.next, copy)
        self.cache.remember(mark)
        return mark

    @atomic
    def restore(self, mark: Checkpoint) -> None:
        """Go back to a checkpoint.

        Raises:
            CannotRewind: positions before it were removed, moved or replaced since.
        """
        self._check_own(mark)
        if mark.valid_to < mark.length:
            raise CannotRewind(
                f"positions from {mark.valid_to} on have changed since the checkpoint at {mark.length}: "
                f"truncate({mark.valid_to}) and decode the rest again"
            )
        if mark.copy is None or self.can_truncate(mark.length):
            self.truncate(mark.length)
        else:
            self.cache.restore(self.id, mark.copy)

    def _check_own(self, mark: Checkpoint) -> None:
        if not self.cache.remembers(mark) or mark.seq != self.id:
            raise CannotRewind(f"the checkpoint is not one of sequence {self.id} in this cache")

    # Cached prefixes and files

    def match(self, tokens: Seq[int], namespace: str = "") -> Match:
        """Find the longest cached prefix of ``tokens``; see :meth:`KVCache.match`."""
        return self.cache.match(tokens, namespace)

    def reuse_prefix(self, match: Match) -> None:
        """Share the cells of a match; the sequence must be empty."""
        self.cache.reuse_prefix(self.id, match)

    def keep(self, tokens: Seq[int], namespace: str = "") -> bool:
        """Let the cache keep this text, computed from ``tokens``; see :meth:`KVCache.keep`."""
        return self.cache.keep(self.id, tokens, namespace)

    def save(
        self, path: str | os.PathLike[str] | None = None, *, tokens: Seq[int] = (), model: str = ""
    ) -> bytes | None:
        """Write the sequence to a file, or return it as bytes, for :meth:`load`.

        Args:
            path: the file, replaced when all is written; None returns the bytes.
            tokens: all tokens of the sequence, or none.
            model: tells models apart, as :attr:`aleator.LanguageModel.fingerprint` does.
        """
        return self.cache.save_sequence(self.id, path, tokens, model)

    @atomic
    def load(self, source: str | os.PathLike[str] | Buffer, *, model: str = "") -> Restored:
        """Replace the sequence by what :meth:`save` wrote, and return its tokens and size.

        Args:
            source: a file's name, or bytes.
            model: must equal that of the file, if both name one.

        Raises:
            FileFormatError: the file is of another kind, or damaged.
            Incompatible: it was made with another model, arithmetic or kind of cache.
            CacheFull: there are not enough cells.
        """
        return self.cache.load_sequence(self.id, source, model)

    # Editing

    def drop(self, start: int, stop: int) -> None:
        """Remove positions [start, stop); later ones stay where they are."""
        self._check_range(start, stop)
        self.cache.seq_rm(self.id, start, stop)

    @atomic
    def shift(self, start: int, stop: int, delta: int) -> None:
        """Add ``delta`` to positions [start, stop), for this sequence only.

        Raises:
            ParameterError: a position would become negative or too large.
            CannotShift: the keys of this model cannot be rotated.
            CacheFull: no cells for copies of shared ones.
        """
        self._check_range(start, stop)
        delta = checked_delta(delta)
        self.cache.first.require_shift()
        runs = self._cells.seq_runs(self.id, start, stop)
        if runs and runs[0][0] + delta < 0:
            raise ParameterError(
                f"delta {delta} moves position {runs[0][0]} below 0: drop() it first"
            )
        self.cache.unshare(self.id, start, stop)
        self.cache.seq_add(self.id, start, stop, delta)

    @atomic
    def divide(self, start: int, stop: int, divisor: int) -> None:
        """Divide positions [start, stop) by ``divisor``, rounding down, for this sequence only.

        Raises:
            ParameterError: ``divisor`` is less than 1.
            CannotShift: the keys of this model cannot be rotated.
            CacheFull: no cells for copies of shared ones.
        """
        self._check_range(start, stop)
        divisor = checked_divisor(divisor)
        self.cache.first.require_shift()
        self.cache.unshare(self.id, start, stop)
        self.cache.seq_div(self.id, start, stop, divisor)

    @atomic
    def slide(self, keep: int = 4, discard: int | None = None) -> ContextShift:
        """Forget positions after the first ``keep`` and move the later ones up: a context shift.

        Args:
            keep: positions that stay where they are.
            discard: how many to forget; None forgets half of those after ``keep``.

        Returns:
            ``(removed, new_len)``; nothing is removed if there is nothing after ``keep``.

        Raises:
            CannotShift: the keys of this model cannot be rotated.
            CacheFull: no cells for copies of shared ones.
        """
        keep = integer_in("keep", keep, 0, UNBOUNDED)
        if discard is not None:
            discard = integer_in("discard", discard, 0, UNBOUNDED)
        self.cache.first.require_shift()
        end = self.next
        left = end - keep
        removed = max(0, min(left // 2 if discard is None else discard, left - 1))
        if removed == 0:
            return ContextShift(0, end)
        self.cache.seq_rm(self.id, keep, keep + removed)
        self.cache.unshare(self.id, keep + removed, end)
        self.cache.seq_add(self.id, keep + removed, end, -removed)
        return ContextShift(removed, self.next)

    def _check_range(self, start: int, stop: int) -> None:
        integer_in("start", start, 0, UNBOUNDED)
        integer_in("stop", stop, 0, UNBOUNDED)
