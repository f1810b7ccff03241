"""Reads the text of a reply while it is written, by generators that yield None to wait for more."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Pieces = Generator["str | None", None, T]
"""Yields pieces of text, and None to wait for more; returns a result at its end."""

Waiting = Generator[None, None, T]
"""Yields None to wait for more; returns a result at its end."""

_SPACE = " \t\r\n"
_ENDS_OF_PLAIN = ",]}" + _SPACE


class Malformed(Exception):
    """The text does not have the expected form."""


class TextReader:
    """Reads a text that is still being written.

    Attributes:
        at: Index of the next character to read; may be set back.
        ended: Whether the text is complete.
    """

    def __init__(self) -> None:
        self._text = ""
        self.at = 0
        self.ended = False

    def add(self, text: str) -> None:
        """Append to the text."""
        self._text += text

    def text_since(self, at: int) -> str:
        """The text from an index up to :attr:`at`."""
        return self._text[at : self.at]

    def read_until(self, *markers: str) -> Pieces[str]:
        """Read up to the first of some markers, leaving out white space right before it.

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
            shown = len(rest) - _begun(rest, markers)
            piece = rest[:shown].rstrip(_SPACE) if markers else rest
            self.at += len(piece)
            if piece:
                yield piece
            yield None

    def _found(self, markers: tuple[str, ...]) -> tuple[str, str] | None:
        """Read what is before the first marker, and that; of several at one place the longest."""
        found = [(at, m) for m in markers if (at := self._text.find(m, self.at)) >= 0]
        if not found:
            return None
        at, marker = min(found, key=lambda each: (each[0], -len(each[1])))
        before = self._text[self.at : at]
        self.at = at + len(marker)
        return before, marker

    def read_exactly(self, *markers: str) -> Waiting[tuple[str, str]]:
        """Read up to the first of some markers, white space included; returns the text and the marker.

        Raises:
            Malformed: The text ends without one; all of it has been read then.
        """
        while True:
            if found := self._found(markers):
                return found
            if self.ended:
                self.at = len(self._text)
                raise Malformed
            yield None

    def read_any(self, *texts: str) -> Waiting[str]:
        """Read one of some texts if it comes next; returns it, or ""."""
        for text in texts:
            while not self.ended and len(self._text) - self.at < len(text):
                if not text.startswith(self._text[self.at :]):
                    break
                yield None
            if self._text.startswith(text, self.at):
                self.at += len(text)
                return text
        return ""

    def skip_space(self) -> Waiting[None]:
        """Read all white space that comes next."""
        while (yield from self.peek()) in (*_SPACE,):
            self.at += 1

    def peek(self) -> Waiting[str]:
        """Look at the next character without reading it; returns "" at the end."""
        while self.at == len(self._text):
            if self.ended:
                return ""
            yield None
        return self._text[self.at]

    def expect(self, character: str) -> Waiting[None]:
        """Read white space and then a character; Malformed if another one comes."""
        yield from self.skip_space()
        if (yield from self.peek()) != character:
            raise Malformed
        self.at += 1

    def read_string(self) -> Waiting[str]:
        """Read a JSON string; returns its value, or raises Malformed if no string comes next."""
        yield from self.skip_space()
        if (yield from self.peek()) != '"':
            raise Malformed
        raw, _ = yield from collected(self.read_value())
        try:
            said = json.loads(raw)
        except ValueError:
            raise Malformed from None
        return str(said)

    def read_value(self) -> Pieces[None]:
        """Read a JSON value; yields its text in pieces.

        Raises:
            Malformed: No value comes next, the text ends within it, or its brackets do not match.
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
                    raise Malformed
                self.at += 1
                open_brackets = open_brackets[:-1]
            elif character in _ENDS_OF_PLAIN and not open_brackets:
                break  # of a number or a word
            else:
                self.at += 1
                continue
            if not open_brackets and not in_string:
                break
        if self.at > start:
            yield self._text[start : self.at]


def collected(pieces: Pieces[T]) -> Waiting[tuple[str, T]]:
    """The text that some pieces make, and what they return."""
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


def _begun(text: str, markers: tuple[str, ...]) -> int:
    """Length of the longest suffix of a text that is a prefix of a marker."""
    longest = max(map(len, markers), default=1) - 1
    for length in range(min(len(text), longest), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0
