"""Which cells the tokens of a micro-batch attend to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


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
