"""The steps that change pools: all of what is under ``with`` happens, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
import numpy.typing as npt

from aleator.cache.journal import Transaction
from aleator.cache.pools.attention import first_of
from aleator.cache.pools.pool import BatchT, PlanT, Pool

if TYPE_CHECKING:

    class _Transaction(Transaction, Generic[PlanT, BatchT]): ...

else:

    class _Transaction(Transaction):
        """Without Generic: nanobind-backend takes native types as an only base."""

        def __class_getitem__(cls, parameters: object) -> type:
            return cls


class Step(_Transaction[PlanT, BatchT]):
    """A change that is taken back, exactly, if the block under ``with`` raises anything at all.

    With a plan, iterating gives its micro-batches one after the other, placed::

        with cache.step(plan) as step:
            for part in step:
                rows = model(tokens[part.tokens], part.positions, part, part.wanted)

    Steps may stand within one another; the inner one's changes are then the outer one's too.
    """

    def __init__(self, pool: Pool[PlanT, BatchT, Any], plan: PlanT | None = None) -> None:
        super().__init__(pool.journal)
        self._pool, self._plan = pool, plan

    def _entered(self) -> None:
        if self._plan is not None:
            self._pool.prepare(self._plan)

    def __iter__(self) -> Iterator[BatchT]:
        return iter(()) if self._plan is None else self._pool.carried_out(self._plan)

    def place(
        self,
        positions: npt.NDArray[np.int32],
        seqs: npt.NDArray[np.int32],
        owners: npt.NDArray[np.uint64],
        causal: bool = True,
    ) -> BatchT:
        """Place tokens without a plan; see :meth:`Pool.place`."""
        return self._pool.place(positions, seqs, owners, causal)

    def make_room(self, needed: int) -> None:
        """Give up cached prefixes until ``needed`` cells are free, or raise CacheFull."""
        first_of(self._pool).make_room(needed)

    def find(
        self, positions: npt.NDArray[np.int32], owners: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int64]:
        """Give T tokens cells and return them, int64 [T]; raises CacheFull."""
        return first_of(self._pool).find(positions, owners)

    def apply_shifts(self) -> None:
        """Settle pending shifts; see :mod:`aleator.cache.rows.shift`."""
        self._pool.apply_shifts()
