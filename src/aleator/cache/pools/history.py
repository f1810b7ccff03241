"""A sequence's states in a recurrent pool: which rows hold them, and at which positions they were taken."""

from __future__ import annotations

from collections.abc import Callable

from aleator.cache.pools.pool import END
from aleator.core.errors import CannotRewind, ParameterError

History = tuple[tuple[int, int], ...]
"""(row, position) of a sequence's states, oldest first."""


def rewound(history: History, p0: int, seq: int, rollback: int) -> History:
    """What is left of a sequence's states without position ``p0`` and later ones.

    Args:
        history: of the sequence; not empty.
        p0: 0: nothing is left.
        seq: the sequence, for the message.
        rollback: how many tokens it can be rewound by, for the message.

    Raises:
        CannotRewind: no state before ``p0`` is held; names the oldest legal position.

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

    Args:
        history: of the sequence; not empty.
        p0: the first position that moves.
        p1: behind the last.
        move: gives the new position.
        name: the argument that says how positions move, for the message.
        seq: the sequence, for the message.

    Raises:
        ParameterError: the newest position would not lie in [0, 2^31 - 1).

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
