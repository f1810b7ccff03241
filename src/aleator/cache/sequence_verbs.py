"""llama.cpp's verbs of sequences, over a pool.

Here arguments are checked and checkpoints told of changes, and each method is all or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

from aleator.cache.arguments import (
    check_sequence,
    check_sequence_or_all,
    checked_delta,
    checked_divisor,
    position_range,
)
from aleator.cache.cell_verbs import CellVerbs
from aleator.cache.journal import atomic
from aleator.cache.pools.pool import AnyPool
from aleator.cache.prefix import Match, PrefixIndex, checked_text
from aleator.core.errors import CacheError


class Checkpoint:
    """A point that a sequence can go back to while everything before it stays as it is.

    Attributes:
        seq: the sequence.
        length: its next position then.
        valid_to: positions from here on have changed since.
        copy: what layers with windows or states held then; None where no layer forgets.

    """

    __slots__ = ("__weakref__", "copy", "length", "seq", "valid_to")

    def __init__(self, seq: int, length: int, copy: Any = None) -> None:
        self.seq, self.length, self.valid_to, self.copy = seq, length, length, copy

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return 0 if self.copy is None else int(self.copy.nbytes)


class SequenceVerbs(CellVerbs):
    """Sequences in a pool; ``prefix`` is the index of cached prefixes, None where there are none."""

    prefix: PrefixIndex | None

    def __init__(self, pool: AnyPool) -> None:
        self.pool = pool
        self._marks: WeakSet[Checkpoint] = WeakSet()

    @property
    def n_seq_max(self) -> int:
        """Sequence ids lie in [0, n_seq_max)."""
        return self.pool.n_seq_max

    @atomic
    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> bool:
        """Remove positions of a sequence (-1: of every one); True.

        Raises:
            CannotRewind: layers with windows or states do not hold what the rest needs; names the oldest
                legal position.

        """
        check_sequence_or_all("seq", seq, self.n_seq_max)
        p0, p1 = position_range(p0, p1)
        self.pool.seq_rm(seq, p0, p1)
        self._edited(None if seq == -1 else [seq], p0)
        return True

    @atomic
    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Let ``dst`` hold what ``src`` holds in a range too; no data moves.

        With ``policy="streams"`` nothing can be shared: ``dst`` becomes a copy of ``src``, at once.

        Raises:
            CannotRewind: the next token of ``dst`` would miss what has left a window, or a state.
            ParameterError: the range is not all that ``src`` has, with ``policy="streams"`` or in states.

        """
        self._check("src", src)
        self._check("dst", dst)
        p0, p1 = position_range(p0, p1)
        if src != dst:
            self.pool.seq_cp(src, dst, p0, p1)
            self._edited([dst], p0)

    @atomic
    def seq_keep(self, seq: int) -> None:
        """Remove every other sequence, and what is cached."""
        self._check("seq", seq)
        if self.prefix is not None:
            self.prefix.clear()
        self.pool.seq_keep(seq)
        self._edited([s for s in range(self.n_seq_max) if s != seq], 0)

    @atomic
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Add ``delta`` to the positions in a range; a cell moved below 0 is freed.

        Positions live in the cells: a cell that several sequences own moves for all of them.  The
        stored keys are rotated at the next decode.  Of states the newest position moves, if it is in the
        range, for all that share the state.

        Raises:
            CannotShift: keys cannot be rotated, or the next token would see what has left a window.

        """
        self._check("seq", seq)
        p0, p1 = position_range(p0, p1)
        delta = checked_delta(delta)
        moved = self._sharers(seq, p0, p1) if delta else []
        self.pool.seq_add(seq, p0, p1, delta)
        self._edited(moved, min(p0, p0 + delta))

    @atomic
    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Divide the positions in a range by ``divisor`` (1 or more), rounding down.

        Raises:
            CannotShift: keys cannot be rotated, or the next token would see what has left a window.

        """
        self._check("seq", seq)
        p0, p1 = position_range(p0, p1)
        divisor = checked_divisor(divisor)
        moved = self._sharers(seq, p0, p1) if divisor > 1 else []
        self.pool.seq_div(seq, p0, p1, divisor)
        self._edited(moved, p0 // divisor)

    def _sharers(self, seq: int, p0: int, p1: int) -> list[int]:
        """The sequences whose positions move with those of one."""
        return [seq, *self.first.cells.sharers(seq, p0, p1)]

    def seq_pos_min(self, seq: int) -> int:
        """The lowest position that every pool holds, or -1 if the sequence is empty."""
        self._check("seq", seq)
        return self.pool.seq_pos_min(seq)

    def seq_pos_max(self, seq: int) -> int:
        """The sequence's highest position, or -1 if it is empty."""
        self._check("seq", seq)
        return self.pool.seq_pos_max(seq)

    @atomic
    def unshare(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        """Give a sequence copies of those of its cells in a range that others own too.

        Cached prefixes give such cells up instead.

        Raises:
            CacheFull: no cells for the copies.
            CannotShift: its recurrent state is another sequence's too.

        """
        self._check("seq", seq)
        p0, p1 = position_range(p0, p1)
        self.pool.unshare(seq, p0, p1)

    @atomic
    def clear(self, data: bool = True) -> None:
        """Remove every sequence; with ``data`` also zero what is stored, when the outermost step ends."""
        if self.prefix is not None:
            self.prefix.clear()
        self.pool.clear(data)
        self._edited(None, 0)

    # Rewinds

    def oldest_rewind(self, seq: int) -> int:
        """The lowest position, but 0, that ``seq_rm(seq, position, -1)`` can rewind to."""
        self._check("seq", seq)
        return self.pool.oldest_rewind(seq)

    @property
    def rewindable(self) -> int:
        """Tokens of one micro-batch by which a sequence can be rewound at least."""
        return self.pool.rewindable

    def can_shift(self) -> bool:
        """Whether ``seq_add`` and ``seq_div`` are allowed."""
        return self.pool.can_shift()

    def stands_for(self, seq: int, n: int) -> bool:
        """Whether a sequence stands for positions 0 to ``n`` - 1, and no others."""
        return self.pool.stands_for(seq, n)

    # Checkpoints

    def remember(self, mark: Checkpoint) -> None:
        """Tell a checkpoint of changes from now on."""
        self._marks.add(mark)

    def remembers(self, mark: Checkpoint) -> bool:
        """Whether a checkpoint is one of this cache."""
        return mark in self._marks

    def _edited(self, seqs: Sequence[int] | None, p0: int) -> None:
        """Tell checkpoints that sequences (None: all) have changed from position ``p0`` on."""
        for mark in self._marks:
            if mark.length > p0 and (seqs is None or mark.seq in seqs):
                self.journal.set(mark, "valid_to", min(mark.valid_to, p0))

    # Cached prefixes; see aleator.cache.prefix

    @atomic
    def match(self, tokens: Sequence[int], namespace: str = "") -> Match:
        """Find the longest beginning of ``tokens`` that is cached, and why it is not longer."""
        text = checked_text(tokens, namespace)
        if self.prefix is None:
            return Match(
                0,
                0,
                ("this cache caches no prefixes: create it with prefix=PrefixConfig()",),
                namespace,
            )
        return self.prefix.match(text, namespace)

    @atomic
    def adopt(self, seq: int, match: Match) -> None:
        """Let an empty sequence hold what was found, at positions 0 to ``match.length`` - 1."""
        self._check("seq", seq)
        if self.pool.seq_pos_max(seq) >= 0:
            raise CacheError(f"sequence {seq} is not empty: remove it with seq_rm first")
        if match.length == 0:
            return
        if self.prefix is None or match.text is None or not self.prefix.holds(match):
            raise CacheError("what was matched is not kept any more: match again")
        if self.pool.serves(match.text.seq, match.length) != match.length:
            raise CacheError("what was matched is not kept any more: match again")
        self.pool.adopt(match.text.seq, seq, match.length)

    @atomic
    def reuse(self, seq: int, tokens: Sequence[int], namespace: str = "") -> int:
        """:meth:`match` and :meth:`adopt`; returns how many tokens need not be computed."""
        match = self.match(tokens, namespace)
        self.adopt(seq, match)
        return match.length

    @atomic
    def keep(self, seq: int, tokens: Sequence[int], namespace: str = "") -> bool:
        """Keep the text that a sequence holds, for later ones that begin like it.

        It stays, also after ``seq_rm``, until there is no room for something else.

        Args:
            seq: the sequence.
            tokens: what positions 0, 1, ... were computed from, and nothing else: not what is left after
                something before them was removed.
            namespace: texts of one namespace are never found in another.

        Returns:
            Whether it is kept: not without ``prefix``, nor if all that is kept is pinned, nor of recurrent
            layers if no state of just these tokens is held.

        """
        self._check("seq", seq)
        text = checked_text(tokens, namespace)
        if self.prefix is None or len(text) == 0 or not self.pool.holds(seq, len(text)):
            return False
        return self.prefix.keep(seq, text, namespace)

    @atomic
    def give_up(self, namespace: str) -> int:
        """Forget what is kept in a namespace; what is pinned, and what sequences hold, stays.

        Returns:
            How many cached prefixes there were.

        """
        checked_text((), namespace)
        return 0 if self.prefix is None else self.prefix.give_up(namespace)

    def _check(self, parameter: str, seq: int) -> None:
        check_sequence(parameter, seq, self.n_seq_max)
