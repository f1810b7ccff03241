"""The text of a reply as it comes, to be read by a generator that waits for more by yielding None."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Reading = Generator["str | None", None, T]
"""Yields pieces of text, and None where more is needed; returns what was found."""

Waiting = Generator[None, None, T]
"""Yields None where more is needed; returns what was found."""

_SPACE = " \t\r\n"
_ENDS_OF_PLAIN = ",]}" + _SPACE


class Malformed(Exception):
    """The text is not what was expected."""


class Source:
    """A text of which more may come.

    Attributes:
        at: Where reading goes on; may be set back.
        ended: No more will come.
    """

    def __init__(self) -> None:
        self._text = ""
        self.at = 0
        self.ended = False

    def add(self, text: str) -> None:
        """More of the text has come."""
        self._text += text

    def since(self, at: int) -> str:
        """The text from a place up to where reading goes on."""
        return self._text[at : self.at]

    def until(self, *markers: str) -> Reading[str]:
        """Read the text before the first of some markers, without the white space right before it.

        Args:
            markers: Texts, none of them empty.

        Returns:
            The marker, which is read too; "" where the text ends without one.
        """
        while True:
            found = [(at, m) for m in markers if (at := self._text.find(m, self.at)) >= 0]
            if found:
                at, marker = min(found, key=lambda each: (each[0], -len(each[1])))
                before = self._text[self.at : at].rstrip(_SPACE)
                self.at = at + len(marker)
                if before:
                    yield before
                return marker
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

    def collect(self, *markers: str) -> Waiting[tuple[str, str]]:
        """The whole text up to a marker, and that marker; :meth:`until` gives it in pieces."""
        text, pieces = "", self.until(*markers)
        while True:
            try:
                piece = next(pieces)
            except StopIteration as end:
                return text, str(end.value)
            if piece is None:
                yield None
            else:
                text += piece

    def exactly(self, *markers: str) -> Waiting[tuple[str, str]]:
        """Read the text before the first of some markers, white space and all.

        Args:
            markers: Texts, none of them empty.

        Returns:
            The text, and the marker, which is read too.

        Raises:
            Malformed: The text ends without one; then all of it is read.
        """
        while True:
            found = [(at, m) for m in markers if (at := self._text.find(m, self.at)) >= 0]
            if found:
                at, marker = min(found, key=lambda each: (each[0], -len(each[1])))
                before = self._text[self.at : at]
                self.at = at + len(marker)
                return before, marker
            if self.ended:
                self.at = len(self._text)
                raise Malformed
            yield None

    def begins(self, *texts: str) -> Waiting[str]:
        """Read one of some texts if the next are its characters; returns it, or ""."""
        for text in texts:
            while not self.ended and len(self._text) - self.at < len(text):
                if not text.startswith(self._text[self.at :]):
                    break
                yield None
            if self._text.startswith(text, self.at):
                self.at += len(text)
                return text
        return ""

    def space(self) -> Waiting[None]:
        """Read white space, as much as there is."""
        while (yield from self.peek()) in (*_SPACE,):
            self.at += 1

    def peek(self) -> Waiting[str]:
        """The next character, which is not read; "" at the end."""
        while self.at == len(self._text):
            if self.ended:
                return ""
            yield None
        return self._text[self.at]

    def expect(self, character: str) -> Waiting[None]:
        """Read white space and then this character.

        Raises:
            Malformed: It is another one.
        """
        yield from self.space()
        if (yield from self.peek()) != character:
            raise Malformed
        self.at += 1

    def string(self) -> Waiting[str]:
        """Read a JSON string.

        Returns:
            What it says.

        Raises:
            Malformed: It is none.
        """
        yield from self.space()
        if (yield from self.peek()) != '"':
            raise Malformed
        raw = ""
        pieces = self.value()
        for piece in pieces:
            if piece is None:
                yield None
            else:
                raw += piece
        try:
            said = json.loads(raw)
        except ValueError:
            raise Malformed from None
        return str(said)

    def value(self) -> Reading[None]:
        """Read a JSON value; its text is given as it comes.

        Raises:
            Malformed: There is none, the text ends within it, or its brackets do not fit.
        """
        yield from self.space()
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


def _begun(text: str, markers: tuple[str, ...]) -> int:
    """Length of the longest end of a text that begins some marker."""
    longest = max(map(len, markers), default=1) - 1
    for length in range(min(len(text), longest), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0
