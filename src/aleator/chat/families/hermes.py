"""Hermes and Qwen: ``<tool_call>{"name": ..., "arguments": ...}</tool_call>``, after the answer if any."""

from __future__ import annotations

from collections.abc import Collection

from aleator.chat.call_object import Calls, Deltas, read_call
from aleator.chat.families.family import Family, Function, Part, object_with, read_text
from aleator.chat.message import Delta
from aleator.chat.text_reader import TextReader

BEGIN, END = "<tool_call>", "</tool_call>"


class Hermes(Family):
    """Templates of Hermes, Qwen 2.5, Qwen 3 and those after their pattern."""

    name = "hermes"
    marks = (BEGIN, END)

    @staticmethod
    def shows(template: str) -> bool:
        """Whether the template has their marks."""
        return BEGIN in template

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        """See :meth:`Family.read`."""
        while (yield from read_text(reader, BEGIN)):
            kind = yield from read_call(reader, calls)
            if kind == "text":
                yield Delta("content", BEGIN)
                continue
            yield from reader.skip_space()
            yield from reader.read_any(END)
            yield from reader.skip_space()

    def call(self, function: Function) -> list[Part]:
        """See :meth:`Family.call`."""
        return [f"{BEGIN}\n", *object_with(function, "arguments"), f"\n{END}"]
