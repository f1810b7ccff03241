"""Templates with tools and no marks of their own: a reply that is a JSON object, or a list of them, calls."""

from __future__ import annotations

from collections.abc import Collection

from aleator.chat.call_object import Calls, Deltas, read_call
from aleator.chat.families.family import Family, Function, Part, object_with, read_text
from aleator.chat.source import Source


class Generic(Family):
    """``{"name": ..., "arguments": ...}`` as the whole reply, with the name of a tool."""

    name = "generic"

    @staticmethod
    def shows(template: str) -> bool:
        """Whether it is any template."""
        return True

    def read(self, source: Source, calls: Calls, tools: Collection[str]) -> Deltas:
        """See :meth:`Family.read`."""
        start = source.at
        yield from source.space()
        listed = yield from source.begins("[")
        while (yield from read_call(source, calls, tools)) == "call":
            yield from source.space()
            if not listed or not (yield from source.begins(",")):
                break
        if calls.n and listed:
            yield from source.begins("]")
        if calls.n:
            yield from source.space()
        else:
            source.at = start
        yield from read_text(source)

    def call(self, function: Function) -> list[Part]:
        """See :meth:`Family.call`."""
        return object_with(function, "arguments")
