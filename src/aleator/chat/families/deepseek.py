"""DeepSeek: calls between ``<｜tool▁call▁begin｜>`` and its end, the name apart from the arguments."""

from __future__ import annotations

from collections.abc import Collection

from aleator.chat.call_object import read_arguments
from aleator.chat.message import Delta, Function
from aleator.chat.reply import Calls, Deltas, Family, Malformed, Part, Schema, TextReader, read_text

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE = "```"


class DeepSeek(Family):
    """Templates of DeepSeek R1 and V3 (arguments in a block of code), and of V3.1 on (bare)."""

    name = "deepseek"
    shown_by = (CALL,)
    marks = (BEGIN, END, CALL, SEPARATOR, CALL_END)

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        while (yield from read_text(reader, BEGIN, CALL)):
            yield from reader.skip_space()
            yield from reader.read_any(CALL)
            while True:
                yield from self._call(reader, calls)
                yield from reader.skip_space()
                if not (yield from reader.read_any(CALL)):
                    break
            yield from reader.read_any(END)
            yield from reader.skip_space()

    def _call(self, reader: TextReader, calls: Calls) -> Deltas:
        start, name = reader.at, ""
        while (character := (yield from reader.peek())) not in ("", "\n", "{"):
            if (yield from reader.read_any(SEPARATOR)):
                if name.strip() == "function":
                    name = ""  # R1 and V3 write what kind of tool it is
                continue
            name += character
            reader.at += 1
        yield from reader.skip_space()
        fenced = yield from reader.read_any(f"{FENCE}json", FENCE)
        yield from reader.skip_space()
        if not name.strip() or (yield from reader.peek()) != "{":
            reader.at = start
            yield Delta("content", CALL)
            return
        try:
            yield from read_arguments(reader, calls, name.strip())
        except Malformed:
            return  # cut off within its arguments
        yield from reader.skip_space()
        if fenced:
            yield from reader.read_any(FENCE)
            yield from reader.skip_space()
        yield from reader.read_any(CALL_END)

    def call(self, function: Function) -> list[Part]:
        if FENCE in self.template:
            head = f"{BEGIN}{CALL}function{SEPARATOR}{function.name}\n{FENCE}json\n"
        else:
            head = f"{BEGIN}{CALL}{function.name}{SEPARATOR}"
        return [head, Schema(function.parameters)]
