"""The table of ``phases``: sampling parameters for parts of a text, and the marks between these parts.

A checked table is a tuple of pairs, which :func:`dict` and a record's JSON turn back into a mapping.  It holds
each phase's name with its own pairs, including its marks ``begin`` and ``end``; and ``histories`` and
``start``, which hold for all phases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from aleator.core.errors import ParameterError
from aleator.core.integers import MAX_TOKEN, exact
from aleator.core.json_text import loads
from aleator.core.parameter import Parameter, check_unicode, nearest
from aleator.samplers.presets import check_preset

ANSWER, THINKING, TOOL = "answer", "thinking", "tool"
"""The phase outside all others, and those whose marks a chat knows from its template."""
MARKS = ("begin", "end")
PRESET = "preset"
"""The key of a phase's preset, which sets all parameters that the phase does not set."""
OF_ALL = ("histories", "start")
HISTORIES = ("shared", "own")
MAX_MARK_BYTES = 128
"""Maximum length of a mark, in bytes."""
MAX_PHASES = 16
"""Maximum number of phases of a text."""
OF_TEXTS = (
    "seed", "numerics", "grammar", "json_schema", "regex", "stop_token_ids", "ignore_eos", "phases",
)  # fmt: skip
"""Sampling parameters that hold for a whole text."""

Table = tuple[tuple[str, Any], ...]
"""The type of a checked table."""


def checked_phases(
    value: Any, check: Callable[[Mapping[str, Any]], Mapping[str, Any]], known: Iterable[str]
) -> Table:
    """Check ``phases``.

    Args:
        value: A mapping, or what this function returned for one.
        check: Checks sampling parameters and returns them by name.
        known: Names of these parameters, for errors.

    Raises:
        ParameterError: Names the phase and what is wrong in it.
    """
    given = _mapping(value, "phases", "such as {'thinking': {'temperature': 0.6}}")
    if given and not given.keys() - set(OF_ALL):
        raise _wrong(f"{value!r:.80} has no phase: name one, such as 'thinking'")
    n = len(given.keys() - set(OF_ALL))
    if n > MAX_PHASES:
        raise _wrong(f"{n} phases: give at most {MAX_PHASES}")
    made: list[tuple[str, Any]] = []
    for name, own in given.items():
        if name == "histories":
            if own not in HISTORIES:
                raise _wrong(f"histories={own!r:.40}: give {' or '.join(HISTORIES)}")
            made.append((name, own))
        elif name != "start":
            made.append((name, _phase(name, own, check, known)))
    start = given.get("start")
    if start is not None:
        phases = list(dict.fromkeys([ANSWER, *(name for name, _ in made if name not in OF_ALL)]))
        if start not in phases:
            raise _wrong(
                f"start={start!r:.40}: there is no such phase: {nearest(str(start), phases)}"
            )
        made.append(("start", start))
    _refuse_hidden(made)
    return tuple(made)


def _phase(
    name: str,
    own: Any,
    check: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    known: Iterable[str],
) -> Table:
    given = {PRESET: own} if isinstance(own, str) else own
    given = _mapping(given, repr(name), "its sampling parameters by name, or the name of a preset")
    marks = {word: _mark(name, word, given[word]) for word in MARKS if given.get(word) is not None}
    if marks and name == ANSWER:
        raise _wrong(f"{name!r} has marks: it is what stands outside all others, so leave them out")
    if "begin" not in marks and (marks or name not in (ANSWER, THINKING, TOOL)):
        raise _wrong(
            f"nothing says how {name!r} begins: give 'begin' with the text of its mark, and with the names "
            f"{ANSWER}, {THINKING} and {TOOL} a chat knows that"
        )
    params = {word: value for word, value in given.items() if word not in (*MARKS, PRESET)}
    for word in params:
        if word in OF_TEXTS:
            raise _wrong(
                f"{name!r} has {word}, which holds for a whole text: give it beside phases"
            )
    try:
        preset = {PRESET: check_preset(given[PRESET])} if PRESET in given else {}
        checked = {**preset, **check(params)}
    except ParameterError as error:
        raise _wrong(f"in {name!r}: {error}") from None
    return (*marks.items(), *checked.items())


def _mark(phase: str, word: str, value: Any) -> str | int:
    """A mark: a text, or the id of a token."""
    token = exact(value)
    if token is not None and 0 <= token <= MAX_TOKEN:
        return token
    if not isinstance(value, str) or not value:
        raise _wrong(
            f"{word}={value!r:.60} of {phase!r} is no mark: give a text of at least one character, or the id "
            f"of a token, up to {MAX_TOKEN:,}"
        )
    if len(check_unicode("phases", value).encode()) > MAX_MARK_BYTES:
        raise _wrong(
            f"{word} of {phase!r} has more than {MAX_MARK_BYTES} bytes: give a shorter mark"
        )
    return value


def _mapping(value: Any, what: str, how: str) -> dict[str, Any]:
    try:
        made = dict(value)
    except (TypeError, ValueError):
        made = {None: None}
    if isinstance(value, str) or not all(isinstance(name, str) and name for name in made):
        raise _wrong(f"{what} is {value!r:.80}: give a mapping, {how}")
    return made


def _refuse_hidden(table: Iterable[tuple[str, Any]]) -> None:
    """Refuse a mark that contains another phase's, which would begin first."""
    begins = [(name, begin) for name, begin, _ in marks_of(table) if begin is not None]
    for name, begin in begins:
        for other, earlier in begins:
            inside = isinstance(begin, str) and isinstance(earlier, str) and earlier in begin
            if name != other and (inside or begin == earlier):
                raise _wrong(
                    f"{name!r} begins with {begin!r}, in which {other!r} has begun by {earlier!r} already: "
                    "give other marks"
                )


def marks_of(table: Iterable[tuple[str, Any]]) -> list[tuple[str, Any, Any]]:
    """Each phase except the answer, with the marks that begin and end it; None for a missing mark."""
    return [
        (name, own.get("begin"), own.get("end"))
        for name, pairs in table
        if name not in (ANSWER, *OF_ALL)
        for own in (dict(pairs),)
    ]


def as_mapping(table: Table) -> dict[str, Any]:
    """The table as a mapping of mappings, as users write it."""
    return {name: own if name in OF_ALL else dict(own) for name, own in table}


def params_of(table: Table) -> dict[str, dict[str, Any]]:
    """The sampling parameters of each phase; the answer comes first and is always present."""
    found = {
        name: {word: value for word, value in pairs if word not in MARKS}
        for name, pairs in table
        if name not in OF_ALL
    }
    return {ANSWER: found.pop(ANSWER, {}), **found}


def with_marks(table: Table, known: Mapping[str, tuple[str, str] | None], where: str) -> Table:
    """Return a request's table in which phases without marks have the ``known`` ones.

    ``where`` names for the error the place without marks.

    Raises:
        ParameterError: Nothing says how a phase begins.
    """
    made = dict(table)
    for name, begin, _ in marks_of(table):
        if begin is None:
            marks = known.get(name)
            if marks is None:
                raise _wrong(
                    f"nothing in {where} says how {name!r} begins: give its marks, 'begin' and 'end', too"
                )
            # Without an end mark (""), the phase lasts until the text ends.
            named = ((word, mark) for word, mark in zip(MARKS, marks, strict=True) if mark)
            made[name] = (*named, *made[name])
    _refuse_hidden(made.items())
    return tuple(made.items())


def with_start(table: Table, tokens: Sequence[int], token_bytes: Callable[[int], bytes]) -> Table:
    """Return the table with ``start`` set to the phase whose mark ends the prompt.

    Trailing white space does not count, unless the mark is only white space.  A given ``start`` stays.
    """
    if "start" in dict(table):
        return table
    last, tail = -1, b""
    for token in reversed(tokens[-MAX_MARK_BYTES - 64 :]):
        tail = token_bytes(token) + tail
        if last < 0 and tail.strip():
            last = token
    for name, begin, _ in marks_of(table):
        if begin == last or (isinstance(begin, str) and _ends_with(tail, begin.encode())):
            return (*table, ("start", name))
    return (*table, ("start", ANSWER))


def _ends_with(text: bytes, mark: bytes) -> bool:
    bare = mark.strip()
    return text.rstrip().endswith(bare) if bare else text.endswith(mark)


def read_words(words: Sequence[str], known: Mapping[str, Parameter]) -> dict[str, Any]:
    """Read ``phases`` from the command line: ``PHASE:NAME=VALUE``, ``PHASE=PRESET``, or JSON of all."""
    made: dict[str, Any] = {}
    for word in words:
        if word.lstrip().startswith("{"):
            try:
                made.update(loads(word))
            except ValueError as error:
                raise _wrong(f"{word!r:.60} is not JSON: {error}") from None
            continue
        place, given, value = word.partition("=")
        phase, colon, name = place.partition(":")
        name = name.replace("-", "_")
        if not given or not phase:
            raise _wrong(
                f"{word!r:.60}: write PHASE:NAME=VALUE, such as thinking:temperature=0.6, PHASE=PRESET, or a "
                "JSON object of all phases"
            )
        if not colon and phase in OF_ALL:
            made[phase] = value
            continue
        own, name = made.setdefault(phase, {}), name if colon else PRESET
        if not isinstance(own, dict):
            raise _wrong(f"{phase!r} is {own!r:.60} already, and cannot have {name}: leave one out")
        own[name] = value if name in (*MARKS, PRESET) else _value(phase, name, value, known)
    return made


def _value(phase: str, name: str, text: str, known: Mapping[str, Parameter]) -> Any:
    declared = known.get(name) or next((p for p in known.values() if name in p.aliases), None)
    if declared is None:
        raise _wrong(
            f"in {phase!r}: there is no sampling parameter {name!r}: {nearest(name, known)}"
        )
    listed = declared.type is tuple and name != "samplers"
    return declared.read([text] if listed else text)


def _wrong(why: str) -> ParameterError:
    return ParameterError(f"phases: {why}")
