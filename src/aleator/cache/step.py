"""A change of the cache that is taken back exactly if it fails, and the cells of one micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from aleator._native import seen_cells
from aleator.cache.cell_tensors import CellTensors
from aleator.cache.plan import Part, Plan, full
from aleator.cache.shift import settle
from aleator.core.errors import CacheError, CacheFull

if TYPE_CHECKING:
    from aleator.cache.kv_cache import KVCache
    from aleator.cache.sequence import Checkpoint


class Seen(NamedTuple):
    """Which cells T tokens attend to: lists in order of position, of which each sees a beginning.

    Attributes:
        cells: int32, the lists one after the other.
        start: int64, where each begins, and the end of the last.
        list: int32 [T], each token's list.
        counts: int64 [T], how many of its cells the token sees.
        deltas: int32, how far the listed cells' stored keys are behind them; None: nowhere.

    """

    cells: npt.NDArray[np.int32]
    start: npt.NDArray[np.int64]
    list: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    deltas: npt.NDArray[np.int32] | None


class MicroBatch:
    """The cells of one micro-batch of T tokens, on the host.

    Attributes:
        slots: int64 [T], the cell of each token.
        positions: int32 [T].
        seen: the cells each token attends to.
        tokens: which tokens of the batch these are.
        wanted: int64, which of them want logits, counted from the start of the micro-batch.
        sections: int32 [T, 4], (t, y, x, z) of each token; None where a position is one number.

    """

    __slots__ = ("_cache", "positions", "sections", "seen", "slots", "tokens", "wanted")

    def __init__(
        self,
        cache: KVCache,
        slots: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int32],
        seqs: npt.NDArray[np.int32],
        causal: bool = True,
        tokens: slice | npt.NDArray[np.int64] = slice(None),
        wanted: npt.NDArray[np.int64] | None = None,
        sections: npt.NDArray[np.int32] | None = None,
    ) -> None:
        self._cache, self.slots, self.positions = cache, slots, positions
        self.tokens, self.sections = tokens, sections
        self.wanted = np.arange(len(slots)) if wanted is None else wanted
        cells, keys = cache.cells, cache.key_positions
        keys[slots] = 0 if cache.k_storage == "raw" else positions
        yx = None if sections is None else np.ascontiguousarray(sections[:, 1:3])
        self.seen = Seen(*seen_cells(cells, positions, seqs, causal, keys, yx))

    def tensors(self) -> CellTensors:
        """The same for layers that compute with torch."""
        return CellTensors(self._cache, self)


class Step:
    """A change that is taken back, exactly, if the block under ``with`` raises anything at all.

    With a plan, iterating gives its micro-batches one after the other, placed in their cells::

        with cache.step(plan) as step:
            for part in step:
                rows = model(tokens[part.tokens], part.positions, part, part.wanted)

    Steps may stand within one another; the inner one's changes are then the outer one's too.
    """

    def __init__(self, cache: KVCache, plan: Plan | None = None) -> None:
        self._cache, self._plan = cache, plan
        self._undo: list[Callable[[], None]] = []
        self._cancelled = False
        self._outer: Step | None = None
        self._kept: npt.NDArray[np.bool_] | None = None  # cells whose rows this step has kept
        self._marks: list[tuple[Checkpoint, int]] = []

    def __enter__(self) -> Step:
        cache, plan = self._cache, self._plan
        if plan is not None and plan.version != cache.cells.version:
            raise CacheError("the cache has changed since the plan was made: plan again")
        self._outer = cache.current_step
        self._marks = [(mark, mark.valid_to) for mark in cache._marks]
        cache.cells.begin()
        try:
            cache.current_step = self
            if self._outer is None and cache.prefix is not None:
                cache.prefix.begin()
            if plan is not None:
                self.make_room(len(plan))
                self.apply_shifts()
        except BaseException:
            self._close(keep=False)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(keep=kind is None and not self._cancelled)

    def _close(self, keep: bool) -> None:
        cache, outer = self._cache, self._outer
        if keep:
            cache.cells.commit()
            if outer is not None:
                outer._undo += self._undo
            elif cache.prefix is not None:
                cache.prefix.commit()
        else:
            for undo in reversed(self._undo):
                undo()
            cache.cells.rollback()
            for mark, valid_to in self._marks:
                mark.valid_to = valid_to
            if outer is None and cache.prefix is not None:
                cache.prefix.rollback()
        cache.current_step = outer

    def __iter__(self) -> Iterator[MicroBatch]:
        plan = self._plan
        if plan is None:
            return
        for part in plan.parts:
            yield self._apply(plan, part)

    @property
    def nested(self) -> bool:
        """Whether it stands within another."""
        return self._outer is not None

    def cancel(self) -> None:
        """Take everything back at the end of the block, although nothing was raised."""
        self._cancelled = True

    def make_room(self, needed: int) -> None:
        """See to it that so many cells are free: kept texts go first, then CacheFull is raised."""
        cache = self._cache
        if needed <= cache.free:
            return
        free = cache.free
        while cache.prefix is not None and cache.prefix.evict_block():
            if needed <= cache.free:
                return
        raise CacheFull(needed, free, cache.free - free)

    def defrag_if_asked(self) -> None:
        """Fill the holes if ``do_defrag`` says so."""
        if self._cache.do_defrag:
            self._cache.do_defrag = False
            self._undo.append(lambda: setattr(self._cache, "do_defrag", True))
            self._cache.defrag()

    def preserve(self, cells: npt.NDArray[np.int64]) -> None:
        """Keep what these cells store now, for the case that the block raises."""
        cache = self._cache
        positions, rows = cache.key_positions[cells], cache.stored_rows
        if rows is not None:
            copied = rows.take(cells)

            def put_back() -> None:
                rows.put(cells, copied)
                cache.key_positions[cells] = positions

            self._undo.append(put_back)
            return
        kept = [
            (side, layer, index, side.take(layer, index))
            for side in (cache.keys, cache.values)
            for layer, device in enumerate(cache.devices)
            for index in (torch.from_numpy(cells).to(device),)
        ]

        def undo() -> None:
            for side, layer, index, rows in kept:
                side.put(layer, index, rows)
            cache.key_positions[cells] = positions

        self._undo.append(undo)

    def apply_shifts(self) -> None:
        """Settle pending shifts: see :mod:`aleator.cache.shift`."""
        if not self._cache.cells.has_shift:
            return
        undo = settle(self._cache)
        if undo is not None:
            self._undo.append(undo)
        self._cache.cells.clear_shifts()

    def find(
        self,
        positions: npt.NDArray[np.int32],
        owners: npt.NDArray[np.uint64],
        extras: npt.NDArray[np.int32] | None = None,
    ) -> npt.NDArray[np.int64]:
        """Give T tokens cells and return them, int64 [T]; raises CacheFull.

        ``extras``: int32 [T, 3], y, x and token id of each, if the cells keep them.
        """
        cache, n = self._cache, len(positions)
        try:
            return cache.cells.place(positions, owners, cache.contiguous, extras)
        except ValueError:
            raise full(cache, n, cache.free) from None

    def place(
        self,
        positions: npt.NDArray[np.int32],
        seqs: npt.NDArray[np.int32],
        owners: npt.NDArray[np.uint64],
        causal: bool = True,
    ) -> MicroBatch:
        """Give T tokens cells: ``seqs`` is each one's first sequence, ``owners`` all, as bits.

        ``causal``: a token sees its sequence's cells at positions not after its own, else all of them.
        """
        slots = self.find(positions, owners)
        self.keep_rows(slots)
        return MicroBatch(self._cache, slots, positions, seqs, causal)

    def _apply(self, plan: Plan, part: Part) -> MicroBatch:
        positions, owners, seqs = plan.positions, plan.owners, plan.seqs
        sections, extras = plan.sections, plan.extras
        at = part.tokens
        if len(part.slots) < len(plan) or not isinstance(at, slice):  # a part, or in another order
            positions, owners, seqs = positions[at], owners[at], seqs[at]
            if sections is not None and extras is not None:
                sections, extras = sections[at], extras[at]
        self._cache.cells.put(part.slots, positions, owners, extras)
        self.keep_rows(part.slots)
        return MicroBatch(
            self._cache,
            part.slots,
            positions,
            seqs,
            plan.causal,
            part.tokens,
            part.wanted,
            sections,
        )

    def keep_rows(self, slots: npt.NDArray[np.int64]) -> None:
        """Remember what cells stored that were used before: something else is about to be stored there."""
        cells = self._cache.cells.used_before(slots)
        if len(cells) == 0:
            return
        if self._kept is None:
            self._kept = np.zeros(self._cache.size, np.bool_)
        cells = cells[~self._kept[cells]]
        if len(cells):
            self.preserve(cells)
            self._kept[cells] = True
