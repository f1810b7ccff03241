"""Exact integers: which values count, and checks of their range.

``1.0``, ``"1"`` and ``True`` are not integers; NumPy's and torch's integers are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

import numpy as np

from aleator.core.arrays import Int32s
from aleator.core.errors import ParameterError

MAX_TOKEN = 2**24 - 1
"""The largest token id."""


def shared(a: Sequence[object], b: Sequence[object]) -> int:
    """The number of leading entries, such as token ids, that two sequences have in common."""
    n = min(len(a), len(b))
    return n if a[:n] == b[:n] else next((i for i in range(n) if a[i] != b[i]), n)


def exact(value: object) -> int | None:
    """Return ``value`` as an int if it is an integer of any kind, else None."""
    if type(value) is int:
        return value
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, SupportsIndex):
        return None
    try:
        return value.__index__()
    except TypeError:  # an array of several
        return None


def integer(name: str, value: object) -> int:
    """Return ``value`` as an int; ParameterError if it is not an integer."""
    number = exact(value)
    if number is None:
        raise ParameterError(f"{name} must be an integer, not {value!r}")
    return number


def integer_in(name: str, value: object, low: int, high: int) -> int:
    """Return ``value`` as an int in [low, high]; else ParameterError."""
    number = exact(value)
    if number is None or not low <= number <= high:
        raise ParameterError(f"{name} must {_allowed(low, high, number is None)}, not {value!r}")
    return number


UNBOUNDED = 2**63 - 1
"""The end of an unbounded range."""


def _allowed(low: int, high: int, inexact: bool) -> str:
    """The range in words; half open if its end is a large power of two."""
    if high >= UNBOUNDED:
        return f"be an integer, {low} or more" if inexact else f"be {low} or more"
    end = high + 1
    large = end >= 2**20 and end & high == 0
    interval = f"[{low}, 2^{end.bit_length() - 1})" if large else f"[{low}, {high}]"
    return f"be an integer in {interval}" if inexact else f"lie in {interval}"


def first_inexact(values: list[Any]) -> int | None:
    """Index of the first value that is not an integer; None if all are."""
    if set(map(type, values)) <= {int}:
        return None
    return next((i for i, value in enumerate(values) if exact(value) is None), None)


def token_ids(tokens: Iterable[Any], name: str = "tokens") -> Int32s:
    """Return token ids as int32 [n]; ParameterError unless they are a list of integers in [0, 2^31)."""
    try:
        array = np.asarray(tokens)
    except (ValueError, TypeError, OverflowError, RuntimeError):
        array = np.empty(())
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise ParameterError(
            f"{name} must be a list of token ids, which are integers, not {tokens!r:.60}"
        )
    if len(array) and not (array.min() >= 0 and array.max() < 2**31):
        wrong = int(array[(array < 0) | (array >= 2**31)][0])
        raise ParameterError(f"{name}: token ids must lie in [0, 2^31), not {wrong}")
    return array.astype(np.int32)
