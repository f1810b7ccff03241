"""Attributes that are those of a part."""

from __future__ import annotations

from operator import attrgetter
from typing import Any


def forwarded(path: str, doc: str) -> Any:
    """A property that reads the attribute at ``path``."""
    return property(attrgetter(path), doc=doc)
