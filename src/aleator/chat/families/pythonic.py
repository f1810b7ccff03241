"""Calls in Python's syntax: ``<|tool_call_start|>[name(key="value", n=2)]<|tool_call_end|>``.

Names of tools and arguments may be words that Python's own parser refuses, such as "get-weather" and "from".
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import field
from typing import ClassVar, TypeVar

from aleator.chat.families.named_arguments import PYTHON, forced, no_constant, with_commas
from aleator.chat.message import Delta, Function
from aleator.chat.reply import (
    Calls,
    Deltas,
    Family,
    Malformed,
    Part,
    TextReader,
    collected,
    read_text,
)
from aleator.core.json_text import MOST_LEVELS, loads
from aleator.core.records import dataclass
from aleator.generate.completion import open_length

T = TypeVar("T")

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>(?P<quote>\'\'\'|\"""|'(?!'')|"(?!\"\"))(?:\\.|(?!(?P=quote))[^\\])*(?P=quote))"""
    r"""|(?P<sign>[()\[\]{},=:])|(?P<word>[^\s'"()\[\]{},=][^'"()\[\]{},=]*))\s*""",
    re.DOTALL,
)
"""A string, a sign between values, or a name, number or constant."""
_NAME = re.compile(r"[\w.:/-]+")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = "\n\\'\"abfnrtvxuUN01234567"
"""What stands after a backslash in Python's escapes."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class Pythonic(Family):
    """Templates of LFM2 and LFM2.5."""

    name: ClassVar[str] = "pythonic"
    shown_by: ClassVar[tuple[tuple[str, ...]]] = (
        ("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: ["),
    )
    begin: ClassVar[str] = "<|tool_call_start|>"
    end: ClassVar[str] = "<|tool_call_end|>"
    marks = (begin, end)
    around_calls: ClassVar[tuple[str, str] | None] = (begin, end)

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        while (yield from read_text(reader, self.begin)):
            start = reader.at
            said, ended = yield from collected(reader.read_until(self.end))
            made = parsed(said) if ended else begun(said, self.end)
            if made is None:
                yield reader.back(start, self.begin)
                continue
            yield from _written(calls, made)
            yield from reader.skip_space()

    def call(self, function: Function) -> list[Part]:
        head = f"{self.begin}[{function.name}("
        return [head, *self.arguments(function), f")]{self.end}"]

    def arguments(self, function: Function) -> list[Part]:
        """Arguments by name, as a grammar forces them."""
        return with_commas(forced(function, self.name, lambda key, value: [f"{key}=", value]))


class PythonicList(Pythonic):
    """Templates of Llama 3.2 and 4 that ask for ``[name(key="value"), ...]`` as the whole reply."""

    name: ClassVar[str] = "pythonic-list"
    shown_by = (("[func_name1(",),)
    begin: ClassVar[str] = "<|python_start|>"
    end: ClassVar[str] = "<|python_end|>"
    marks = (begin, end)
    around_calls = None

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        start = reader.at
        yield from reader.read_next(self.begin)
        yield from reader.skip_space()
        calls_begin = reader.at
        heads = [f"{name}(" for name in tools]
        if (yield from reader.read_any("[")) and (yield from reader.read_next(*heads)):
            reader.at = calls_begin
            said, ended = yield from collected(reader.read_until(self.end))
            made = parsed(said) if ended else begun(said, self.end)
            if made and all(each.name in tools for each in made):
                yield from _written(calls, made)
                start = reader.at
        reader.at = start
        yield from read_text(reader)

    def call(self, function: Function) -> list[Part]:
        return [f"[{function.name}(", *self.arguments(function), ")]"]


@dataclass
class Call:
    """A call, and its arguments that were read as a whole; ``complete``: these are all."""

    name: str
    arguments: list[tuple[str, str]] = field(default_factory=list)  # names, and values in JSON
    complete: bool = False


def _written(calls: Calls, made: Iterable[Call]) -> Iterator[Delta]:
    for each in made:
        yield calls.begin(each.name)
        text = _object(each.arguments)
        if each.complete or each.arguments:
            yield calls.arguments(text if each.complete else text[:-1])
        if each.complete:
            yield calls.end()


def parsed(text: str) -> list[Call] | None:
    """Calls; None if the text has another form."""
    try:
        return _Reader(text).calls()
    except (Malformed, ValueError, SyntaxError):
        return None


def begun(text: str, end: str) -> list[Call] | None:
    """Calls of a text that may be cut off, also within the mark ``end``; None if none has begun."""
    text = text[: len(text) - open_length(text, (end,), len(end))]
    reader = _Reader(text, cut=True)
    try:
        return reader.calls()
    except (Malformed, ValueError, SyntaxError):
        return reader.made if reader.made and reader.at_end else None


def literal(text: str) -> str | None:
    """A value in Python's syntax, as JSON; None if the text has another form."""
    try:
        return _Reader(text).value()
    except (Malformed, ValueError, SyntaxError):
        return None


class _Reader:
    """Reads calls, or a value; raises one of the errors above if the text has another form.

    Attributes:
        made: the calls that were read; the last one may not be complete.
    """

    def __init__(self, text: str, cut: bool = False) -> None:
        self.made: list[Call] = []
        self._tokens: list[tuple[str, str]] = []
        self._cut = False  # whether the last token may have gone on
        self._at = self._levels = end = 0
        while end < len(text):
            found = _TOKEN.match(text, end)
            if found is None:
                if not cut:
                    raise Malformed
                self._tokens.append(("string", text[end:]))
                self._cut = True
                break
            kind = next(kind for kind in ("string", "sign", "word") if found[kind])
            self._tokens.append((kind, found[kind].rstrip()))
            end = found.end()
            self._cut = cut and (kind == "word" or found["string"] in ("''", '""'))
        self._tokens.append(("end", ""))

    @property
    def at_end(self) -> bool:
        """Whether all was read."""
        return self._tokens[self._at][0] == "end"

    def calls(self) -> list[Call]:
        """All calls: a list of them, or one without brackets."""
        if self._sign("["):
            self._up_to("]", self._call)
        else:
            self._call()
        if not self.made or not self.at_end:
            raise Malformed
        return self.made

    def value(self) -> str:
        """The value that is the whole text, as JSON."""
        made = self._value()
        if not self.at_end:
            raise Malformed
        return made

    def _call(self) -> None:
        if not _NAME.fullmatch(self._tokens[self._at][1]):
            raise Malformed
        name = self._next("word")
        self._next("sign", "(")
        self.made.append(call := Call(name))
        self._up_to(")", lambda: call.arguments.append(self._argument()))
        call.complete = True

    def _argument(self) -> tuple[str, str]:
        key = self._next("word")
        self._next("sign", "=")
        return key, self._value()

    def _member(self) -> tuple[str, str]:
        key = _string(self._next("string"))
        self._next("sign", ":")
        return key, self._value()

    def _value(self) -> str:
        """A value, as JSON."""
        if self._sign("{"):
            return _object(self._up_to("}", self._member))
        if self._sign("["):
            return f"[{', '.join(self._up_to(']', self._value))}]"
        if self._sign("("):  # a tuple, or one value in brackets
            each = self._up_to(")", self._value)
            comma = self._tokens[self._at - 2] == ("sign", ",")
            return each[0] if len(each) == 1 and not comma else f"[{', '.join(each)}]"
        if self._tokens[self._at][0] == "string":
            return _as_json(_string(self._next("string")))
        return _plain(self._next("word"))

    def _up_to(self, bracket: str, one: Callable[[], T]) -> list[T]:
        """What stands between commas, up to a closing bracket, which is read too."""
        self._levels += 1
        if self._levels > MOST_LEVELS:
            raise Malformed
        found: list[T] = []
        while not self._sign(bracket):
            found.append(one())
            if not self._sign(","):
                self._next("sign", bracket)
                break
        self._levels -= 1
        return found

    def _sign(self, sign: str) -> bool:
        """Read a sign if it comes next; return whether it did."""
        found = self._tokens[self._at] == ("sign", sign)
        self._at += found
        return found

    def _next(self, kind: str, text: str | None = None) -> str:
        """Read what comes next, which must be of a kind and may be of one text only, and not be cut off."""
        found, said = self._tokens[self._at]
        if found != kind or text not in (None, said):
            raise Malformed
        self._at += 1
        if self._cut and self.at_end:
            raise Malformed
        return said


def _object(members: Iterable[tuple[str, str]]) -> str:
    """An object, as JSON; of several values of one key the last counts."""
    each = (f"{_as_json(key)}: {value}" for key, value in dict(members).items())
    return f"{{{', '.join(each)}}}"


def _as_json(text: str) -> str:
    """A string as JSON.  Halves of surrogate pairs, which UTF-8 does not have, stay escaped."""
    return json.dumps(text, ensure_ascii=_SURROGATE.search(text) is not None)


def _string(literal: str) -> str:
    """The value of a string in JSON or Python; a backslash that begins no escape of Python's is one itself."""
    try:
        return str(loads(literal))
    except ValueError:
        known = _ESCAPE.sub(lambda each: "\\" * (each[1] not in _ESCAPED) + each[0], literal)
        return str(ast.literal_eval(known))


def _plain(word: str) -> str:
    """A number or a constant of Python or JSON, as JSON."""
    if word in PYTHON:
        return PYTHON[word]
    try:
        loads(word, parse_constant=no_constant)
    except ValueError:
        number = float(word) if "." in word else int(word, 0)
        return json.dumps(number, allow_nan=False)
    return word
