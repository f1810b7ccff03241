"""A cache in parts: one pool of cells for layers that see everything, and pools that follow it.

The first pool knows every position of every sequence; beside it stand a pool of window layers, or one of
recurrent states, or both.  A sequence lives in all of them, and an operation changes all or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aleator.cache.cell_tensors import CellTensors
from aleator.cache.journal import atomic
from aleator.cache.kv_cache import KVCache, LayerShape
from aleator.cache.plan import Part, Plan
from aleator.cache.prefix import Match, PrefixConfig, PrefixIndex
from aleator.cache.recurrent import RecurrentCache, RecurrentCheckpoint
from aleator.cache.recurrent_step import RecurrentBatch
from aleator.cache.step import MicroBatch
from aleator.cache.window import WindowBatch, WindowCache, WindowCheckpoint
from aleator.core.errors import CacheError, CannotRewind, CannotShift, Corrupt, ParameterError


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
    """One micro-batch in every pool.

    Attributes:
        base: its cells in the first pool.
        window: its cells in the window pool, if there is one.
        recurrent: its states, if there are any.

    """

    __slots__ = ("base", "recurrent", "window")

    def __init__(
        self, base: MicroBatch, window: WindowBatch | None, recurrent: RecurrentBatch | None
    ) -> None:
        self.base, self.window, self.recurrent = base, window, recurrent

    @property
    def positions(self) -> npt.NDArray[np.int32]:
        """int32 [T]."""
        return self.base.positions

    @property
    def tokens(self) -> slice | npt.NDArray[np.int64]:
        """Which tokens of the batch these are."""
        return self.base.tokens

    @property
    def wanted(self) -> npt.NDArray[np.int64]:
        """Which of them want logits, counted from the start of the micro-batch."""
        return self.base.wanted

    def tensors(self) -> CellTensors:
        """The first pool's cells for layers that compute with torch."""
        return self.base.tensors()


class HybridCache(KVCache):
    """A KV cache and the pools that follow it, with the same verbs and handles.

    What would leave a window layer without a key that the next token must see, or a recurrent layer without
    its state, is refused: CannotRewind, with the oldest legal position, or CannotShift.

    Args:
        layers: layers that see everything; there may be none.
        n_cells: capacity in tokens, of the first pool.
        window: the pool of window layers; its ``n_seq_max`` is this one's plus ``prefix.texts``.
        recurrent: the pool of recurrent layers, made with the same ``prefix``.
        prefix: see :class:`KVCache`; a text is found as far as every pool can go on from it.
        options: the others of :class:`KVCache`.

    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        n_cells: int,
        *,
        window: WindowCache | None = None,
        recurrent: RecurrentCache | None = None,
        prefix: PrefixConfig | None = None,
        **options: Any,
    ) -> None:
        policy = options.get("policy", "unified")
        if window is not None and window.policy != policy:
            raise ParameterError(
                "policy", f"policy={policy!r}, and {window.policy!r} in window layers"
            )
        if options.get("n_pos_per_embd", 1) != 1:
            raise ParameterError("n_pos_per_embd", "n_pos_per_embd=4 is for caches of one pool")
        super().__init__(layers, n_cells, prefix=prefix, **options)
        self.window, self.recurrent = window, recurrent
        for pool in self.followers:
            pool.join(self.journal)
        if prefix is not None:
            self.prefix = PrefixIndex(
                prefix, self.journal, _Owners(self), self.n_seq_max, self._serves
            )
            if window is not None:
                window.index = self.prefix
            if recurrent is not None:
                if recurrent.kept is None:
                    raise ParameterError("recurrent", "recurrent: make it with the same prefix")
                recurrent.kept.index = self.prefix

    def prepare(self, plan: Plan) -> None:
        """As :meth:`KVCache.prepare`, in every pool."""
        super().prepare(plan)
        if self.window is not None:
            self.window.apply_shifts()

    def carried_out(self, plan: Plan) -> Iterator[HybridBatch]:
        """As :meth:`KVCache.carried_out`, in every pool."""
        for part in plan.parts:
            yield self._everywhere(plan, part)

    def _everywhere(self, plan: Plan, part: Part) -> HybridBatch:
        base = self._apply(plan, part)
        seqs, owners = plan.seqs[part.tokens], plan.owners[part.tokens]
        window = recurrent = None
        if self.window is not None:
            window = self.window.place(base.positions, seqs, owners, plan.causal)
        if self.recurrent is not None:
            recurrent = self.recurrent.place(base.positions, owners)
        return HybridBatch(base, window, recurrent)

    @property
    def rewindable(self) -> int:
        """Tokens of one micro-batch by which a sequence can be rewound at least."""
        least: int = super().rewindable
        return least if self.recurrent is None else min(least, self.recurrent.rewindable)

    @property
    def followers(self) -> list[Any]:
        """The pools beside the first one."""
        return [pool for pool in (self.window, self.recurrent) if pool is not None]

    @property
    def pools(self) -> list[Any]:
        """The pools whose states make up this one's."""
        return [self, *self.followers]

    @property
    def bytes_k(self) -> int:
        """Bytes allocated for keys in every pool; see :attr:`RecurrentCache.bytes_k`."""
        return super().bytes_k + sum(int(pool.bytes_k) for pool in self.followers)

    @property
    def bytes_v(self) -> int:
        """Bytes allocated for values in every pool; see :attr:`RecurrentCache.bytes_v`."""
        return super().bytes_v + sum(int(pool.bytes_v) for pool in self.followers)

    def require_complete(self) -> None:
        """Raise Corrupt, of a state that was read, unless every pool holds what the next tokens see."""
        try:
            self._require_complete()
        except _Forgotten as error:
            raise Corrupt(
                -1, f"its {error.layers} lack what follows from the others: {error}"
            ) from None

    def addresses(self) -> list[int]:
        """As :meth:`KVCache.addresses`, of the first pool's layers and then of the others'."""
        return super().addresses() + [at for pool in self.followers for at in pool.addresses()]

    def check(self) -> None:
        """Raise an error if the bookkeeping of a pool contradicts itself, or that of another."""
        super().check()
        for pool in self.followers:
            pool.check()
        self._require_complete()

    def oldest_rewind(self, seq: int) -> int:
        """The lowest position, but 0, that ``seq_rm(seq, position, -1)`` can rewind to."""
        self._check("seq", seq)
        oldest = 0
        if self.window is not None and (gone := self.window.missing(self, seq)) >= 0:
            oldest = gone + self.window.window
        if self.recurrent is not None:
            oldest = max(oldest, self.recurrent.oldest_rewind(seq))
        return oldest

    def checkpoint(self, seq: int) -> HybridCheckpoint:
        """Copy what the window and recurrent layers hold of a sequence: little, beside the rest."""
        self._check("seq", seq)
        length = self.cells.seq_pos_max(seq) + 1
        if length == 0:
            raise ParameterError("seq", f"sequence {seq} is empty: there is nothing to keep")
        return HybridCheckpoint(
            seq,
            length,
            None if self.window is None else self.window.checkpoint(seq),
            None if self.recurrent is None else self.recurrent.checkpoint(seq),
        )

    def restore(self, seq: int, checkpoint: HybridCheckpoint) -> None:
        """Rewind a sequence to a checkpoint of it, however far that is.

        Positions up to the checkpoint must be as they were then.

        Raises:
            CannotRewind: the first pool does not hold them any more.
            ParameterError: a checkpoint of another kind of cache.

        """
        self._check("seq", seq)
        if (checkpoint.window is None) != (self.window is None) or (
            checkpoint.recurrent is None
        ) != (self.recurrent is None):
            raise ParameterError("checkpoint", "checkpoint: it is of a cache with other pools")
        if self.window is not None and checkpoint.window is not None:
            self.window.check_checkpoint(checkpoint.window)

        def change() -> None:
            self._cut(seq, checkpoint.length)
            if self.window is not None and checkpoint.window is not None:
                self.window.restore_window(seq, checkpoint.window)
            if self.recurrent is not None and checkpoint.recurrent is not None:
                self.recurrent.restore(seq, checkpoint.recurrent)
            self._edited([seq], checkpoint.length)

        self._all_or_none(change)

    def rewind_to_followers(self, seq: int) -> None:
        """Within a step, cut a sequence where the pools beside the first end, whose states were read."""
        length = 1 + max(int(pool.seq_pos_max(seq)) for pool in self.followers)
        self._cut(seq, length)
        for mark in self._marks:
            if mark.seq == seq and mark.length > length:
                self.journal.set(mark, "valid_to", min(mark.valid_to, length))

    def _cut(self, seq: int, length: int) -> None:
        """Leave the first pool a sequence's first ``length`` positions."""
        if not self.cells.seq_runs(seq, length - 1, length):
            raise CannotRewind(
                f"sequence {seq} does not hold position {length - 1}, at which the checkpoint was taken, "
                "any more"
            )
        self.cells.seq_rm(seq, length, -1)

    # llama.cpp's verbs

    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> bool:
        """Remove positions of a sequence (-1: of every one) in every pool; True.

        Raises:
            CannotRewind: the next token would miss what has left a window, or a state that is not held.

        """
        try:
            self._all_or_none(
                lambda: super(HybridCache, self).seq_rm(seq, p0, p1),
                lambda: [pool.seq_rm(seq, p0, p1) for pool in self.followers],
            )
        except CannotRewind:
            if seq == -1:
                raise
            # Whichever pool refused, the position that all of them allow.
            raise self._refused(_Forgotten(seq, max(p0, 0), ""), False, None) from None
        return True

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Let ``dst`` own what ``src`` has in a range too, in every pool.

        Raises:
            CannotRewind: the next token of ``dst`` would miss what has left a window, or a state that is not
                held.
            ParameterError: a recurrent pool copies beginnings of sequences only, into empty ones.

        """
        states = self.recurrent
        if states is not None and src != dst:
            self._check("dst", dst)
            if self.cells.seq_cells(dst):
                raise ParameterError(
                    "dst",
                    f"sequence {dst} is not empty, and states cannot be mixed: seq_rm it first",
                )

        def follow() -> None:
            if self.window is not None:
                self.window.seq_cp(src, dst, p0, p1)
            if (
                states is not None and p0 <= 0 <= p1 and src != dst
            ):  # a beginning: copy, then rewind
                states.seq_cp(src, dst)
                try:
                    states.seq_rm(dst, p1, -1)
                except CannotRewind:
                    raise _Forgotten(dst, p1, "recurrent layers") from None
            elif states is not None:
                states.seq_cp(src, dst, p0, p1)

        copy = super().seq_cp
        self._all_or_none(lambda: copy(src, dst, p0, p1), follow, source=src)

    def seq_keep(self, seq: int) -> None:
        """Remove every other sequence, and what is kept."""
        self._all_or_none(
            lambda: super(HybridCache, self).seq_keep(seq),
            lambda: [pool.seq_keep(seq) for pool in self.followers],
        )

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Add ``delta`` to the positions in a range, in every pool.

        Raises:
            CannotShift: the next token would see positions that have left a window.

        """
        self._all_or_none(
            lambda: super(HybridCache, self).seq_add(seq, p0, p1, delta),
            lambda: [pool.seq_add(seq, p0, p1, delta) for pool in self.followers],
            shift=True,
        )

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Divide the positions in a range by ``divisor``, in every pool; CannotShift as ``seq_add``."""
        self._all_or_none(
            lambda: super(HybridCache, self).seq_div(seq, p0, p1, divisor),
            lambda: [pool.seq_div(seq, p0, p1, divisor) for pool in self.followers],
            shift=True,
        )

    @atomic
    def unshare(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        """Give a sequence copies of the cells in a range that others own too, in every pool.

        Raises:
            CacheFull: no cells for the copies.
            CannotShift: its recurrent state is another sequence's too.

        """
        super().unshare(seq, p0, p1)
        if self.window is not None:
            self.window.unshare(seq, p0, p1)
        states = self.recurrent
        if states is not None and self.cells.seq_cells(seq):
            for other in range(self.n_seq_max):
                if other != seq and states.same_cells(seq, other):
                    raise CannotShift(
                        f"sequences {seq} and {other} share a recurrent state: decode one of them first"
                    )

    def seq_pos_min(self, seq: int) -> int:
        """The lowest position that every pool holds, or -1 if the sequence is empty."""
        lowest = super().seq_pos_min(seq)
        return max([lowest, *(int(pool.seq_pos_min(seq)) for pool in self.followers)])

    @atomic
    def clear(self, data: bool = True) -> None:
        """Free every cell; with ``data`` also zero what is stored."""
        super().clear(data)
        for pool in self.followers:
            pool.clear(data)

    def _serves(self, text: int, length: int) -> int:
        """The most of a kept text's first ``length`` tokens that every pool can go on from."""
        while length:
            before = length
            if self.recurrent is not None and self.recurrent.kept is not None:
                length = self.recurrent.kept.length(text, length)
            if self.window is not None:
                length = self.window.serves(self, text, length)
            if length == before or self.recurrent is None:
                break
        return length

    @atomic
    def adopt(self, seq: int, match: Match) -> None:
        """Let an empty sequence own what was found, at positions 0 to ``match.length`` - 1."""
        super().adopt(seq, match)
        if match.length and match.text is not None:
            if self._serves(match.text.seq, match.length) != match.length:
                raise CacheError("what was matched is not kept any more: match again")
            if self.window is not None:
                self.window.cells.seq_cp(match.text.seq, seq, 0, match.length)
            if self.recurrent is not None and self.recurrent.kept is not None:
                self.recurrent.kept.adopt(match.text.seq, seq, match.length)

    def _all_or_none(
        self, *changes: Callable[[], object], shift: bool = False, source: int | None = None
    ) -> None:
        """Make changes in all pools; refuse them if a next token would not see what it should.

        ``source``: the sequence whose oldest position to report, if not the one that would miss something.
        """
        try:
            self.journal.run(self._together, changes)
        except _Forgotten as error:
            raise self._refused(error, shift, source) from None

    def _together(self, changes: tuple[Callable[[], object], ...]) -> None:
        for change in changes:
            change()
        self._require_complete()

    def _require_complete(self) -> None:
        for seq in range(self.n_seq_max):
            position = self.cells.seq_pos_max(seq) + 1
            if self.recurrent is not None and self.recurrent.seq_pos_max(seq) != position - 1:
                raise _Forgotten(seq, position, "recurrent layers")
            if self.window is None:
                continue
            ahead = self.window.cells.seq_pos_max(seq) >= position
            if ahead or (position and not self.window.complete(self, seq, position)):
                raise _Forgotten(seq, position, "window layers")

    def _refused(self, error: _Forgotten, shift: bool, source: int | None) -> CacheError:
        what = (
            f"the next token of sequence {error.seq}, at position {error.position}, needs what its window or "
            "recurrent layers do not hold any more"
        )
        if shift:
            return CannotShift(
                f"{what}: shift more at once, or create the context with swa_full=True"
            )
        oldest = self.oldest_rewind(error.seq if source is None else source)
        return CannotRewind(
            f"{what}: the oldest legal position is {oldest}, or 0 to remove all of it", oldest
        )


class _Forgotten(CacheError):
    """What the next token of a sequence sees is not held by these ``layers``."""

    def __init__(self, seq: int, position: int, layers: str) -> None:
        super().__init__(f"sequence {seq} cannot go on at position {position}")
        self.seq, self.position, self.layers = seq, position, layers


class _Owners:
    """Sequences beyond the numbered ones, which keep texts in every pool."""

    def __init__(self, cache: HybridCache) -> None:
        self._cache = cache

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Let ``dst`` own what ``src`` has."""
        self._cache.cells.seq_cp(src, dst, p0, p1)
        if self._cache.window is not None:
            self._cache.window.cells.seq_cp(src, dst, p0, p1)
        if self._cache.recurrent is not None and self._cache.recurrent.kept is not None:
            self._cache.recurrent.kept.seq_cp(src, dst, p0, p1)

    def seq_rm(self, seq: int, p0: int, p1: int) -> None:
        """Let ``seq`` leave."""
        self._cache.cells.seq_rm(seq, p0, p1)
        if self._cache.window is not None:
            self._cache.window.cells.seq_rm(seq, p0, p1)
        if self._cache.recurrent is not None and self._cache.recurrent.kept is not None:
            self._cache.recurrent.kept.seq_rm(seq, p0, p1)
