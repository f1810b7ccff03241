"""Versions of the decoder's arithmetic (docs/numerics.md, part 2)."""

from __future__ import annotations

from collections.abc import Iterable

FIRST_VERSION = 2
"""The version of what names none."""

_CHANGED = {"BF16": 3}


def arithmetic_version(types: Iterable[str]) -> int:
    """The version of a model with matrices of these types: the newest that changed the bits of one of them.

    If it differs, equal weights and tokens may give other logits.
    """
    return max((_CHANGED.get(each, FIRST_VERSION) for each in types), default=FIRST_VERSION)
