"""Llama 3: the whole reply is ``{"name": ..., "parameters": ...}``, perhaps after ``<|python_tag|>``."""

from __future__ import annotations

from collections.abc import Collection

from aleator.chat.call_object import Calls, Deltas, read_call
from aleator.chat.families.family import Family, Function, Part, object_with, read_text
from aleator.chat.message import Delta
from aleator.chat.source import Source

TAG = "<|python_tag|>"


class Llama3(Family):
    """Templates of Llama 3.1 to 3.3."""

    name = "llama3"
    marks = (TAG,)

    @staticmethod
    def shows(template: str) -> bool:
        """Whether the template has their marks."""
        return TAG in template or ("<|start_header_id|>" in template and "ipython" in template)

    def read(self, source: Source, calls: Calls, names: Collection[str]) -> Deltas:
        """See :meth:`Family.read`."""
        start = source.at
        yield from source.space()
        tagged = yield from source.begins(TAG)
        while (yield from read_call(source, calls, names)) == "call":
            yield from source.space()
            if not (yield from source.begins(";")):
                break
        if not calls.n and not tagged:
            source.at = start
        if (yield from read_text(source, TAG)):
            kind = yield from read_call(source, calls, names)
            if kind == "text":
                yield Delta("content", TAG)
            yield from read_text(source)

    def call(self, function: Function) -> list[Part]:
        """See :meth:`Family.call`."""
        return object_with(function, "parameters")
