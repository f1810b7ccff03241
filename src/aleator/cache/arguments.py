"""Arguments of the verbs that every cache has, checked before anything changes."""

from __future__ import annotations

from typing import NoReturn

from aleator.core.errors import NotCopyable, ParameterError
from aleator.core.integers import exact, integer, integer_in

END = 2**31 - 1
"""Above every position."""


def check_sequence(name: str, seq: object, n_seq_max: int) -> None:
    """Raise ParameterError unless ``seq`` is the id of a sequence, an integer in [0, n_seq_max)."""
    number = exact(seq)
    if number is None:
        raise ParameterError(
            name,
            f"{name} must be an integer in [0, {n_seq_max}), not {seq!r}: it is a sequence's id",
        )
    if not 0 <= number < n_seq_max:
        raise ParameterError(
            name,
            f"{name} must lie in [0, {n_seq_max}), not {number}: create the context "
            "with a larger n_seq_max for more sequences",
        )


def check_sequence_or_all(name: str, seq: object, n_seq_max: int) -> None:
    """The check of :func:`check_sequence`, but -1 stands for every sequence."""
    if exact(seq) != -1:
        check_sequence(name, seq, n_seq_max)


def position_range(p0: object, p1: object) -> tuple[int, int]:
    """Positions [p0, p1): p0 < 0 is 0, p1 < 0 is infinity, and so is what no position reaches."""
    first, end = integer("p0", p0), integer("p1", p1)
    return min(max(first, 0), END), END if end < 0 else min(end, END)


def checked_delta(delta: object) -> int:
    """Return how far positions move, an integer in (-2^31, 2^31)."""
    return integer_in("delta", delta, 1 - 2**31, 2**31 - 1)


def checked_divisor(divisor: object) -> int:
    """Return what positions are divided by, an integer in [1, 2^31)."""
    return integer_in("divisor", divisor, 1, 2**31 - 1)


class Uncopyable:
    """Base of what holds a cache's memory: ``copy``, ``deepcopy`` and ``pickle`` are refused by name."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise NotCopyable: copies and pickles are made through this."""
        raise NotCopyable(type(self).__name__)
