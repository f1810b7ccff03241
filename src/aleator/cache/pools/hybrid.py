"""A pool in parts: cells for layers that see everything, and pools that follow them.

The first pool knows every position of every sequence; beside it stand a pool of window layers, or one of
recurrent states, or both.  A sequence lives in all of them, and an operation changes all or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from aleator.cache.batches import Cuts, Plan, Tokens
from aleator.cache.devices import Device
from aleator.cache.journal import Journal
from aleator.cache.options import END
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.pools.pool import Pool
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.recurrent_rows import RecurrentBatch, RecurrentCheckpoint
from aleator.cache.pools.window import WindowCheckpoint, WindowPool
from aleator.cache.rows.batch import MicroBatch, WindowBatch
from aleator.core.arrays import Int32s, UInt64s
from aleator.core.errors import CacheError, CannotRewind, CannotShift, Corrupt, ParameterError
from aleator.core.forwarded import forwarded
from aleator.core.records import dataclass

if TYPE_CHECKING:
    from aleator.cache.rows.tensors import CellTensors


@dataclass(frozen=True)
class HybridCheckpoint:
    """What a sequence's followers held when its next position was ``length``, copied."""

    seq: int
    length: int
    window: WindowCheckpoint | None
    recurrent: RecurrentCheckpoint | None

    @property
    def nbytes(self) -> int:
        """Bytes of the copies."""
        return sum(part.nbytes for part in (self.window, self.recurrent) if part is not None)


class HybridBatch:
    """One micro-batch in every pool that there is."""

    def __init__(
        self, base: MicroBatch, window: WindowBatch | None, recurrent: RecurrentBatch | None
    ) -> None:
        self.base, self.window, self.recurrent = base, window, recurrent
        self.positions, self.tokens, self.outputs = base.positions, base.tokens, base.outputs

    def tensors(self) -> CellTensors:
        """The first pool's cells for layers that compute with torch."""
        return self.base.tensors()


def parts_of(cells: Any) -> tuple[Any, WindowBatch | None, RecurrentBatch | None]:
    """A micro-batch's cells of layers that see everything, of those with windows, and states; None: no such."""
    if isinstance(cells, HybridBatch):
        return cells.base, cells.window, cells.recurrent
    return (None, None, cells) if isinstance(cells, RecurrentBatch) else (cells, None, None)


class Forgotten(CacheError):
    """What the next token of a sequence, at ``position``, sees is not held by ``layers``."""

    def __init__(self, seq: int, position: int, layers: str) -> None:
        super().__init__(f"sequence {seq} cannot go on at position {position}")
        self.seq, self.position, self.layers = seq, position, layers

    def rewind_error(self, oldest: int) -> CannotRewind:
        """The error of a rewind; positions from ``oldest`` on are legal."""
        return CannotRewind(
            f"{self._needs}: the oldest legal position is {oldest}, or 0 to remove all of it",
            oldest,
        )

    def shift_error(self) -> CannotShift:
        """The error of a shift."""
        return CannotShift(
            f"{self._needs}: shift more at once, or create the context with swa_full=True"
        )

    @property
    def _needs(self) -> str:
        return (
            f"the next token of sequence {self.seq}, at position {self.position}, needs what its window or "
            "recurrent layers do not hold any more"
        )


class HybridPool(Pool):
    """The pools of a :class:`aleator.cache.HybridCache`; the first may have no layers."""

    def __init__(
        self,
        first: AttentionPool,
        window: WindowPool | None = None,
        recurrent: RecurrentPool | None = None,
    ) -> None:
        if window is not None and window.policy != first.policy:
            raise ParameterError(f"policy={first.policy!r}, and {window.policy!r} in window layers")
        if first.n_pos_per_embd != 1:
            raise ParameterError("n_pos_per_embd=4 is for caches of one pool")
        self.first, self.window, self.recurrent = first, window, recurrent
        self.followers: list[Pool] = [pool for pool in (window, recurrent) if pool is not None]
        self.n_seq_max, self.architecture = first.n_seq_max, first.architecture
        self.texts = None
        self.journal = first.journal
        # Sequences that hold more in the first pool than in the others, for now; nobody goes on with them.
        self.incomplete: frozenset[int] = frozenset()
        for pool in self.followers:
            pool.join(self.journal)

    def join(self, journal: Journal) -> None:
        for pool in self.leaves:
            pool.join(journal)
        self.journal = journal

    @property
    def leaves(self) -> list[Pool]:
        return [self.first, *self.followers]

    version: int = forwarded("first.version", "Of the first pool, which changes with every other.")

    @property
    def sides(self) -> list[tuple[Device, int, int]]:
        return [each for pool in self.leaves for each in pool.sides]

    def addresses(self) -> list[int]:
        return [at for pool in self.leaves for at in pool.addresses()]

    def check(self) -> None:
        for pool in self.leaves:
            pool.check()
        self._require_complete()

    # Plan and step

    def plan(self, batch: Tokens, cuts: Cuts) -> Plan:
        return self.first.plan(batch, cuts)

    def prepare(self, plan: Plan) -> None:
        self.first.prepare(plan)
        for pool in self.followers:
            pool.apply_shifts()

    def micro_batches(self, plan: Plan) -> Iterator[HybridBatch]:
        for part in plan.parts:
            base = self.first.apply(plan, part)
            seqs, owners = plan.seqs[part.tokens], plan.owners[part.tokens]
            yield self._beside(base, seqs, owners, plan.causal)

    def place(
        self, positions: Int32s, seqs: Int32s, owners: UInt64s, causal: bool = True
    ) -> HybridBatch:
        base = self.first.place(positions, seqs, owners, causal)
        return self._beside(base, seqs, owners, causal)

    def _beside(self, base: MicroBatch, seqs: Int32s, owners: UInt64s, causal: bool) -> HybridBatch:
        at, window, recurrent = base.positions, None, None
        if self.window is not None:
            window = self.window.place(at, seqs, owners, causal)
        if self.recurrent is not None:
            recurrent = self.recurrent.place(at, seqs, owners, causal)
        return HybridBatch(base, window, recurrent)

    def apply_shifts(self) -> None:
        for pool in self.leaves:
            pool.apply_shifts()

    def defrag_if_asked(self) -> None:
        self.first.defrag_if_asked()

    # Cached prefixes

    def hold(self, seq: int, text: int, length: int) -> None:
        for pool in self.leaves:
            pool.hold(seq, text, length)

    def shorten(self, text: int, length: int) -> None:
        for pool in self.leaves:
            pool.shorten(text, length)

    def holds(self, seq: int, length: int) -> bool:
        """Whether the first pool holds a sequence's first ``length`` tokens, or ParameterError."""
        return self.first.holds(seq, length)

    def usable_length(self, text: int, length: int) -> int:
        while length:
            before = length
            if self.recurrent is not None:
                length = self.recurrent.usable_length(text, length)
            if self.window is not None:
                length = self.window.usable_beside(self.first, text, length)
            if length == before:
                break
        return length

    def reuse_prefix(self, text: int, seq: int, length: int) -> None:
        for pool in self.leaves:
            pool.reuse_prefix(text, seq, length)

    # Verbs

    def begin(self, seq: int) -> None:
        """Let the first pool have tokens of a sequence before the others do."""
        self.journal.set(self, "incomplete", self.incomplete | {seq})

    def complete(self, seq: int) -> None:
        """The others have them too, or nobody has; -1: of every sequence."""
        left = self.incomplete - {seq} if seq >= 0 else frozenset()
        self.journal.set(self, "incomplete", left)

    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        if p0 <= 0:
            self.complete(seq)
        try:
            self._all_or_none(lambda: [pool.seq_rm(seq, p0, p1) for pool in self.leaves])
        except CannotRewind:
            if seq == -1:
                raise
            # Whichever pool refused, the position that all of them allow.
            raise Forgotten(seq, p0, "").rewind_error(self.oldest_rewind(seq)) from None

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """With states: only a beginning, and only into an empty sequence."""
        states = self.recurrent
        if states is not None and self.first.cells.seq_cells(dst):
            raise ParameterError(
                "dst", f"sequence {dst} is not empty, and states cannot be mixed: seq_rm it first"
            )

        def change() -> None:
            self.first.seq_cp(src, dst, p0, p1)
            if self.window is not None:
                self.window.seq_cp(src, dst, p0, p1)
            if states is not None and p0 == 0:  # a beginning: copy, then rewind
                states.seq_cp(src, dst, 0, END)
                try:
                    states.seq_rm(dst, p1, END)
                except CannotRewind:
                    raise Forgotten(dst, p1, "recurrent layers") from None
            elif states is not None:
                states.seq_cp(src, dst, p0, p1)

        self._all_or_none(change, source=src)

    def seq_keep(self, seq: int) -> None:
        self.journal.set(self, "incomplete", self.incomplete & {seq})
        self._all_or_none(lambda: [pool.seq_keep(seq) for pool in self.leaves])

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        self._all_or_none(
            lambda: [pool.seq_add(seq, p0, p1, delta) for pool in self.leaves], shift=True
        )

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        self._all_or_none(
            lambda: [pool.seq_div(seq, p0, p1, divisor) for pool in self.leaves], shift=True
        )

    def seq_pos_min(self, seq: int) -> int:
        return max(pool.seq_pos_min(seq) for pool in self.leaves)

    def seq_pos_max(self, seq: int) -> int:
        return self.first.seq_pos_max(seq)

    def unshare(self, seq: int, p0: int, p1: int) -> None:
        for pool in self.leaves:
            pool.unshare(seq, p0, p1)

    def clear(self, data: bool) -> None:
        self.journal.set(self, "incomplete", frozenset())
        for pool in self.leaves:
            pool.clear(data)

    # What rewinds and shifts are possible

    def oldest_rewind(self, seq: int) -> int:
        oldest = 0
        if self.window is not None and (gone := self.window.missing(self.first, seq)) >= 0:
            oldest = self.window.leaves_at(gone)
        if self.recurrent is not None:
            oldest = max(oldest, self.recurrent.oldest_rewind(seq))
        return oldest

    @property
    def rewindable(self) -> int:
        return min(pool.rewindable for pool in self.leaves)

    def can_shift(self) -> bool:
        return all(pool.can_shift() for pool in self.leaves)

    def has_exactly(self, seq: int, n: int) -> bool:
        return self.first.has_exactly(seq, n)

    def checkpoint(self, seq: int) -> HybridCheckpoint:
        return HybridCheckpoint(
            seq,
            self.seq_pos_max(seq) + 1,
            None if self.window is None else self.window.checkpoint(seq),
            None if self.recurrent is None else self.recurrent.checkpoint(seq),
        )

    def restore(self, seq: int, mark: HybridCheckpoint) -> None:
        """Rewind a sequence to a checkpoint; positions up to it must be as they were then, or CannotRewind."""
        marks = [part for part in (mark.window, mark.recurrent) if part is not None]
        absent = [mark.window is None, mark.recurrent is None]
        if absent != [self.window is None, self.recurrent is None]:
            raise ParameterError("checkpoint: it is of a cache with other pools")
        if self.window is not None and mark.window is not None:
            self.window.check_checkpoint(mark.window)

        def change() -> None:
            self.cut(seq, mark.length)
            for pool, part in zip(self.followers, marks, strict=True):
                pool.restore(seq, part)

        self._all_or_none(change)

    def cut(self, seq: int, length: int) -> None:
        """Leave the first pool a sequence's first ``length`` positions; CannotRewind if it lacks the last."""
        if not self.first.cells.seq_runs(seq, length - 1, length):
            raise CannotRewind(
                f"sequence {seq} does not hold position {length - 1}, at which the checkpoint was taken, "
                "any more"
            )
        self.first.cells.seq_rm(seq, length, END)

    def rewind_to_followers(self, seq: int) -> None:
        """Cut a sequence where the followers end, whose states were read."""
        self.cut(seq, 1 + max(pool.seq_pos_max(seq) for pool in self.followers))

    def require_complete(self) -> None:
        try:
            self._require_complete()
        except Forgotten as error:
            raise Corrupt(
                -1, f"its {error.layers} lack what follows from the others: {error}"
            ) from None

    def _all_or_none(
        self, change: Callable[[], object], shift: bool = False, source: int | None = None
    ) -> None:
        """Make a change in all pools; refuse it if a next token would not see what it should.

        ``source``: the sequence whose oldest position to report, if not the one that would miss something.
        """
        try:
            self.journal.run(self._checked, change)
        except Forgotten as error:
            if shift:
                raise error.shift_error() from None
            seq = error.seq if source is None else source
            raise error.rewind_error(self.oldest_rewind(seq)) from None

    def _checked(self, change: Callable[[], object]) -> None:
        change()
        self._require_complete()

    def _require_complete(self) -> None:
        for seq in range(self.n_seq_max):
            if seq in self.incomplete:
                continue
            position = self.first.cells.seq_pos_max(seq) + 1
            if self.recurrent is not None and self.recurrent.seq_pos_max(seq) != position - 1:
                raise Forgotten(seq, position, "recurrent layers")
            if self.window is None:
                continue
            ahead = self.window.cells.seq_pos_max(seq) >= position
            if ahead or (position and not self.window.complete(self.first, seq, position)):
                raise Forgotten(seq, position, "window layers")
