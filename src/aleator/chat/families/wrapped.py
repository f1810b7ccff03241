"""Calls as JSON between marks: a list of objects, or one after the other."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from aleator.chat.call_object import Calls, Deltas, read_call
from aleator.chat.families.family import Family, Function, Part, object_with, read_text
from aleator.chat.message import Delta
from aleator.chat.text_reader import TextReader
from aleator.core.records import dataclass


@dataclass(frozen=True)
class Wrapping:
    """How calls are written.

    Attributes:
        begin: Before them.
        end: After them; "": nothing.
        listed: They are a JSON list.
        name: The key of the name.
        arguments: The key of the arguments.
        first: What else an object begins with when it is written.
        answer: What stands around content that is no call.
    """

    begin: str
    end: str
    listed: bool = True
    name: str = "name"
    arguments: str = "arguments"
    first: str = ""
    answer: tuple[str, ...] = ()


class Wrapped(Family):
    """Templates whose models write calls as JSON between marks."""

    wrapping: ClassVar[Wrapping]

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        """See :meth:`Family.read`."""
        marks = self.wrapping
        while found := (yield from read_text(reader, marks.begin, *marks.answer)):
            if found in marks.answer:
                continue
            start, before = reader.at, calls.n
            yield from reader.skip_space()
            if marks.listed:
                yield from reader.read_any("[")
                yield from reader.skip_space()
            while (yield from read_call(reader, calls, key=marks.name)) == "call":
                yield from reader.skip_space()
                if marks.listed and not (yield from reader.read_any(",")):
                    break
                yield from reader.skip_space()
            if calls.n == before:
                reader.at = start
                yield Delta("content", marks.begin)
                continue
            if marks.listed:
                yield from reader.skip_space()
                yield from reader.read_any("]")
            yield from reader.skip_space()
            if marks.end:
                yield from reader.read_any(marks.end)
            yield from reader.skip_space()

    def call(self, function: Function) -> list[Part]:
        """See :meth:`Family.call`."""
        marks = self.wrapping
        begin, end = ("[", "]") if marks.listed else ("\n", "\n")
        inner = object_with(function, marks.arguments, marks.name, marks.first)
        return [f"{marks.begin}{begin}", *inner, f"{end}{marks.end}"]


class Granite(Wrapped):
    """Templates of Granite 3."""

    name = "granite"
    marks = ("<|tool_call|>",)
    wrapping = Wrapping("<|tool_call|>", "")

    @staticmethod
    def shows(template: str) -> bool:
        """Whether the template has their mark."""
        return "<|tool_call|>" in template


class NemotronNano(Wrapped):
    """Templates of Nemotron Nano v2."""

    name = "nemotron-v2"
    marks = ("<TOOLCALL>", "</TOOLCALL>")
    wrapping = Wrapping("<TOOLCALL>", "</TOOLCALL>")

    @staticmethod
    def shows(template: str) -> bool:
        """Whether the template has their mark."""
        return "<TOOLCALL>" in template


class ToolCallsList(Wrapped):
    """Templates of Apriel and others with a list in ``<tool_calls>``."""

    name = "tool-calls-list"
    marks = ("<tool_calls>", "</tool_calls>")
    wrapping = Wrapping("<tool_calls>", "</tool_calls>")

    @staticmethod
    def shows(template: str) -> bool:
        """Whether the template has their mark."""
        return "<tool_calls>[" in template


class ToolCallsLines(Wrapped):
    """Templates of MiniMax M1 and others with an object in each line of ``<tool_calls>``."""

    name = "tool-calls-lines"
    marks = ("<tool_calls>", "</tool_calls>")
    wrapping = Wrapping("<tool_calls>", "</tool_calls>", listed=False)

    @staticmethod
    def shows(template: str) -> bool:
        """Whether the template has their marks."""
        return "<tool_calls>\\n{" in template or "<tool_calls>\n{" in template


class CommandR7B(Wrapped):
    """Templates of Command R7B, Command A and later."""

    name = "command-r7b"
    marks = ("<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>")
    wrapping = Wrapping(
        "<|START_ACTION|>", "<|END_ACTION|>", name="tool_name", arguments="parameters",
        first='"tool_call_id": "0", ', answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    )  # fmt: skip

    @staticmethod
    def shows(template: str) -> bool:
        """Whether the template has their mark."""
        return "<|START_ACTION|>" in template
