"""Micro-batches and checkpoints of a pool in parts: one of each part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aleator.cache.pools.recurrent_batch import RecurrentBatch
from aleator.cache.pools.recurrent_rows import RecurrentCheckpoint
from aleator.cache.pools.window import WindowCheckpoint
from aleator.cache.rows.batch import MicroBatch, WindowBatch
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
