"""Replies: their form in each family of templates, and how they are read as they are generated.

Readers are generators, which yield None to wait for more of the text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, ClassVar, TypeVar

from aleator.chat.message import Delta, Function, Kind, Message, ToolCall
from aleator.core.json_text import loads
from aleator.core.records import dataclass
from aleator.generate.completion import open_length

T = TypeVar("T")
Pieces = Generator["str | None", None, T]
"""Yields pieces of text, and returns a result at its end."""
Waiting = Generator[None, None, T]
"""Yields None while waiting, and returns a result at its end."""
Deltas = Generator["Delta | None", None, None]
"""Yields the deltas that were read."""

_SPACE = " \t\r\n"
_ENDS_OF_PLAIN = ",]}" + _SPACE


class Malformed(Exception):
    """The text does not have the expected form."""


class TextReader:
    """Reads a text that is still being generated, and is complete once it has ``ended``.

    ``at`` is the index of the next character to read; it may be set back.
    """

    def __init__(self) -> None:
        self._text = ""
        self.at = 0
        self.ended = False

    def add(self, text: str) -> None:
        """Append to the text."""
        self._text += text

    def back(self, start: int, marker: str) -> Delta:
        """Go back to directly after a marker that begins no call.

        Returns the marker as content, with the white space that was left out before it.
        """
        self.at = start
        end = begin = start - len(marker)
        while begin and self._text[begin - 1] in _SPACE:
            begin -= 1
        return Delta("content", self._text[begin:end] + marker)

    def read_until(self, *markers: str) -> Pieces[str]:
        """Read up to the first of some markers, leaving out white space directly before it.

        Returns the marker, which is read too; "" if the text ends without one.
        """
        while True:
            if found := self._found(markers):
                before = found[0].rstrip(_SPACE)
                if before:
                    yield before
                return found[1]
            rest = self._text[self.at :]
            if self.ended:
                self.at = len(self._text)
                if rest:
                    yield rest
                return ""
            shown = len(rest) - open_length(rest, markers, max(map(len, markers), default=0))
            piece = rest[:shown].rstrip(_SPACE) if markers else rest
            self.at += len(piece)
            if piece:
                yield piece
            yield None

    def _found(self, markers: tuple[str, ...]) -> tuple[str, str] | None:
        """Read the text before the first marker, and the marker; the longest if several begin there."""
        found = [(at, m) for m in markers if (at := self._text.find(m, self.at)) >= 0]
        if not found:
            return None
        at, marker = min(found, key=lambda each: (each[0], -len(each[1])))
        before = self._text[self.at : at]
        self.at = at + len(marker)
        return before, marker

    def read_exactly(self, *markers: str) -> Waiting[tuple[str, str]]:
        """Read up to the first of some markers, white space included; return the text and the marker.

        Malformed if the text ends without one; all of it has been read then.
        """
        while True:
            if found := self._found(markers):
                return found
            if self.ended:
                self.at = len(self._text)
                raise Malformed
            yield None

    def read_any(self, *texts: str) -> Waiting[str]:
        """Read one of some texts if it comes next; return it, or ""."""
        for text in texts:
            while not self.ended and len(self._text) - self.at < len(text):
                if not text.startswith(self._text[self.at :]):
                    break
                yield None
            if self._text.startswith(text, self.at):
                self.at += len(text)
                return text
        return ""

    def read_next(self, *texts: str) -> Waiting[str]:
        """Read white space, then one of some texts if it comes next; return it, or ""."""
        yield from self.skip_space()
        return (yield from self.read_any(*texts))

    def read_end(self, mark: str) -> Waiting[str]:
        """As :meth:`read_next`; a mark that is cut off by the text's end is read too."""
        found = yield from self.read_next(mark)
        rest = self._text[self.at :]
        if not found and self.ended and mark.startswith(rest):
            self.at += len(rest)
            return rest
        return found

    def skip_space(self) -> Waiting[None]:
        """Read all white space that comes next."""
        while (yield from self.peek()) in (*_SPACE,):
            self.at += 1

    def peek(self) -> Waiting[str]:
        """Return the next character without reading it; "" at the end."""
        while self.at == len(self._text):
            if self.ended:
                return ""
            yield None
        return self._text[self.at]

    def expect(self, character: str) -> Waiting[None]:
        """Read white space, then a character; Malformed if another one comes."""
        yield from self.skip_space()
        if (yield from self.peek()) != character:
            raise Malformed
        self.at += 1

    def read_string(self) -> Waiting[str]:
        """Read a JSON string; return its value, or raise Malformed if no string comes next."""
        yield from self.skip_space()
        if (yield from self.peek()) != '"':
            raise Malformed
        raw, _ = yield from collected(self.read_value())
        try:
            said = loads(raw)
        except ValueError:
            raise Malformed from None
        return str(said)

    def read_value(self) -> Pieces[None]:
        """Read a JSON value; yield its text in pieces.

        Malformed if no value comes next, the text ends within it, or its brackets do not match.
        """
        yield from self.skip_space()
        if (yield from self.peek()) in ("", ",", "]", "}"):
            raise Malformed
        start, open_brackets, in_string, escaped = self.at, "", False, False
        while True:
            if self.at == len(self._text):
                if self.at > start:
                    yield self._text[start : self.at]
                    start = self.at
                if self.ended:
                    if open_brackets or in_string:
                        raise Malformed
                    return
                yield None
                continue
            character = self._text[self.at]
            if in_string:
                self.at += 1
                in_string = escaped or character != '"'
                escaped = not escaped and character == "\\"
            elif character == '"':
                self.at += 1
                in_string = True
            elif character in "{[":
                self.at += 1
                open_brackets += "}" if character == "{" else "]"
                continue
            elif character in "}]" and open_brackets:
                if character != open_brackets[-1]:
                    yield self._text[start : self.at]
                    raise Malformed
                self.at += 1
                open_brackets = open_brackets[:-1]
            elif character in _ENDS_OF_PLAIN and not open_brackets:
                break  # the end of a number or a word
            else:
                self.at += 1
                continue
            if not open_brackets and not in_string:
                break
        if self.at > start:
            yield self._text[start : self.at]


def collected(pieces: Pieces[T]) -> Waiting[tuple[str, T]]:
    """Collect pieces; return their text and their result."""
    text = ""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            return text, end.value
        if piece is None:
            yield None
        else:
            text += piece


def read_text(reader: TextReader, *markers: str) -> Generator[Delta | None, None, str]:
    """Read content up to a marker, which is read too; return the marker, or "" at the end of the text."""
    return (yield from read_kind("content", reader, *markers))


def read_kind(kind: Kind, reader: TextReader, *markers: str) -> Generator[Delta | None, None, str]:
    """As :func:`read_text`, for deltas of any kind."""
    pieces = reader.read_until(*markers)
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            return str(end.value)
        yield None if piece is None else Delta(kind, piece)


class Calls:
    """Makes the deltas of a reply's calls; ``n`` calls have begun."""

    def __init__(self) -> None:
        self.n = 0

    def begin(self, name: str) -> Delta:
        """Begin a call."""
        self.n += 1
        return Delta("call", name, self.n - 1)

    def arguments(self, text: str) -> Delta:
        """A piece of the arguments of the current call."""
        return Delta("arguments", text, self.n - 1)

    def end(self) -> Delta:
        """End the current call."""
        return Delta("call_end", index=self.n - 1)

    def whole(self, name: str, arguments: str) -> Iterator[Delta]:
        """The deltas of a call that was read as a whole."""
        yield self.begin(name)
        yield self.arguments(arguments)
        yield self.end()


@dataclass(frozen=True)
class Schema:
    """A place in a reply for JSON that matches a schema."""

    schema: Any


@dataclass(frozen=True)
class Words:
    """A place for a string without quotes that ends at ``mark`` and does not contain it.

    ``limits`` are "enum", "const", "minLength" and "maxLength" of its schema; ``end`` follows, with the mark.
    """

    limits: Mapping[str, Any]
    mark: str
    end: str


@dataclass(frozen=True)
class Maybe:
    """Optional parts."""

    parts: tuple[Part, ...]


Part = str | Schema | Words | Maybe
"""A part of a forced reply: text, in which names of control tokens stand for these tokens, or a part that is
drawn."""


@dataclass(frozen=True)
class Thinking:
    """The beginning and end of a model's reasoning, and what separates it from the answer."""

    begin: str
    end: str
    after: str = ""


class Family(ABC):
    """Templates whose models write calls in the same form."""

    name: ClassVar[str]
    shown_by: ClassVar[tuple[str | tuple[str, ...], ...]] = ()
    """Strings in the text of such a template: all of them, of a tuple any one; empty: any template."""
    thinking: ClassVar[Thinking | None] = None
    """For families with their own form of reasoning, which they read themselves."""
    marks: ClassVar[tuple[str, ...]] = ()
    """Names by which a reply is read, which may be control tokens."""
    around_calls: ClassVar[tuple[str, str] | None] = None
    """Marks before and after calls; the second is "" where calls end a reply; None if they are uncertain."""
    ends_reasoning: ClassVar[tuple[str, ...]] = ()
    """Beginnings of calls with which models end their reasoning, too."""
    marks_content: ClassVar[bool] = False
    """Whether there are marks around content, so that a reply without tools has to be read as well."""

    def __init__(self, template: str) -> None:
        self.template = template

    @classmethod
    def shows(cls, template: str) -> bool:
        """Whether a template belongs to this family."""
        alternatives = ((each,) if isinstance(each, str) else each for each in cls.shown_by)
        return all(any(mark in template for mark in marks) for marks in alternatives)

    @abstractmethod
    def read(self, reader: TextReader, calls: Calls, tools: Mapping[str, Any]) -> Deltas:
        """Read a reply, after its reasoning; ``tools`` are argument schemas by tool name."""

    @abstractmethod
    def call(self, function: Function) -> list[Part]:
        """The parts of a reply that is only a call of a function."""

    def turns(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Messages in the form that the template takes, which may have tool results elsewhere."""
        return messages

    def content(self, schema: Any) -> list[Part]:
        """The parts of a reply that is only JSON."""
        return [Schema(schema)]


def call_id(key: bytes, index: int) -> str:
    """The id of a call: equal keys and indices give equal ids."""
    return sha256(key + index.to_bytes(4, "little")).hexdigest()[:9]


class Reply:
    """Reads a reply."""

    def __init__(
        self,
        # how calls are written; None: no tools, so all is content
        family: Family | None,
        # how the model writes reasoning; None: it does not, or the family reads it
        thinking: Thinking | None = None,
        opened: bool = False,  # whether the prompt ends within reasoning
        tools: Mapping[str, Any] | None = None,  # argument schemas by tool name
        key: bytes = b"",  # determines the ids of calls: equal keys give equal ids
        forced: bool = False,  # the answer is a call: what is cut off before its name ends is no content
    ) -> None:
        self._family, self._thinking, self._opened = family, thinking, opened
        self._tools, self._key, self._forced = dict(tools or {}), key, forced
        self._reader = TextReader()
        self._deltas = self._read()
        self._texts = {"content": "", "reasoning": ""}
        self._calls: list[ToolCall] = []

    @property
    def message(self) -> Message:
        """The message as far as it was read."""
        return Message(self._texts["content"], self._texts["reasoning"], tuple(self._calls))

    def push(self, text: str) -> list[Delta]:
        """Read a piece of the reply; return what it adds to the message."""
        self._reader.add(text)
        return list(self._ready())

    def finish(self) -> list[Delta]:
        """Read the rest after the reply has ended; return what it adds to the message."""
        self._reader.ended = True
        return list(self._ready())

    def _ready(self) -> Iterator[Delta]:
        for delta in self._deltas:
            if delta is not None and self._forced and delta.kind == "content":
                continue
            if delta is not None:
                yield self._taken(delta)
            elif not self._reader.ended:
                return

    def _taken(self, delta: Delta) -> Delta:
        if delta.kind == "call":
            own = call_id(self._key, delta.index)
            self._calls.append(ToolCall(own, delta.text, "", complete=False))
            return Delta("call", delta.text, delta.index, own)
        if delta.kind == "content" or delta.kind == "reasoning":
            self._texts[delta.kind] += delta.text
            return delta
        call = self._calls[delta.index]
        complete = delta.kind == "call_end"
        self._calls[delta.index] = ToolCall(
            call.id, call.name, call.arguments + delta.text, complete
        )
        return delta

    def _read(self) -> Deltas:
        reader, thinking = self._reader, self._thinking
        if thinking is not None:
            start, opened = reader.at, self._opened
            if not opened:
                yield from reader.skip_space()
                opened = bool((yield from reader.read_any(thinking.begin)))
            if opened:
                yield from reader.skip_space()
                ends = () if self._family is None else self._family.ends_reasoning
                mark = yield from read_kind("reasoning", reader, thinking.end, *ends)
                if mark in ends:
                    reader.at -= len(mark)
                yield from reader.skip_space()
            else:
                reader.at = start
        if self._family is None:
            yield from read_text(reader)
        else:
            yield from self._family.read(reader, Calls(), self._tools)
