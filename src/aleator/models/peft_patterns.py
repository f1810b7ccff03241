"""Settings of PEFT that differ by module: ``rank_pattern`` and ``alpha_pattern``.

Their keys are names of modules, ends of names, or regular expressions for these.  An expression comes from a
file, so it is matched here, in time that grows with its length and the name's alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from aleator.core.errors import UnsupportedModel
from aleator.models.files.fields import Fields

_NAME = re.compile(r"(\^?)([\w.]+)", re.ASCII)
_PART = re.compile(r"(\\[.d]|\[\^?[\w.-]+\]|[\w.^$])([*+?]?)|[()|]", re.ASCII)
"""A character of an expression with its quantifier, or what alternatives are written with."""
_LONGEST, _MOST, _MOST_EXPRESSIONS = 200, 4096, 64


class Patterns:
    """One setting by module."""

    def __init__(self, fields: Fields, key: str, largest: float) -> None:
        """Read the field ``key``, of numbers from ``-largest`` to ``largest``.

        Raises:
            FileFormatError: a value is no such number.
            UnsupportedModel: too many or too long ones, or an expression of a kind that is not matched here.
        """
        self._names: list[tuple[re.Pattern[str] | list[re.Match[str]], float]] = []
        values: dict[str, object] = fields.get(key, {})
        check_names(fields, key, values)
        if sum(not _NAME.fullmatch(text) for text in values) > _MOST_EXPRESSIONS:
            raise UnsupportedModel(
                f"{fields.path}: {key} has more than {_MOST_EXPRESSIONS} expressions: write out the modules' "
                "names"
            )
        for text in values:
            own = Fields(fields.path, values).number(text, -largest, largest)
            if _NAME.fullmatch(text):  # whose points stand for any character, as in PEFT
                self._names.append((re.compile(rf"(?:.*\.)?{text}"), own))
                continue
            parts = list(_PART.finditer(text))
            if not _readable(text, parts):
                raise UnsupportedModel(
                    f"{fields.path}: {key}: {text!r:.80} is read neither as a module's name or its end nor as "
                    r"an expression of characters, [], \d, \., (|), and *, + or ? after one of these: write "
                    "out the modules' names"
                )
            self._names.append((parts, own))

    def value(self, module: str, default: float) -> float:
        """The value of the first name or expression that fits the module, or without "^" an end of it."""
        for name, value in self._names:
            if _matches(name, module) if isinstance(name, list) else name.fullmatch(module):
                return value
        return default


def check_names(fields: Fields, key: str, names: Collection[object]) -> None:
    """Raise UnsupportedModel if the names of modules in the field ``key`` are too many or too long.

    FileFormatError: one is no string.
    """
    if len(names) > _MOST:
        raise UnsupportedModel(
            f"{fields.path}: {key} has {len(names)} entries, and at most {_MOST} are read: name modules by the "
            "ends of their names, which they share"
        )
    for name in names:
        if not isinstance(name, str):
            raise fields.error(
                key, f"{key} must be a list of names, and has a {type(name).__name__}"
            )
        if len(name) > _LONGEST:
            raise UnsupportedModel(
                f"{fields.path}: {key}: {name!r:.80} has {len(name)} characters, and names of at most "
                f"{_LONGEST} are read: give the end of the module's name"
            )


def _readable(text: str, parts: list[re.Match[str]]) -> bool:
    depth = 0
    for each in parts:
        depth += {"(": 1, ")": -1}.get(each[0], 0)
        if depth < 0 or (each[1] in ("^", "$") and each[2]):
            return False
        try:
            re.compile(each[1] or "")
        except re.error:  # such as [z-a]
            return False
    return depth == 0 and "".join(each[0] for each in parts) == text


def _matches(parts: list[re.Match[str]], module: str) -> bool:
    starts = {0} | {i + 1 for i, letter in enumerate(module) if letter == "."}
    return len(module) in _ends(parts[::-1], module, starts)


def _ends(left: list[re.Match[str]], text: str, starts: set[int]) -> set[int]:
    """Where alternatives that begin at ``starts`` may end; takes them and their ")" off the end of ``left``."""
    found: set[int] = set()
    here = starts
    while left and (part := left.pop())[0] != ")":
        if part[0] == "|":
            found, here = found | here, starts
        elif part[0] == "(":
            here = _ends(left, text, here)
        else:
            here = _repeated(part[1], part[2], text, here)
    return found | here


def _repeated(atom: str, quantifier: str, text: str, starts: set[int]) -> set[int]:
    if atom in ("^", "$"):
        return starts & {0 if atom == "^" else len(text)}
    fits = re.compile(atom, re.ASCII).match
    found = set(starts) if quantifier in ("*", "?") else set()
    here = starts
    while here := {i + 1 for i in here if i < len(text) and fits(text[i])} - found:
        found |= here
        if quantifier in ("", "?"):
            break
    return found
