"""Calls in Python syntax: ``<|tool_call_start|>[name(key="value", n=2)]<|tool_call_end|>``."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from aleator.chat.families.named_arguments import forced, with_commas
from aleator.chat.families.python_syntax import parsed
from aleator.chat.message import Function
from aleator.chat.reply import Calls, Deltas, Family, Part, TextReader, collected, read_text


class Pythonic(Family):
    """Templates of LFM2 and LFM2.5."""

    name: ClassVar[str] = "pythonic"
    begin: ClassVar[str] = "<|tool_call_start|>"
    end: ClassVar[str] = "<|tool_call_end|>"
    marks = (begin, end)
    around_calls: ClassVar[tuple[str, str] | None] = (begin, end)

    @classmethod
    def shows(cls, template: str) -> bool:
        """Whether the template has the family's marks."""
        shown = ("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: [")
        return any(mark in template for mark in shown)

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        while (yield from read_text(reader, self.begin)):
            start = reader.at
            said, _ = yield from collected(reader.read_until(self.end))
            found = parsed(said)
            if found is None:
                yield reader.back(start, self.begin)
                continue
            for name, arguments in found:
                yield from calls.whole(name, arguments)
            yield from reader.skip_space()

    def call(self, function: Function) -> list[Part]:
        head = f"{self.begin}[{function.name}("
        return [head, *self.arguments(function), f")]{self.end}"]

    def arguments(self, function: Function) -> list[Part]:
        """Arguments by name, as a grammar forces them."""
        return with_commas(forced(function, self.name, lambda key, value: [f"{key}=", value]))


class PythonicList(Pythonic):
    """Templates of Llama 3.2 and 4 that ask for ``[name(key="value"), ...]`` as the whole reply."""

    name: ClassVar[str] = "pythonic-list"
    begin: ClassVar[str] = "<|python_start|>"
    end: ClassVar[str] = "<|python_end|>"
    marks = (begin, end)
    around_calls = None

    @classmethod
    def shows(cls, template: str) -> bool:
        """Whether the template says how calls are written."""
        return "[func_name1(" in template

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        start = reader.at
        yield from reader.read_next(self.begin)
        yield from reader.skip_space()
        calls_begin = reader.at
        heads = [f"{name}(" for name in tools]
        if (yield from reader.read_any("[")) and (yield from reader.read_next(*heads)):
            reader.at = calls_begin
            said, _ = yield from collected(reader.read_until(self.end))
            found = parsed(said) or []
            if found and all(name in tools for name, _ in found):
                for name, arguments in found:
                    yield from calls.whole(name, arguments)
                start = reader.at
        reader.at = start
        yield from read_text(reader)

    def call(self, function: Function) -> list[Part]:
        return [f"[{function.name}(", *self.arguments(function), ")]"]
