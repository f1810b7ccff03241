"""DeepSeek: calls between ``<｜tool▁call▁begin｜>`` and its end, the name apart from the arguments."""

from __future__ import annotations

from collections.abc import Collection

from aleator.chat.call_object import Calls, Deltas, read_arguments
from aleator.chat.families.family import Family, Function, Part, Schema, read_text
from aleator.chat.message import Delta
from aleator.chat.source import Malformed, Source

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE = "```"


class DeepSeek(Family):
    """Templates of DeepSeek R1 and V3 (arguments in a block of code), and of V3.1 on (bare)."""

    name = "deepseek"
    marks = (BEGIN, END, CALL, SEPARATOR, CALL_END)

    @staticmethod
    def shows(template: str) -> bool:
        """Whether the template has their marks."""
        return CALL in template

    def read(self, source: Source, calls: Calls, tools: Collection[str]) -> Deltas:
        """See :meth:`Family.read`."""
        while (yield from read_text(source, BEGIN, CALL)):
            yield from source.space()
            yield from source.begins(CALL)
            while True:
                yield from self._call(source, calls)
                yield from source.space()
                if not (yield from source.begins(CALL)):
                    break
            yield from source.begins(END)
            yield from source.space()

    def _call(self, source: Source, calls: Calls) -> Deltas:
        start, name = source.at, ""
        while (character := (yield from source.peek())) not in ("", "\n", "{"):
            if (yield from source.begins(SEPARATOR)):
                if name.strip() == "function":
                    name = ""  # R1 and V3 write what kind of tool it is
                continue
            name += character
            source.at += 1
        yield from source.space()
        fenced = yield from source.begins(f"{FENCE}json", FENCE)
        yield from source.space()
        if not name.strip() or (yield from source.peek()) != "{":
            source.at = start
            yield Delta("content", CALL)
            return
        try:
            yield from read_arguments(source, calls, name.strip())
        except Malformed:
            return  # cut off within its arguments
        yield from source.space()
        if fenced:
            yield from source.begins(FENCE)
            yield from source.space()
        yield from source.begins(CALL_END)

    def call(self, function: Function) -> list[Part]:
        """See :meth:`Family.call`."""
        if FENCE in self.template:
            head = f"{BEGIN}{CALL}function{SEPARATOR}{function.name}\n{FENCE}json\n"
        else:
            head = f"{BEGIN}{CALL}{function.name}{SEPARATOR}"
        return [head, Schema(function.parameters)]
