"""Where the tokens of a batch will go, by micro-batches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aleator.core.records import dataclass


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """One micro-batch of a plan.

    Attributes:
        tokens: batch indices of its T tokens: a slice, or int64 [T].
        cell_ids: int64 [T], the cells they will have.
        wanted: int64, which of its tokens' logits are wanted, counted from its start.

    """

    tokens: slice | npt.NDArray[np.int64]
    cell_ids: npt.NDArray[np.int64]
    wanted: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """What :meth:`KVCache.plan` decided about a batch of T tokens.

    Attributes:
        positions: int32 [T].
        seqs: int32 [T], the sequence that each token attends as: its first, or last with ``causal=False``.
        owners: uint64 [T, words], all its sequences as bits.
        parts: the micro-batches, in the order in which they are computed.
        version: of the cells that the plan was made for; the plan is void after any change.
        rows: int64, for each wanted token in batch order its row in the concatenated parts; None: as they come.
        causal: whether a token sees only positions up to its own.
        sections: int32 [T, 4], (t, y, x, z) of each token, t as in ``positions``; None where a position is
            one number.
        extras: int32 [T, 3], what the cells keep of them: y, x and token id, -1 for an embedding.

    """

    positions: npt.NDArray[np.int32]
    seqs: npt.NDArray[np.int32]
    owners: npt.NDArray[np.uint64]
    parts: tuple[Part, ...]
    version: int
    rows: npt.NDArray[np.int64] | None
    causal: bool
    sections: npt.NDArray[np.int32] | None = None
    extras: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        """How many tokens, and so cells."""
        return len(self.positions)
