"""The pool of recurrent layers, which hold a sequence as one state: convolution windows and state spaces.

A *row* holds the state of every layer after one token, and never changes once a step is over.  A sequence is
a list of rows, newest last: the state to continue from, preceded by those of up to ``rollback`` earlier
tokens.  Sequences share rows, so a fork copies nothing, and a failed step leaves the old rows in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from aleator.cache.batches import Cuts, Tokens, bits_of, checked_positions, owner_bits
from aleator.cache.devices import Device, checked_devices
from aleator.cache.journal import Journal
from aleator.cache.options import CacheOptions, checked
from aleator.cache.pools.kept_states import KeptStates
from aleator.cache.pools.pool import Pool
from aleator.cache.pools.recurrent_rows import (
    History,
    RecurrentBatch,
    RecurrentCheckpoint,
    RecurrentPlan,
    RecurrentShape,
    Run,
    StateRows,
    own_rows,
    relabelled,
    rewound,
    row_bytes,
)
from aleator.cache.prefix_index import PrefixIndex
from aleator.core.arrays import Int32s, UInt64s
from aleator.core.errors import CacheError, CannotShift, InvalidBatch, ParameterError
from aleator.core.forwarded import forwarded
from aleator.core.integers import integer_in


class RecurrentPool(Pool):
    """The states of a :class:`aleator.cache.RecurrentCache`; ``kept_rows`` are for cached prefixes.

    Attributes:
        states: the bookkeeping: which sequences hold which rows.
        rows: the states themselves; ``conv`` and ``ssm`` are its lists.
        keeper: the states of cached prefixes; None if they are not cached.
    """

    def __init__(
        self,
        layers: Sequence[RecurrentShape],
        *,
        n_seq_max: int = CacheOptions.n_seq_max,
        rollback: int = CacheOptions.n_rollback,
        device: object = "cpu",
        kept_rows: int = 0,
        architecture: str = "",
        n_layers: int | None = None,
    ) -> None:
        n_seq_max = checked("n_seq_max", n_seq_max)
        rollback = integer_in("rollback", rollback, 0, 4096)
        self.n_seq_max, self.rollback = n_seq_max, rollback
        self.architecture = architecture
        self.n_layers = len(layers) if n_layers is None else n_layers
        self.kept_rows = integer_in("kept_rows", kept_rows, 0, 2**31 - 1)
        n_rows = own_rows(n_seq_max, rollback) + kept_rows
        devices = checked_devices(device, len(layers))
        try:
            self.rows = StateRows(layers, n_rows, devices)
        except (RuntimeError, MemoryError) as error:
            raise ParameterError(
                "n_seq_max",
                f"the recurrent states do not fit: {n_seq_max} sequences with rollback {rollback} need "
                f"{n_rows * row_bytes(layers) / 2**20:,.0f} MiB on "
                f"{', '.join(dict.fromkeys(map(str, devices)))}; use fewer sequences or a "
                "smaller n_rollback",
            ) from error
        self.conv, self.ssm = self.rows.conv, self.rows.ssm
        self.journal, self.states = Journal(), self.rows.states
        self.journal.enlist(self.states)
        self.keeper: KeptStates | None = None
        self.texts: PrefixIndex | None = None

    def join(self, journal: Journal) -> None:
        journal.enlist(self.states)
        self.journal = journal

    n_streams = 1  # all sequences share one
    version: int = forwarded("states.version", "A number that differs after every change of a row.")
    rewindable: int = forwarded("rollback", "The number of last tokens that can always be removed.")

    @property
    def sides(self) -> list[tuple[Device, int, int]]:
        parts = zip(self.rows.devices, self.conv, self.ssm, strict=True)
        return [(device, conv.nbytes, ssm.nbytes) for device, conv, ssm in parts]

    def addresses(self) -> list[int]:
        """Memory addresses, which change only if a nested step needs more rows than there are."""
        return self.rows.addresses()

    def check(self) -> None:
        self.states.check()
        for seq, history in self.states.book().items():
            if seq < self.n_seq_max and len(history) > self.rollback + 1:
                raise AssertionError("a history is too long")
            if history[0][1] < 0 or any(a[1] >= b[1] for a, b in pairwise(history)):
                raise AssertionError("a history is not in order")

    # Plan and step

    def plan(self, batch: Tokens, cuts: Cuts) -> RecurrentPlan:
        """Plan a batch in its own order: a micro-batch may hold any tokens, and no cut hinders a rewind."""
        if not cuts.causal:
            raise ParameterError("causal_attn=False: a state knows no later tokens")
        n = len(batch.positions)
        if n == 0:
            raise InvalidBatch(-1, "the batch is empty: add at least one token")
        given = checked_positions(batch.positions, batch.sequences, self, self.n_seq_max)
        positions = np.array(given, dtype=np.int32)
        owners = owner_bits(batch, (self.n_seq_max + 63) // 64, self.n_seq_max)
        outputs = np.array(batch.outputs(), dtype=np.int64)
        size = min(cuts.n_ubatch, cuts.n_batch)
        parts = tuple(slice(at, min(at + size, n)) for at in range(0, n, size))
        return RecurrentPlan(positions, owners, outputs, parts, self.version)

    def same_cells(self, a: int, b: int) -> bool:
        """Whether two sequences continue from the same state."""
        return self.newest_row(a) == self.newest_row(b)

    def prepare(self, plan: RecurrentPlan) -> None:
        if plan.version != self.version:
            raise CacheError("the cache has changed since the plan was made: plan again")

    def micro_batches(self, plan: RecurrentPlan) -> Iterator[RecurrentBatch]:
        for part in plan.parts:
            low, high = np.searchsorted(plan.outputs, (part.start, part.stop))
            outputs = plan.outputs[low:high] - part.start
            positions = plan.positions[part]
            runs = Placement(self).runs(positions, plan.owners[part])
            yield RecurrentBatch(self.conv, self.ssm, runs, positions, part, outputs)

    def place(
        self, positions: Int32s, seqs: Int32s, owners: UInt64s, causal: bool = True
    ) -> RecurrentBatch:
        return RecurrentBatch(
            self.conv, self.ssm, Placement(self).runs(positions, owners), positions
        )

    # Cached prefixes

    def hold(self, seq: int, text: int, length: int) -> None:
        if self.keeper is not None:
            self.keeper.hold(seq, text, length)

    def shorten(self, text: int, length: int) -> None:
        if self.keeper is not None:
            self.keeper.shorten(text, length)

    def holds(self, seq: int, length: int) -> bool:
        return self.keeper is not None and self.keeper.holds(seq, length)

    def usable_length(self, text: int, length: int) -> int:
        return 0 if self.keeper is None else self.keeper.usable_length(text, length)

    def reuse_prefix(self, text: int, seq: int, length: int) -> None:
        if self.keeper is not None:
            self.keeper.reuse_prefix(text, seq, length)

    # Verbs

    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        changes: dict[int, History] = {}
        for each in [seq] if seq != -1 else range(self.n_seq_max):
            history = self.states.history(each)
            if history and p0 <= history[-1][1] < p1:
                changes[each] = rewound(history, p0, each, self.rollback)
                if self.keeper is not None:
                    at = self.keeper.of(each)
                    changes[self.keeper.number(each)] = tuple(m for m in at if m[1] < p0)
        self.states.change(changes)

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Let ``dst`` continue from the whole state of ``src`` instead of its own; no data moves."""
        history = self.states.history(src)
        if history and (p0 > 0 or p1 <= history[-1][1]):
            raise ParameterError(
                "p1" if p0 == 0 else "p0",
                f"positions [{p0}, {p1}) are a part of sequence {src}, and its state has no parts: copy "
                "all of it with p0=0 and p1=-1",
            )
        self.states.change({dst: history} | self._at_boundaries(dst, src))

    def seq_keep(self, seq: int) -> None:
        own = (seq, self.keeper.number(seq) if self.keeper is not None else seq)
        self.states.change({each: () for each in self.states.book() if each not in own})

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Add ``delta`` to the newest position, if it is in the range, for all that share the state."""
        sharers = self._sharers(seq)
        self._relabel("delta", sharers, seq, p0, p1, lambda position: position + delta)

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Divide the newest position, if it is in the range, rounding down, for all that share the state."""
        sharers = self._sharers(seq)
        self._relabel("divisor", sharers, seq, p0, p1, lambda position: position // divisor)

    def relabel(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Do ``seq_add`` for one sequence only, even if others share its state."""
        self._relabel("delta", [seq], seq, p0, p1, lambda position: position + delta)

    def _sharers(self, seq: int) -> list[int]:
        row = self.newest_row(seq)
        return [each for each in range(self.n_seq_max) if self.newest_row(each) == row]

    def _relabel(
        self, name: str, seqs: list[int], seq: int, p0: int, p1: int, move: Callable[[int], int]
    ) -> None:
        if not p0 <= self.seq_pos_max(seq) < p1:
            return
        changes: dict[int, History] = {}
        for each in seqs:
            history = self.states.history(each)
            changes[each] = relabelled(history, p0, p1, move, name, each)
            changes |= self._at_boundaries(each)
        self.states.change(changes)

    def seq_pos_min(self, seq: int) -> int:
        """The sequence's newest position, as its state cannot be split; -1 if it is empty."""
        return self.seq_pos_max(seq)

    def seq_pos_max(self, seq: int) -> int:
        newest = self.states.newest(seq)
        return newest[1] if newest else -1

    def unshare(self, seq: int, p0: int, p1: int) -> None:
        """Refuse with CannotShift if another sequence has the same state."""
        if self.newest_row(seq) < 0:
            return
        for other in self._sharers(seq):
            if other != seq:
                raise CannotShift(
                    f"sequences {seq} and {other} share a recurrent state: decode one of them first"
                )

    def clear(self, data: bool) -> None:
        self.states.change(dict.fromkeys(self.states.book(), ()))
        if data:
            self.journal.after_commit(self._zero_free)

    def _zero_free(self) -> None:
        self.rows.zero(self.states.free_rows(self.states.n_rows))

    # What rewinds and shifts are possible

    def oldest_rewind(self, seq: int) -> int:
        history = self.states.history(seq)
        return history[0][1] + 1 if history else 0

    def can_shift(self) -> bool:
        """Whether ``seq_add`` and ``seq_div`` are possible: always, as positions are only labels."""
        return True

    def has_exactly(self, seq: int, n: int) -> bool:
        return self.seq_pos_max(seq) == n - 1

    def checkpoint(self, seq: int) -> RecurrentCheckpoint:
        row, position = self.states.history(seq)[-1]
        return self.rows.copied(row, position)

    def restore(self, seq: int, mark: RecurrentCheckpoint) -> None:
        """Let the sequence continue from a checkpoint, of this pool or one of equal layers."""
        self.rows.check_checkpoint(mark)
        self.put((seq,), mark.position, mark.conv + mark.ssm)

    def put(self, seqs: Sequence[int], position: int, values: Sequence[Any]) -> None:
        """Let sequences share a given state: each layer's convolution, then each layer's state."""
        if not self.states.free_rows(1):  # a step has changed all rows, and the old ones are kept
            self.states.change(dict.fromkeys(seqs, ()))
        (row,) = self.rows.free_rows(1)
        self.rows.put(row, values)
        changes: dict[int, History] = dict.fromkeys(seqs, ((row, position),))
        for seq in seqs:
            changes |= self._at_boundaries(seq)
        self.states.change(changes)

    # Rows

    def newest_row(self, seq: int) -> int:
        """The row from which a sequence continues, or -1."""
        newest = self.states.newest(seq)
        return newest[0] if newest else -1

    def _at_boundaries(self, seq: int, like: int | None = None) -> dict[int, History]:
        """The change that gives a sequence the states at boundaries of another's text, or of none."""
        if self.keeper is None:
            return {}
        return {self.keeper.number(seq): () if like is None else self.keeper.of(like)}


class Placement:
    """Makes the runs of one micro-batch, and the changes of states that result."""

    def __init__(self, pool: RecurrentPool) -> None:
        self._pool = pool
        self._runs: list[Run] = []
        self._open: dict[int, Run] = {}  # by sequence

    def runs(self, positions: Int32s, owners: UInt64s) -> list[Run]:
        """The runs of T tokens; ``owners``: uint64 [T, words], the sequences of each as bits."""
        for token, (position, group) in enumerate(
            zip(positions.tolist(), _owner_sets(owners), strict=True)
        ):
            run = self._open.get(group[0])
            if run is None or run.owners != group:
                # The runs of these sequences in this micro-batch end here.
                self._finish([r for s in group if (r := self._open.get(s))])
                run = Run(self._pool.newest_row(group[0]), group, [], [], [])
                self._open.update(dict.fromkeys(group, run))
            run.tokens.append(token)
            run.positions.append(position)
        self._finish(list(self._open.values()))
        return self._runs

    def _finish(self, ended: list[Run]) -> None:
        """Keep the states after the runs' last tokens, in rows that no history needs.

        Only runs that ended earlier have read a row that is free now, so in the order of ending none is
        overwritten too early.
        """
        pool, depth = self._pool, self._pool.rollback + 1
        for run in {id(run): run for run in ended}.values():
            for seq in run.owners:
                del self._open[seq]
            kept = min(depth, len(run.tokens))
            histories = {seq: pool.states.history(seq) for seq in run.owners}
            histories = {s: h[max(0, len(h) + kept - depth) :] for s, h in histories.items()}
            pool.states.change(histories)
            first = len(run.tokens) - kept
            rows = pool.rows.free_rows(kept)
            new = tuple(zip(rows, run.positions[first:], strict=True))
            pool.states.change({seq: history + new for seq, history in histories.items()})
            run.stores.extend((first + i, row) for i, row in enumerate(rows))
            if pool.keeper is not None:
                pool.keeper.take(run)
            self._runs.append(run)


def _owner_sets(owners: UInt64s) -> list[tuple[int, ...]]:
    """The sequences of each token."""
    if len(owners) == 1 and owners.shape[1] == 1:  # a step of one text, without NumPy's calls
        word = int(owners[0, 0])
        return [tuple(bit for bit in range(word.bit_length()) if word >> bit & 1)]
    known: dict[bytes, tuple[int, ...]] = {}
    sets = []
    for row in bits_of(owners):
        key = row.tobytes()
        if key not in known:
            known[key] = tuple(np.flatnonzero(row).tolist())
        sets.append(known[key])
    return sets
