"""The pool of layers that see only a window of positions: cells that have left it are reused.

A token at position p sees positions p - window + 1 to p (and the first ``sinks``); with chunks it sees those
from the largest multiple of the window that is at most p.  Lower positions are kept until their room is needed,
so a sequence can be rewound as far as they go.  A cell that several sequences own is freed when it has left
the windows of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aleator.cache.batches import Plan, bits_of
from aleator.cache.options import END
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.prefix_index import PrefixIndex
from aleator.cache.rows.batch import MicroBatch, WindowBatch
from aleator.cache.rows.rows import LayerShape
from aleator.core.arrays import Bools, Int32s, Int64s, UInt64s
from aleator.core.errors import CacheFull, ParameterError
from aleator.core.integers import integer_in
from aleator.core.records import dataclass

_PAD = 256
_AHEAD = 64  # cells freed at once if prefixes are cached


def window_capacity(window: int, n_ctx: int, n_seq_max: int, n_ubatch: int, sinks: int = 0) -> int:
    """The number of cells of a window pool, as in llama.cpp: a multiple of 256, at most ``n_ctx``.

    A whole micro-batch is stored before it attends, beside the windows of all sequences.  More cells would save
    copies for failed decodes, but whole states would then differ from llama.cpp's.
    """
    needed = (window + sinks) * n_seq_max + n_ubatch
    return min(n_ctx, -(-needed // _PAD) * _PAD)


@dataclass(frozen=True)
class WindowCheckpoint:
    """A copy of a sequence's window: cells at ``positions``, and what :attr:`Rows.parts` store in them."""

    positions: Int32s
    key_positions: Int32s
    rows: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the copies."""
        return sum(t.nbytes for t in self.rows)


class WindowPool(AttentionPool):
    """Keys and values of window layers.

    Args:
        layers: what each layer stores.
        capacity: number of cells; see :func:`window_capacity`.
        window: number of positions that a token sees, including its own.
        sinks: number of first positions that every token also sees.
        chunked: whether a token sees its chunk of ``window`` positions, up to itself.
        ring: whether to take cells in turn, as llama.cpp does, even if others are free; otherwise nothing is
            dropped while a cell is free.
        options: those of :class:`AttentionPool`.  The ``n_kept`` sequences that hold cached prefixes may be
            dropped entirely when there is no room.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        capacity: int,
        *,
        window: int,
        sinks: int = 0,
        chunked: bool = False,
        ring: bool = False,
        **options: Any,
    ) -> None:
        window = integer_in("window", window, 1, 2**31 - 1)
        sinks = integer_in("sinks", sinks, 0, 2**31 - 1)
        super().__init__(layers, capacity, **options)
        self.window, self.sinks, self.chunked, self.ring = window, sinks, chunked, ring

    def unshare(self, seq: int, p0: int, p1: int) -> None:
        """Give a sequence its own cells for a range; if needed, first free what has left the windows."""
        needed = len(self.cells.shared(seq, p0, p1))
        if needed > self.cells.size - self.cells.used:
            for start, n in self._left(seq, {}):
                self.cells.seq_rm(seq, start, start + n)
            self.make_fit(len(self.cells.shared(seq, p0, p1)))
        super().unshare(seq, p0, p1)

    def in_state(self, seq: int, positions: Int32s) -> Bools:
        """Which positions are part of a sequence's state: those that its last token sees."""
        low = self.seen_from(self.cells.seq_pos_max(seq))
        return np.asarray((positions >= low) | (positions < self.sinks))

    def seen_from(self, position: int) -> int:
        """The lowest position that a token at ``position`` sees, apart from sinks."""
        if self.chunked:
            return position // self.window * self.window
        return max(0, position - self.window + 1)

    def leaves_at(self, position: int) -> int:
        """The lowest later position whose token does not see ``position``, apart from sinks."""
        if self.chunked:
            return (position // self.window + 1) * self.window
        return position + self.window

    def missing(self, whole: AttentionPool, seq: int) -> int:
        """The highest position that ``whole`` holds of a sequence and this does not; -1 if none."""
        gone = np.setdiff1d(_positions(whole, seq, 0), _positions(self, seq, 0))
        return int(gone[-1]) if len(gone) else -1

    def complete(self, whole: AttentionPool, seq: int, position: int) -> bool:
        """Whether a token at ``position`` of a sequence would see all that it must see here."""
        low = self.seen_from(position)
        ranges = [(low, position), (0, min(self.sinks, low))]
        return all(
            np.array_equal(_positions(whole, seq, *r), _positions(self, seq, *r)) for r in ranges
        )

    def usable_beside(self, whole: AttentionPool, seq: int, length: int) -> int:
        """The longest prefix, of at most ``length`` tokens, of which the next token would see all it must."""
        held = _positions(whole, seq, 0, length)
        gone = np.setdiff1d(held, _positions(self, seq, 0, length))
        if len(gone) and gone[0] < self.sinks:
            return min(length, int(gone[0]))
        for missing in gone[::-1].tolist():
            if self.leaves_at(missing) <= length:
                break
            length = missing
        return length

    def checkpoint(self, seq: int) -> WindowCheckpoint:
        """A copy of what a sequence's last token sees."""
        low = self.seen_from(self.cells.seq_pos_max(seq))
        cells = self.cells.seq_cell_list(seq, low)
        if self.sinks and low:
            first = self.cells.seq_cell_list(seq, 0, min(self.sinks, low))
            cells = np.concatenate((first, cells))
        return WindowCheckpoint(
            self.cells.positions[cells].copy(),
            self.rows.key_positions[cells].copy(),
            tuple(part.take(cells) for part in self.rows.parts),
        )

    def check_checkpoint(self, checkpoint: WindowCheckpoint) -> None:
        """Raise ParameterError unless the checkpoint is of a cache like this."""
        n = len(checkpoint.positions)
        own = [(part.taken_shape(n), part.data.dtype) for part in self.rows.parts]
        if own != [(list(rows.shape), rows.dtype) for rows in checkpoint.rows]:
            raise ParameterError("checkpoint: it is of a cache of another shape or type")

    # Freed cells still hold their rows, which are saved when the cells are filled again

    def place(
        self, positions: Int32s, seqs: Int32s, owners: UInt64s, causal: bool = True
    ) -> WindowBatch:
        """Assign cells to T tokens, freeing those that have left the windows."""
        if not causal:
            raise ParameterError("causal_attn=False: windows are of earlier tokens")
        cell_ids = self.find(positions, owners)
        self.keep_rows(cell_ids)
        return WindowBatch(
            self.cells, self.rows, cell_ids, positions, seqs, self.window, self.sinks, self.chunked
        )

    def micro_batches(self, plan: Plan) -> Iterator[MicroBatch]:
        """Cells are chosen anew: those that have left the windows are free only when their turn comes."""
        for part in plan.parts:
            at = part.tokens
            made = self.place(plan.positions[at], plan.seqs[at], plan.owners[at], plan.causal)
            made.tokens, made.outputs = at, part.outputs
            yield made

    def make_room(self, needed: int) -> None:
        """Do nothing: :meth:`find` makes room."""

    def find(self, positions: Int32s, owners: UInt64s, extras: Int32s | None = None) -> Int64s:
        """Assign cells to T tokens and return them, int64 [T]; what has left the windows makes room."""
        n = len(positions)
        if self.cells.n_streams > 1:
            cell_ids = self._find_in_shares(positions, owners)
        else:
            cell_ids = self._take(n, 0)
            if len(cell_ids) < n and n > self.free:
                self.make_fit(n, _following(positions, owners))
        if len(cell_ids) < n:
            return super().find(positions, owners, extras)
        self.cells.put(cell_ids, positions, owners, extras)
        return cell_ids

    def _find_in_shares(self, positions: Int32s, owners: UInt64s) -> Int64s:
        """Find cells if every sequence has its own part; none if a part had too few, which frees some."""
        cell_ids, found = np.empty(len(positions), np.int64), True
        for seq, position in _following(positions, owners).items():
            own = (owners[:, seq // 64] >> np.uint64(seq % 64) & np.uint64(1)) > 0
            n = int(own.sum())
            cells = self._take(n, seq)
            if len(cells) == n:
                cell_ids[own] = cells
            else:
                share = self.cells.size // self.cells.n_streams
                excess = self.cells.seq_cells(seq) + n - share
                if excess > 0:
                    self._forget(seq, self._left(seq, {seq: position}), excess)
                found = False
        return cell_ids if found else cell_ids[:0]

    def _take(self, n: int, stream: int) -> Int64s:
        """Free and return the next cells of the ring for new tokens; none without a ring."""
        if not self.ring:
            return np.empty(0, np.int64)
        cells: Int64s = self.cells.take_in_ring(n, self.window, self.sinks, stream, self.chunked)
        return cells

    def restore(self, seq: int, mark: WindowCheckpoint) -> None:
        """Replace a sequence's cells by those of a checkpoint."""
        self.cells.seq_rm(seq)
        owners = np.zeros((len(mark.positions), self.cells.words), np.uint64)
        owners[:, seq // 64] = np.uint64(1 << seq % 64)
        cell_ids = self.find(mark.positions, owners)
        self.keep_rows(cell_ids)
        self.rows.key_positions[cell_ids] = mark.key_positions
        for part, rows in zip(self.rows.parts, mark.rows, strict=True):
            part.put(cell_ids, rows)

    def make_fit(self, needed: int, following: dict[int, int] | None = None) -> None:
        """Free cells that have left every window until ``needed`` are free.

        ``following`` maps sequences to the position of their next token; others continue after their highest.
        """
        cells, following = self.cells, following or {}
        target = cells.size - needed  # cells that may stay in use
        if cells.used <= target:
            return
        if self.texts is not None:
            lower, every = target - min(_AHEAD, target // 4), 2 * self.window
            self._forget_left(lower, following, every)
            self._shorten_texts(self.texts, lower)
            highest = int(cells.positions.max())
            while cells.used > lower and every <= highest:
                every *= 2
                self._forget_left(lower, following, every)
        self._forget_left(target, following)
        for seq in range(self.n_seq_max, self.cells.n_seq_max):
            if cells.used <= target:
                return
            self.cells.seq_rm(seq)
        if cells.used > target:
            free = cells.size - cells.used
            raise CacheFull(
                needed,
                free,
                message=f"{needed} tokens and the sequences' windows need more than the {cells.size} cells of "
                f"window layers, of which {free} can be freed: decode fewer tokens at once, or create the "
                "context with a larger n_seq_max or n_ubatch",
            )

    def _forget(self, seq: int, runs: list[tuple[int, int]], n: int) -> None:
        """Free the first ``n`` of a sequence's cells in runs of positions."""
        for start, length in runs:
            self.cells.seq_rm(seq, start, start + min(length, n))
            n -= min(length, n)

    def _forget_left(self, target: int, following: dict[int, int], every: int = 0) -> None:
        """Free what has left the windows until ``target`` cells are in use, most from the longest sequence.

        ``every``: keep the window before each multiple of this many positions, and keep cached prefixes.
        """
        cells = self.cells
        while (excess := cells.used - target) > 0:
            left = {
                seq: runs
                for seq in range(self.n_seq_max if every else cells.n_seq_max)
                if cells.seq_cells(seq) and (runs := self._left(seq, following, every))
            }
            if not left:
                return
            most = max(left, key=lambda seq: sum(n for _, n in left[seq]))
            self._forget(most, left[most], excess)

    def _shorten_texts(self, texts: PrefixIndex, target: int) -> None:
        """Free cells of prefixes from their ends, the longest unused first, until ``target`` are in use.

        So shorter prefixes of a text remain usable, and the text itself stays cached.
        """
        cells, block = self.cells, texts.config.block
        left = [seq for seq in texts.numbers() if cells.seq_cells(seq)]
        while cells.used > target and left:
            last = {seq: cells.seq_pos_max(seq) for seq in left}
            seq = min(left, key=lambda s: (texts.used_at(s, last[s]), s))
            cells.seq_rm(seq, max(last[seq] // block * block, texts.pinned(seq)), END)
            if cells.seq_pos_max(seq) in (-1, last[seq]):
                left.remove(seq)

    def _left(self, seq: int, following: dict[int, int], every: int = 0) -> list[tuple[int, int]]:
        """(position, length) of the sequence's cells that have left its window; ``every`` as above."""
        low = self.seen_from(following.get(seq, self.cells.seq_pos_max(seq) + 1))
        if every == 0:
            return [(start, n) for start, _, n in self.cells.seq_runs(seq, self.sinks, low)]
        left = every - self.window + 1  # of every ``every`` positions, those that no window needs
        return [
            (start, n)
            for at in range(0, low, every)
            for start, _, n in self.cells.seq_runs(seq, max(at, self.sinks), min(at + left, low))
        ]


def _positions(pool: AttentionPool, seq: int, p0: int, p1: int = END) -> Int64s:
    """A sequence's positions in a range, ascending."""
    parts = [np.arange(start, start + n) for start, _, n in pool.cells.seq_runs(seq, p0, p1)]
    return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def _following(positions: Int32s, owners: UInt64s) -> dict[int, int]:
    """Each sequence's first position in the micro-batch."""
    bits = bits_of(owners)
    seqs = np.flatnonzero(bits.any(0))
    return dict(zip(seqs.tolist(), positions[bits[:, seqs].argmax(0)].tolist(), strict=True))
