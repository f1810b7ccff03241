"""Regular expressions that a text must not match: the lengths of their matches and what these begin with.

RE2 (the package google-re2, BSD licence) compiles and searches them, in linear time.  It provides neither the
lengths nor the beginnings, so expressions that it has accepted are parsed again here.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import ModuleType
from typing import Any

from aleator.core.errors import ParameterError
from aleator.core.json_text import loads
from aleator.core.parameter import check_unicode
from aleator.core.records import dataclass

Expressions = tuple[tuple[str, float], ...]
"""Type of ``banned_regex``: expressions, each with the probability that a match is banned."""

MAX_MATCH_BYTES = 512
"""Most bytes of a match of an expression, since this much text may be held back."""
MAX_EXPRESSIONS, MOST_CHARACTERS, MOST_PROBABILITIES = 512, 1000, 4
"""Most expressions, characters of one expression, and different probabilities below 1."""
MOST_SIZE, MEMORY = 20_000, 8 << 20
"""Most RE2 instructions of all expressions together; bytes that RE2 may use for a search, enough for these."""
NAME = "banned_regex"


@dataclass(frozen=True)
class Part:
    """What a part of an expression matches."""

    whole: str  # An equivalent expression whose flags apply only to itself
    # An expression for proper prefixes of its matches at the end of a text, the empty one included
    begun: str
    shortest: int  # Characters of the shortest match
    longest: float  # An upper bound of the bytes of its longest match
    looks_back: bool = False  # Whether it depends on preceding text
    looks_on: bool = False  # Whether it depends on following text


_FLAGS = re.compile(r"\(\?([imsU-]*)\)")
_OPEN = re.compile(r"\((?:\?(?:P?<[^>]*>|([imsU-]*):))?")
_CLASS = re.compile(r"\[\^?\]?(?:\[:[^\]]*:\]|\\.|[^\]\\])*\]", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:[pP](?:\{[^}]*\}|.)|x(?:\{[^}]*\}|..)|[0-7]{1,3}|.)", re.DOTALL)
_CHARACTER = re.compile(r".", re.DOTALL)
_REPEAT = re.compile(r"(?:([*+?])|\{(\d+)(,?)(\d*)\})\??")
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|\Z)|\\.", re.DOTALL)
_WIDE = re.compile(r"\[\^|\\(?![dswnrtfv])\w|\[:\^|[^\0-\x7f]", re.DOTALL)
"""Finds that a class may have characters of several bytes."""
_ANCHOR = re.compile(r"\^|\\A")
"""Finds that an expression may depend on where the text begins."""
_ENDLESS = float("inf")
_OVER = r"\z"
"""In ``begun`` where the text may end: with an empty text there RE2 compiles it in quadratic time."""


class _Reader:
    """Parses an expression that RE2 has accepted, so without checks."""

    def __init__(self, source: str) -> None:
        self._text = _QUOTED.sub(_unquoted, source)
        self._at = 0

    def alternatives(self, flags: frozenset[str] = frozenset()) -> Part:
        """Parse up to the end of the group."""
        ways: list[list[Part]] = [[]]
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._take("|"):
                ways.append([])
            elif found := self._found(_FLAGS):
                flags = _changed(flags, found[1])
            else:
                ways[-1].append(self._repeated(flags))
        self._take(")")
        return any_of([_sequence(way) for way in ways])

    def _repeated(self, flags: frozenset[str]) -> Part:
        part = self._one(flags)
        found = self._found(_REPEAT)
        if found is None:
            return part
        sign, low, comma, high = found.groups()
        least = int(low) if low else int(sign == "+")
        most = int(high) if high else (_ENDLESS if comma or sign in ("*", "+") else least)
        most = 1 if sign == "?" else most
        begun = _OVER if most == 0 else f"(?:{part.whole}){_times(0, most - 1)}(?:{part.begun})"
        longest = most * part.longest if most and part.longest else 0
        whole = f"(?:{part.whole}){_times(least, most)}"
        return Part(whole, begun, least * part.shortest, longest, part.looks_back, part.looks_on)

    def _one(self, flags: frozenset[str]) -> Part:
        if group := self._found(_OPEN):
            return self.alternatives(_changed(flags, group[1] or ""))
        if found := self._found(_CLASS):
            wide = 4 if _WIDE.search(found[0]) else 1
            return _atom(found[0], max(wide, 3) if "i" in flags else wide, flags.intersection("i"))
        if found := self._found(_ESCAPE):
            return _escaped(found[0], flags)
        found = self._found(_CHARACTER)
        char = found[0] if found else ""
        if char == ".":
            return _atom(char, 4, flags.intersection("s"))
        if char in "^$":
            return Part(
                _flagged(char, flags.intersection("m")), _OVER, 0, 0, char == "^", char == "$"
            )
        return _literal(char, flags)

    def _found(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found

    def _take(self, char: str) -> bool:
        found = self._text.startswith(char, self._at)
        self._at += found
        return found


def _unquoted(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else "".join(_escape(char) for char in found[1])


def _escape(char: str) -> str:
    return "\\" + char if char in r"\.+*?()|[]{}^$" else char


def _changed(flags: frozenset[str], change: str) -> frozenset[str]:
    on, _, off = change.partition("-")
    return flags.union(on).difference(off)


def _flagged(text: str, flags: Iterable[str]) -> str:
    on = "".join(sorted(flags))
    return f"(?{on}:{text})" if on else text


def _atom(text: str, longest: int, flags: Iterable[str] = ()) -> Part:
    """A single character."""
    return Part(_flagged(text, flags), _OVER, 1, longest)


def _literal(char: str, flags: frozenset[str]) -> Part:
    n = len(char.encode())
    if "i" in flags:  # K matches the Kelvin sign, and s the long s
        n = 3 if char in "kKsS" else n if char.isascii() else 4
    return _atom(_escape(char), n, flags.intersection("i"))


def _escaped(text: str, flags: frozenset[str]) -> Part:
    kind = text[1]
    if kind == "C":
        raise ValueError(r"\C is a part of a character: write (?s:.)")
    if kind in "bBAz":
        return Part(text, _OVER, 0, 0, kind != "z", kind != "A")
    if kind in "pPx" or kind in "DSW" or kind.isdigit():
        return _atom(text, 4, flags.intersection("i"))
    return _atom(text, 3 if "i" in flags and kind == "w" else 1, flags.intersection("i"))


def _times(least: float, most: float) -> str:
    return f"{{{least},{'' if most == _ENDLESS else most}}}"


def _sequence(items: Sequence[Part]) -> Part:
    """Consecutive parts."""
    begun = items[-1].begun if items else _OVER
    for part in reversed(items[:-1]):
        begun = f"{part.begun}|{part.whole}(?:{begun})"
    return Part(
        "".join(part.whole for part in items),
        begun,
        sum(part.shortest for part in items),
        sum(part.longest for part in items),
        any(part.looks_back for part in items),
        any(part.looks_on for part in items),
    )


def any_of(parts: Sequence[Part]) -> Part:
    """Alternatives."""
    return Part(
        f"(?:{'|'.join(part.whole for part in parts)})",
        f"(?:{'|'.join(part.begun for part in parts)})",
        min(part.shortest for part in parts),
        max(part.longest for part in parts),
        any(part.looks_back for part in parts),
        any(part.looks_on for part in parts),
    )


def _re2() -> ModuleType:
    try:
        import re2  # optional
    except ImportError:
        raise ParameterError(
            f"{NAME} needs the package google-re2: pip install 'aleator[regex]'"
        ) from None
    module: ModuleType = re2
    return module


def compiled(expression: str, memory: int = MEMORY) -> Any:
    """Compile an expression with RE2; ValueError says why RE2 rejects it."""
    module = _re2()
    options = module.Options()
    options.max_mem, options.log_errors, options.never_capture = memory, False, True
    try:
        made = module.compile(expression, options)
        module.purge()  # its cache would keep the last 128
        return made
    except module.error as error:
        said = error.args[0]
        raise ValueError(
            said.decode(errors="replace") if isinstance(said, bytes) else said
        ) from None


def read(source: str) -> tuple[Part, int]:
    """Parse an expression; return what it matches, and its number of RE2 instructions.

    Raises:
        ParameterError: RE2 rejects it; or a match may be empty, or longer than :data:`MAX_MATCH_BYTES` bytes.
    """
    where = f"{NAME}={source!r:.80}"
    check_unicode(NAME, source)
    if len(source) > MOST_CHARACTERS:
        raise ParameterError(
            NAME, f"{where} has {len(source)} characters: give at most {MOST_CHARACTERS}"
        )
    try:
        size = compiled(source, MEMORY // 4).programsize
        part = _Reader(source).alternatives()
    except ValueError as error:
        raise ParameterError(
            NAME, f"{where}: {error}; write it as RE2 reads it (docs/chat.md)"
        ) from None
    except RecursionError:
        raise ParameterError(NAME, f"{where} has too many groups within groups") from None
    if part.longest > MAX_MATCH_BYTES:
        many = "any number of" if part.longest == _ENDLESS else f"{part.longest}"
        raise ParameterError(
            NAME,
            f"{where}: a match may have {many} bytes, and so much text would be held back: repeat at most so "
            f"often that there are {MAX_MATCH_BYTES}, as in {{0,20}} in place of * (other characters than "
            "ASCII count four)",
        )
    if part.shortest == 0:
        raise ParameterError(
            NAME, f"{where}: an empty text matches it: let it have one character at least"
        )
    return part, size


def banned_expressions(value: Any) -> Expressions:
    """Read ``banned_regex``: a text, a mapping of regex to probability, or several of these; JSON too."""
    if isinstance(value, str | Mapping):
        value = [value]
    if not isinstance(value, Iterable):
        raise _wrong(value)
    made = tuple(dict.fromkeys(map(_with_probability, value)))
    searchers(made)  # raises for invalid ones
    return made


def _with_probability(given: Any) -> tuple[str, float]:
    if isinstance(given, str) and given.startswith('{"'):
        with suppress(ValueError):  # it is not JSON but an expression
            given = loads(given)
    if isinstance(given, Mapping) and given.keys() <= {"regex", "probability"}:
        given = given.get("regex"), given.get("probability", 1.0)
    source, probability = (
        given if isinstance(given, tuple | list) and len(given) == 2 else (given, 1.0)
    )
    if not isinstance(source, str):
        raise _wrong(given)
    number = isinstance(probability, int | float) and not isinstance(probability, bool)
    if not (number and 0 < probability <= 1):
        raise ParameterError(
            f"{NAME}: probability={probability!r:.40} is out of range: give a number above 0, up to 1 "
            "(default: 1)"
        )
    return source, float(probability)


def _wrong(value: Any) -> ParameterError:
    return ParameterError(
        f'{NAME}={value!r:.80}: give a regular expression, {{"regex": ..., "probability": 0.5}}, or a list of '
        "these",
    )


class Searcher:
    """Searches text for the matches of some expressions, each of which is banned with ``probability``.

    Attributes:
        longest: Bytes of the longest match, including following text that it depends on.
        looks: Whether a match depends on what stands around it.
    """

    def __init__(self, parts: Sequence[Part], probability: float) -> None:
        part = any_of(parts)
        self.probability, self.longest = probability, int(part.longest) + part.looks_on
        self.looks, self._looks_on = part.looks_back or part.looks_on, part.looks_on
        self._anchored = bool(_ANCHOR.search(part.whole))
        self._expression, self._whole = part.whole, compiled(part.whole)
        begun = f"{part.begun}|{part.whole}" if part.looks_on else part.begun
        self._begun = compiled(f"(?:{begun}){_OVER}")

    def matches(self, text: bytes, at: int, since: int, over: bool) -> Iterator[tuple[int, int]]:
        """Yield where matches begin and end, leftmost first, from ``at`` on, without overlaps.

        Matches decided by the text before ``since`` are left out.  ``over``: the text ends here; if not, a
        match that depends on following text counts once that text is there.
        """
        last = len(text) - (self._looks_on and not over)
        while at <= last and (found := self._whole.search(text, at, last)):
            start, at = found.span()
            if at + self._looks_on > since:
                yield start, at

    def open(self, text: bytes, at: int) -> int:
        """The first place from ``at`` on where a match may still begin; the text's end if there is none."""
        _, n = codecs.utf_8_decode(text, "ignore", False)  # the rest is an incomplete character
        found = self._begun.search(text[:n], at) if at <= n else None
        return int(found.start()) if found else n

    def before(self, last: bytes) -> bytes:
        """What represents the last byte of a text, or its absence, in matches that look at preceding text."""
        if not self.looks or (not last and self._anchored):
            return b""
        word = last.isalnum() or last == b"_"
        return b"a" if word else last if last == b"\n" else b" "

    def within(self, pieces: Sequence[bytes], last: bytes) -> list[int]:
        """Indices of the texts that match after a byte, whatever follows."""
        if not self.looks:
            return _with_match(self._whole, pieces)
        # All at once, each after a mark and what represents the byte; texts with incomplete characters, and
        # those at the beginning of the text, one by one.
        last = self.before(last)
        mark, more = b"\1" + last, "(?s:.)" if self._looks_on else ""
        search = compiled(f"{mark.decode()}(?s:.)*?{self._expression}{more}")
        found = set(_with_match(search, [mark + piece for piece in pieces]))
        alone = [i for i, piece in enumerate(pieces) if not last or not _is_text(piece)]
        for i in alone:
            if next(self.matches(last + pieces[i], len(last), len(last), over=False), None):
                found.add(i)
        return sorted(found)


def _with_match(search: Any, pieces: Sequence[bytes]) -> list[int]:
    """Indices of the texts in which ``search`` finds something."""
    text, ends = b"\xff".join(pieces), [0]  # cannot be part of a match
    for piece in pieces:
        ends.append(ends[-1] + len(piece) + 1)
    made: list[int] = []
    i = 0
    for found in search.finditer(text):
        while ends[i + 1] <= found.start():
            i += 1
        if not made or made[-1] != i:
            made.append(i)
    return made


def _is_text(piece: bytes) -> bool:
    if piece.isascii():
        return True
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


@lru_cache(maxsize=8)
def searchers(expressions: Expressions) -> tuple[Searcher, ...]:
    """Searchers for expressions, one for each probability.

    Raises:
        ParameterError: there are too many, or together they are too large; or as for :func:`read`.
    """
    if len(expressions) > MAX_EXPRESSIONS:
        raise ParameterError(
            f"{NAME} has {len(expressions)} expressions: give at most {MAX_EXPRESSIONS}, or join some by |"
        )
    groups: dict[float, list[Part]] = {}
    left = MOST_SIZE
    for source, probability in expressions:
        part, size = read(source)
        left -= size
        if left < 0:
            raise _too_large()
        groups.setdefault(probability, []).append(part)
    if len(groups.keys() - {1.0}) > MOST_PROBABILITIES:
        raise ParameterError(
            f"{NAME} has more than {MOST_PROBABILITIES} probabilities below 1: give fewer"
        )
    try:
        return tuple(Searcher(parts, probability) for probability, parts in groups.items())
    except ValueError:
        raise _too_large() from None


def _too_large() -> ParameterError:
    return ParameterError(
        f"{NAME}: together the expressions are larger than {MOST_SIZE} of RE2's instructions: give fewer, or "
        "repeat less"
    )
