"""States of recurrent layers at boundaries of a text, from which another text with the same prefix continues.

A state cannot be cut, so a prefix is usable only where a state was kept.  While a text is computed, the states
at multiples of a spacing are kept.  The spacing doubles as the text grows, so that a text has at most
:data:`MAX_SPACED` of them.  States at the ends of texts that were kept (a prompt's, an answer's) stay as well.
All are ordinary rows, which sequences and texts share.  Their number is fixed, as each costs as much as a
sequence; their positions follow from the text's length, not from micro-batches.

When rows run out, the last state goes first of the cached prefix whose end was unused for longest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from aleator.cache.pools.recurrent_rows import History, RecurrentShape, Run, StateRows, row_bytes
from aleator.cache.prefix_index import PrefixConfig, PrefixIndex, kept_texts

MAX_SPACED = 32
"""Most states of one text at multiples of its spacing; a long text has at least half as many."""
MAX_ENDS = 4
"""Further states of one text: the latest ends at which it was kept."""
FREE_ROWS = 8
"""Rows kept free for the states of one step, because states are only given up when the step is over."""


def kept_rows(prefix: PrefixConfig | None, n_seq_max: int, layers: Sequence[RecurrentShape]) -> int:
    """The number of rows for such states: as many as fit in ``prefix.bytes`` and can be used."""
    texts = kept_texts(prefix)
    most = 0 if prefix is None else prefix.bytes // max(1, row_bytes(layers))
    return min((texts + n_seq_max) * (MAX_SPACED + MAX_ENDS), most)


class KeptStates:
    """The states of cached prefixes, and of texts being computed that may become cached prefixes.

    Each list of states has a number: sequences have [0, n_seq_max), cached prefixes the numbers above.
    Above those, each sequence has one more number for the states at boundaries of its text.
    The states may take ``n_rows`` rows within a step, and a few less between steps.
    """

    def __init__(self, rows: StateRows, index: PrefixIndex, n_rows: int) -> None:
        self.rows, self.states, self.journal = rows, rows.states, index.journal
        self.index, self.n_rows = index, n_rows
        self._spacing = index.config.spacing
        self.limit = n_rows - min(FREE_ROWS, n_rows // 2)
        self._first = index.slots.stop
        self.grown = False  # whether rows were added since the last trim

    def number(self, seq: int) -> int:
        """The number of the list with the states at boundaries of a sequence's text."""
        return self._first + seq

    def of(self, seq: int) -> History:
        """(row, position) of the states at boundaries of a sequence's text, ascending."""
        return self.states.history(self._first + seq)

    def take(self, run: Run) -> None:
        """Make a run also keep its states at boundaries."""
        start, end = run.positions[0], run.positions[-1] + 1
        spacing = self._spacing_at(end)
        at = list(range(start // spacing * spacing + spacing, end + 1, spacing))
        if not at or end - start != len(run.tokens):
            return
        room = self.n_rows - self.held()
        while len(at) > room:
            at = at[1::2]
        stores = dict(run.stores)
        fresh = iter(self.rows.free_rows(len(at)))
        new = []
        for length in at:
            index = length - 1 - start
            row = stores.get(index)
            if row is None:
                row = stores[index] = next(fresh)
            new.append((row, length - 1))
        run.stores[:] = sorted(stores.items())
        self._has_grown()
        self.states.change(
            {self.number(s): (*self._thinned(self.of(s), end), *new) for s in run.owners}
        )

    def usable_length(self, text: int, length: int) -> int:
        """The longest prefix, of at most ``length`` tokens, after which a state of a text is kept."""
        kept = self.states.history(text)
        return next((position + 1 for _, position in reversed(kept) if position < length), 0)

    def holds(self, seq: int, length: int) -> bool:
        """Whether a state after the sequence's first ``length`` tokens is held."""
        newest = self.states.history(seq)[-1:]
        return any(position < length for _, position in self.of(seq)) or any(
            position == length - 1 for _, position in newest
        )

    def reuse_prefix(self, text: int, seq: int, length: int) -> None:
        """Let a sequence continue from a cached prefix's state after ``length`` tokens."""
        kept = tuple(each for each in self.states.history(text) if each[1] < length)
        self.states.change({seq: kept[-1:], self.number(seq): kept})

    def held(self) -> int:
        """The number of held rows, including those that the current step has given up."""
        return self.states.held(self.index.slots.start)

    def _has_grown(self) -> None:
        """Schedule a trim for the end of the step; within it states may be needed again."""
        if not self.grown:
            self.journal.set(self, "grown", True)
            self.journal.after_commit(self.journal.run, self._trim)

    def _trim(self) -> None:
        """Give up states until the spare rows are free again."""
        self.journal.set(self, "grown", False)
        states = self.states.book()
        while len(_rows(states, self.index.slots.start)) > self.limit:
            text = self._oldest(states)
            if text is not None:
                states[text] = states[text][:-1]
            else:
                text = max((s for s in states if s >= self._first), key=lambda s: len(states[s]))
                states[text] = states[text][1::2]
            self.states.change({text: states[text]})

    def hold(self, seq: int, text: int, length: int) -> None:
        """Keep for ``text`` the states of a sequence's first ``length`` tokens, including the last one."""
        kept = [each for each in self.of(seq) if each[1] < length]
        end = [each for each in self.states.history(seq) if each[1] == length - 1]
        if end and end[0] not in kept and self.held() < self.n_rows:
            kept.append(end[0])
        thinned = self._thinned(kept, length)
        later = tuple(each for each in self.of(seq) if each[1] >= length)
        self._has_grown()
        self.states.change({text: thinned, self.number(seq): thinned + later})

    def shorten(self, text: int, length: int) -> None:
        """Give up the states after more than ``length`` tokens."""
        kept = self.states.history(text)
        self.states.change({text: kept[: bisect_left(kept, length, key=lambda each: each[1])]})

    def _spacing_at(self, length: int) -> int:
        """The spacing of a text of ``length`` tokens."""
        spacing = self._spacing
        while length >= spacing * (MAX_SPACED + 1):
            spacing *= 2
        return spacing

    def _thinned(self, kept: History | list[tuple[int, int]], length: int) -> History:
        """The states that a text of ``length`` tokens keeps: at multiples of its spacing, and latest ends."""
        spacing = self._spacing_at(length)
        ends = [position for _, position in kept if (position + 1) % self._spacing][-MAX_ENDS:]
        return tuple(each for each in kept if (each[1] + 1) % spacing == 0 or each[1] in ends)

    def _oldest(self, states: dict[int, History]) -> int | None:
        """The text whose last state was unused for longest."""
        oldest = []
        for text in self.index.numbers():
            kept = states.get(text, ())
            if kept and kept[-1][1] >= self.index.pinned(text):
                oldest.append((self.index.used_at(text, kept[-1][1]), text))
        return min(oldest)[1] if oldest else None


def _rows(states: dict[int, History], first: int) -> set[int]:
    """The rows of sequences from number ``first`` on."""
    return {row for seq, kept in states.items() if seq >= first for row, _ in kept}
