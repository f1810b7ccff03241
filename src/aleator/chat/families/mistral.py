"""Mistral: ``[TOOL_CALLS][{"name": ..., "arguments": ...}]``, later ``[TOOL_CALLS]name[ARGS]{...}``."""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import suppress

from aleator.chat.call_object import Calls, Deltas, read_arguments, read_call
from aleator.chat.families.family import Family, Function, Part, Schema, object_with, read_text
from aleator.chat.message import Delta
from aleator.chat.text_reader import Malformed, TextReader

BEGIN, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class Mistral(Family):
    """Templates of Mistral's models with tools."""

    name = "mistral"
    marks = (BEGIN, ARGUMENTS, CALL_ID)

    @staticmethod
    def shows(template: str) -> bool:
        """Whether the template has their mark."""
        return BEGIN in template

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        """See :meth:`Family.read`."""
        while (yield from read_text(reader, BEGIN)):
            start = reader.at
            yield from reader.skip_space()
            if (yield from reader.read_any("[")):
                found = yield from self._list(reader, calls)
            elif (yield from reader.peek()) == "{":
                found = (yield from read_call(reader, calls)) != "text"
            else:
                found = yield from self._named(reader, calls)
            if found:
                yield from reader.skip_space()
            else:
                reader.at = start
                yield Delta("content", BEGIN)

    def _list(self, reader: TextReader, calls: Calls) -> Generator[Delta | None, None, bool]:
        found = False
        while (yield from read_call(reader, calls)) == "call":
            found = True
            yield from reader.skip_space()
            if not (yield from reader.read_any(",")):
                break
        yield from reader.read_any("]")
        return found

    def _named(self, reader: TextReader, calls: Calls) -> Generator[Delta | None, None, bool]:
        name = ""
        while (yield from reader.peek()) not in ("", "[", "{", "\n"):
            name += yield from reader.peek()
            reader.at += 1
        if (yield from reader.read_any(CALL_ID)):
            while (yield from reader.peek()) not in ("", "[", "{"):
                reader.at += 1
        yield from reader.read_any(ARGUMENTS)
        if not name.strip() or (yield from reader.peek()) != "{":
            return False
        with suppress(Malformed):  # cut off within its arguments
            yield from read_arguments(reader, calls, name.strip())
        return True

    def call(self, function: Function) -> list[Part]:
        """See :meth:`Family.call`."""
        if ARGUMENTS in self.template:
            return [f"{BEGIN}{function.name}{ARGUMENTS}", Schema(function.parameters)]
        return [f"{BEGIN}[", *object_with(function, "arguments"), "]"]
