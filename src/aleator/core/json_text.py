"""JSON that others wrote: nested within one bound, as Python's own bound differs between its versions."""

from __future__ import annotations

import json
import re
from typing import Any

MOST_LEVELS = 128
"""Most objects and lists within one another."""
_OTHERS = re.compile(r'(?:[^\[\]{}"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")++', re.DOTALL)
"""Strings, and what is no bracket."""
_PART = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"|[\[{\]}]', re.DOTALL)


class NestingError(ValueError):
    """A text has too many levels; ``field`` is the outermost name that has them, "" if there is none."""

    def __init__(self, field: str) -> None:
        what = f"{field!r:.80}" if field else "JSON"
        super().__init__(f"{what} is nested more than {MOST_LEVELS} levels deep: give fewer")
        self.field = field


def loads(text: str | bytes, **hooks: Any) -> Any:
    """``json.loads``, also of bytes; NestingError, a ValueError, for more than MOST_LEVELS levels."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    check_levels(text)
    return json.loads(text, **hooks)


def check_levels(text: str) -> None:
    """Check that a JSON text has at most MOST_LEVELS levels; NestingError otherwise."""
    if text.count("[") + text.count("{") <= MOST_LEVELS:
        return
    brackets = _OTHERS.sub("", text).replace("{", "[").replace("}", "]")
    for _ in range(MOST_LEVELS):  # the innermost level of all
        brackets = brackets.replace("[]", "")
        if not brackets:
            return
    # Too many levels, or they do not end.
    depth, name = 0, None
    for part in _PART.finditer(text):
        mark = text[part.start()]
        if mark == '"':
            name = part if depth == 1 else name
        elif mark in "]}":
            depth -= 1
        elif depth == MOST_LEVELS:
            raise NestingError(name[1] if name and text.lstrip()[0] == "{" else "")
        else:
            depth += 1
