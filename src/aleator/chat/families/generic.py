"""Templates with tools and no marks of their own: a reply that is a JSON object, or a list of them, calls."""

from __future__ import annotations

from collections.abc import Collection

from aleator.chat.call_object import Calls, Deltas, read_call
from aleator.chat.families.family import Family, Function, Part, object_with, read_text
from aleator.chat.text_reader import TextReader


class Generic(Family):
    """``{"name": ..., "arguments": ...}`` as the whole reply, with the name of a tool."""

    name = "generic"

    @staticmethod
    def shows(template: str) -> bool:
        """Whether it is any template."""
        return True

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        """See :meth:`Family.read`."""
        start = reader.at
        yield from reader.skip_space()
        listed = yield from reader.read_any("[")
        while (yield from read_call(reader, calls, tools)) == "call":
            yield from reader.skip_space()
            if not listed or not (yield from reader.read_any(",")):
                break
        if calls.n and listed:
            yield from reader.read_any("]")
        if calls.n:
            yield from reader.skip_space()
        else:
            reader.at = start
        yield from read_text(reader)

    def call(self, function: Function) -> list[Part]:
        """See :meth:`Family.call`."""
        return object_with(function, "arguments")
