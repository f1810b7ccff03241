"""What a recurrent pool knows of states: the rows that hold a sequence's, and the runs that make them."""

from __future__ import annotations

from collections.abc import Callable

from aleator.cache.arguments import END
from aleator.core.errors import CannotRewind, ParameterError
from aleator.core.records import dataclass

History = tuple[tuple[int, int], ...]
"""(row, position) of a sequence's states, oldest first."""


@dataclass
class Run:
    """Tokens of one micro-batch that continue one state, one after the other.

    Attributes:
        source: the row to start from, or -1 for the state of nothing.
        tokens: indices in the micro-batch, ascending.
        stores: (index in ``tokens``, row): after which tokens the state is kept, and where.

    """

    source: int
    owners: tuple[int, ...]
    tokens: list[int]
    positions: list[int]
    stores: list[tuple[int, int]]


def rewound(history: History, p0: int, seq: int, rollback: int) -> History:
    """What is left of a sequence's states, of which there are some, without position ``p0`` and later ones.

    CannotRewind, which names the oldest legal position, if no state before ``p0`` is held and that is not 0.
    """
    if p0 == 0:
        return ()
    kept = tuple(state for state in history if state[1] < p0)
    if not kept:
        oldest = history[0][1] + 1
        raise CannotRewind(
            f"sequence {seq} cannot be rewound to position {p0}: the oldest legal position is {oldest}, "
            f"or 0 to remove all of it; create the context with a larger n_rollback (now {rollback})",
            oldest,
        )
    return kept


def relabelled(
    history: History, p0: int, p1: int, move: Callable[[int], int], name: str, seq: int
) -> History:
    """A sequence's states with other positions in [p0, p1), which the newest lies in.

    Older states stay as long as their positions are in the range, below those of later ones, and not below 0.
    ParameterError, which names the argument ``name``, if the newest position would not lie in [0, 2^31 - 1).
    """
    newest = history[-1][1]
    if not 0 <= move(newest) < END:
        raise ParameterError(
            name,
            f"{name}: position {newest} of sequence {seq} would become {move(newest)}; it must lie "
            "in [0, 2^31 - 1)",
        )
    moved: list[tuple[int, int]] = []
    for row, position in reversed(history):
        to = move(position)
        if not (p0 <= position < p1 and to >= 0 and (not moved or to < moved[-1][1])):
            break
        moved.append((row, to))
    return tuple(reversed(moved))
