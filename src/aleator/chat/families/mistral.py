"""Mistral: ``[TOOL_CALLS][{"name": ..., "arguments": ...}]``, later ``[TOOL_CALLS]name[ARGS]{...}``."""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import suppress

from aleator.chat.call_object import Calls, Deltas, read_arguments, read_call
from aleator.chat.families.family import Family, Function, Part, Schema, object_with, read_text
from aleator.chat.message import Delta
from aleator.chat.source import Malformed, Source

BEGIN, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


class Mistral(Family):
    """Templates of Mistral's models with tools."""

    name = "mistral"
    marks = (BEGIN, ARGUMENTS, CALL_ID)

    @staticmethod
    def shows(template: str) -> bool:
        """Whether the template has their mark."""
        return BEGIN in template

    def read(self, source: Source, calls: Calls, tools: Collection[str]) -> Deltas:
        """See :meth:`Family.read`."""
        while (yield from read_text(source, BEGIN)):
            start = source.at
            yield from source.space()
            if (yield from source.begins("[")):
                found = yield from self._list(source, calls)
            elif (yield from source.peek()) == "{":
                found = (yield from read_call(source, calls)) != "text"
            else:
                found = yield from self._named(source, calls)
            if found:
                yield from source.space()
            else:
                source.at = start
                yield Delta("content", BEGIN)

    def _list(self, source: Source, calls: Calls) -> Generator[Delta | None, None, bool]:
        found = False
        while (yield from read_call(source, calls)) == "call":
            found = True
            yield from source.space()
            if not (yield from source.begins(",")):
                break
        yield from source.begins("]")
        return found

    def _named(self, source: Source, calls: Calls) -> Generator[Delta | None, None, bool]:
        name = ""
        while (yield from source.peek()) not in ("", "[", "{", "\n"):
            name += yield from source.peek()
            source.at += 1
        if (yield from source.begins(CALL_ID)):
            while (yield from source.peek()) not in ("", "[", "{"):
                source.at += 1
        yield from source.begins(ARGUMENTS)
        if not name.strip() or (yield from source.peek()) != "{":
            return False
        with suppress(Malformed):  # cut off within its arguments
            yield from read_arguments(source, calls, name.strip())
        return True

    def call(self, function: Function) -> list[Part]:
        """See :meth:`Family.call`."""
        if ARGUMENTS in self.template:
            return [f"{BEGIN}{function.name}{ARGUMENTS}", Schema(function.parameters)]
        return [f"{BEGIN}[", *object_with(function, "arguments"), "]"]
