"""What epsilon and eta cut-offs share: keep what is probable enough, and never less than the best."""

from __future__ import annotations

import numpy as np

from aleator.core.numerics import Row, run_length


def keep_probable(row: Row, bound: int, min_keep: int) -> None:
    """Keep the run of weights that reach ``bound``, NumPy reference.

    Where the run is shorter than ``min_keep``, or empty, the first ``min_keep`` of the order stay, at least
    one, with all that tie with the last of them.
    """
    length, least = run_length(row, bound), min(max(1, min_keep), len(row))
    if length < least:
        last = row.logits[row.order()[least - 1]]
        length = int(np.count_nonzero(row.logits >= last))
    row.keep_first(length)
