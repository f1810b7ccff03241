"""Writes Python's regular expressions as JavaScript's (flag "u"), with Python's white space and words."""

from __future__ import annotations

import re
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

CATEGORIES = {
    sre.CATEGORY_SPACE: r"\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000",
    sre.CATEGORY_WORD: r"\p{L}\p{N}_",
    sre.CATEGORY_DIGIT: r"\p{Nd}",
}


def written(pattern: re.Pattern[str]) -> str:
    """The text of the expression; NotImplementedError for what none here has."""
    names = {number: name for name, number in pattern.groupindex.items()}
    text = _all(_parser.parse(pattern.pattern, pattern.flags), names)
    line_ends = (
        "." in text and not pattern.flags & re.DOTALL
    )  # JavaScript has more; "." itself is a number
    if pattern.flags & ~(re.UNICODE | re.DOTALL) or line_ends:
        raise NotImplementedError(f"flags of {pattern!r}")
    return text


def _all(tree: Any, names: dict[int, str]) -> str:
    return "".join(_one(kind, value, names) for kind, value in tree)


def _character(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{{{code:x}}}"


def _one(kind: Any, value: Any, names: dict[int, str]) -> str:
    match kind:
        case sre.LITERAL:
            return _character(value)
        case sre.NOT_LITERAL:
            return f"[^{_character(value)}]"
        case sre.ANY:
            return "."
        case sre.AT if value is sre.AT_END_STRING:
            return "$"
        case sre.IN:
            return f"[{''.join(_member(*each) for each in value)}]"
        case sre.BRANCH:
            return f"(?:{'|'.join(_all(each, names) for each in value[1])})"
        case sre.SUBPATTERN if value[0] is None and not value[1]:
            return f"(?:{_all(value[3], names)})"
        case sre.SUBPATTERN if not value[1]:
            name = f"?<{names[value[0]]}>" if value[0] in names else ""
            return f"({name}{_all(value[3], names)})"
        case sre.GROUPREF if value in names:
            return f"\\k<{names[value]}>"
        case sre.ASSERT | sre.ASSERT_NOT if value[0] == 1:
            return f"(?{'=' if kind is sre.ASSERT else '!'}{_all(value[1], names)})"
        case sre.MAX_REPEAT | sre.MIN_REPEAT:
            low, high, inner = value
            most = "" if high is sre.MAXREPEAT else high
            lazy = "?" if kind is sre.MIN_REPEAT else ""
            return f"(?:{_all(inner, names)}){{{low},{most}}}{lazy}"
    raise NotImplementedError(f"{kind} in a regular expression")


def _member(kind: Any, value: Any) -> str:
    match kind:
        case sre.NEGATE:
            return "^"
        case sre.LITERAL:
            return _character(value)
        case sre.RANGE:
            return f"{_character(value[0])}-{_character(value[1])}"
        case sre.CATEGORY if value in CATEGORIES:
            return CATEGORIES[value]
    raise NotImplementedError(f"{kind} in a class of a regular expression")
