"""States of recurrent layers at boundaries of a text: one that begins like it goes on from there.

A state cannot be cut, so a beginning is of use only where a state was kept.  While a text is computed,
the states at multiples of a spacing are kept beside it; the spacing doubles as the text grows, so that a
text has at most :data:`MOST` of them, and to them come the ends of texts that were kept (a prompt's, an
answer's).  They are rows like all others, shared by all sequences and texts that have them.

When their rows run out, the last state of the kept text whose end was not used for the longest time goes first.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from aleator.cache.prefix import PrefixConfig, PrefixIndex

if TYPE_CHECKING:
    from aleator.cache.recurrent import History, RecurrentCache
    from aleator.cache.recurrent_step import Run

MOST = 32
"""States of one text at multiples of its spacing; between half as many and so many once it is long."""
ENDS = 4
"""States of one text that are kept beside these: the latest ends of texts that were kept."""
SPARE = 8
"""Rows that are kept free, for the states of one step: nothing is given up before the step is over."""


def kept_rows(prefix: PrefixConfig | None, n_seq_max: int, row_bytes: int) -> int:
    """Rows for such states: as many as ``prefix.bytes`` has room for, and as can be used."""
    if prefix is None:
        return 0
    return min((prefix.texts + n_seq_max) * (MOST + ENDS), prefix.bytes // max(1, row_bytes))


class KeptStates:
    """The states of kept texts, and of those that may be kept one day.

    In the cache's books the kept texts are sequences beyond the numbered ones, and beyond these again each
    numbered sequence has one of the states at boundaries of its text.

    Attributes:
        index: finds texts by their tokens; of a cache of several pools it is that of all.
        rows: rows that may be held so, within a step; a few less are, between steps.

    """

    def __init__(self, cache: RecurrentCache, config: PrefixConfig, rows: int) -> None:
        self._cache, self.rows, self._spacing = cache, rows, config.spacing
        self.limit = rows - min(SPARE, rows // 2)
        self._first = cache.n_seq_max + config.texts
        self.grown = False  # since the last trim
        self.index = PrefixIndex(config, cache.journal, self, cache.n_seq_max, self.length)

    def number(self, seq: int) -> int:
        """The number under which the states at boundaries of a sequence's text are kept."""
        return self._first + seq

    def of(self, seq: int) -> History:
        """(row, position) of the states at boundaries of a sequence's text, ascending."""
        return self._cache.history_of(self._first + seq)

    def take(self, run: Run) -> None:
        """Have a run leave its states at boundaries too."""
        start, end = run.positions[0], run.positions[-1] + 1
        spacing = self._spacing_at(end)
        at = list(range(start // spacing * spacing + spacing, end + 1, spacing))
        if not at or end - start != len(run.tokens):
            return
        room = self.rows - self.held()
        while len(at) > room:
            at = at[1::2]
        cache, stores = self._cache, dict(run.stores)
        fresh = iter(cache.free_rows(len(at)))
        new = []
        for length in at:
            index = length - 1 - start
            row = stores.setdefault(index, -1)
            if row < 0:
                row = stores[index] = next(fresh)
            new.append((row, length - 1))
        run.stores[:] = sorted(stores.items())
        self._has_grown()
        cache.change({self.number(s): (*self._thinned(self.of(s), end), *new) for s in run.owners})

    def length(self, text: int, length: int) -> int:
        """The most of a text's first ``length`` tokens after which a state is kept."""
        kept = self._cache.history_of(text)
        return next((position + 1 for _, position in reversed(kept) if position < length), 0)

    def can_keep(self, seq: int, length: int) -> bool:
        """Whether a state of the sequence's first ``length`` tokens is held."""
        newest = self._cache.history_of(seq)[-1:]
        return any(position < length for _, position in self.of(seq)[:1]) or any(
            position == length - 1 for _, position in newest
        )

    def adopt(self, text: int, seq: int, length: int) -> None:
        """Let a sequence continue from a kept text's state after ``length`` tokens."""
        kept = tuple(each for each in self._cache.history_of(text) if each[1] < length)
        self._cache.change({seq: kept[-1:], self.number(seq): kept})

    def held(self) -> int:
        """How many rows are held so, those that a step under way has given up included."""
        return self._cache.rows.held(self._cache.n_seq_max)

    def _has_grown(self) -> None:
        """See to it that states are given up when the step is over: within it they may be needed again."""
        if not self.grown:
            self._cache.journal.set(self, "grown", True)
            self._cache.journal.after_commit(self._cache.journal.run, self._trim)

    def _trim(self) -> None:
        """Give up states until the spare rows are free again."""
        self._cache.journal.set(self, "grown", False)
        states = self._cache.states
        while len(_rows(states, self._cache.n_seq_max)) > self.limit:
            text = self._oldest(states)
            if text is not None:
                states[text] = states[text][:-1]
            else:
                text = max((s for s in states if s >= self._first), key=lambda s: len(states[s]))
                states[text] = states[text][1::2]
            self._cache.change({text: states[text]})

    # What the index needs of sequences

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Keep the states of ``src`` at boundaries before ``p1``, and the one at it, as text ``dst``."""
        kept = [each for each in self.of(src) if each[1] < p1]
        end = [each for each in self._cache.history_of(src) if each[1] == p1 - 1]
        if end and end[0] not in kept and self.held() < self.rows:
            kept.append(end[0])
        later = [each for each in self.of(src) if each[1] >= p1]
        self._has_grown()
        self._cache.change({
            dst: self._thinned(kept, p1),
            self.number(src): self._thinned(kept, p1) + tuple(later),
        })  # fmt: skip

    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        """Give up what stands for more than ``p0`` tokens."""
        kept = self._cache.history_of(seq)
        self._cache.change({seq: kept[: bisect_left(kept, p0, key=lambda each: each[1])]})

    def _spacing_at(self, length: int) -> int:
        """The spacing of a text of so many tokens."""
        spacing = self._spacing
        while length >= spacing * (MOST + 1):
            spacing *= 2
        return spacing

    def _thinned(self, kept: History | list[tuple[int, int]], length: int) -> History:
        """Those that a text of ``length`` tokens keeps: at multiples of its spacing, and the latest ends."""
        spacing = self._spacing_at(length)
        ends = [position for _, position in kept if (position + 1) % self._spacing][-ENDS:]
        return tuple(each for each in kept if (each[1] + 1) % spacing == 0 or each[1] in ends)

    def _oldest(self, states: dict[int, History]) -> int | None:
        """The text whose last state was not used for the longest time."""
        block, oldest = self.index.config.block, []
        for text in self.index:
            kept = states.get(text.seq, ())
            if kept and kept[-1][1] >= max(text.pins, default=0):
                used = text.used[min(kept[-1][1] // block, len(text.used) - 1)]
                oldest.append((used, text.seq))
        return min(oldest)[1] if oldest else None


def _rows(states: dict[int, History], first: int) -> set[int]:
    """The rows that sequences from ``first`` on have."""
    return {row for seq, kept in states.items() if seq >= first for row, _ in kept}
