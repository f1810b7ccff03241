"""Calls as JSON objects: between marks, in a list or in sequence, or as the whole reply."""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import suppress
from typing import ClassVar

from aleator.chat.call_object import object_with, read_arguments, read_call
from aleator.chat.message import Delta, Function
from aleator.chat.reply import Calls, Deltas, Family, Malformed, Part, Schema, TextReader, read_text

BEGIN, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
"""Mistral's marks."""


class Wrapped(Family):
    """Templates whose models write calls as JSON between marks."""

    begin: ClassVar[str]
    end: ClassVar[str] = ""
    listed: ClassVar[bool] = True
    """Whether the calls form a JSON list."""
    single: ClassVar[bool] = False
    """Whether there is at most one call."""
    keys: ClassVar[tuple[str, str]] = ("name", "arguments")
    first: ClassVar[str] = ""
    """Text at the start of an object that is written."""
    answer: ClassVar[tuple[str, ...]] = ()
    """Text around content that is not a call."""

    def __init_subclass__(cls) -> None:
        cls.around_calls, cls.marks_content = (cls.begin, cls.end), bool(cls.answer)

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        begins = (self.begin,) if tools else ()
        while found := (yield from read_text(reader, *begins, *self.answer)):
            if found in self.answer:
                continue
            start, before = reader.at, calls.n
            yield from reader.skip_space()
            if self.listed:
                yield from reader.read_any("[")
                yield from reader.skip_space()
            while (yield from read_call(reader, calls, key=self.keys[0])) == "call":
                yield from reader.skip_space()
                if self.single or (self.listed and not (yield from reader.read_any(","))):
                    break
                yield from reader.skip_space()
            if calls.n == before:
                yield reader.back(start, self.begin)
                continue
            if self.listed:
                yield from reader.read_next("]")
            yield from reader.skip_space()
            if self.end:
                yield from reader.read_end(self.end)
                yield from reader.skip_space()

    def call(self, function: Function) -> list[Part]:
        begin, end = ("[", "]") if self.listed else ("\n", "\n")
        inner = object_with(function, self.keys[1], self.keys[0], self.first)
        return [f"{self.begin}{begin}", *inner, f"{end}{self.end}"]


class Hermes(Wrapped):
    """Templates of Hermes, Qwen 2.5, Qwen 3 and others of their form."""

    name = "hermes"
    shown_by = ("<tool_call>",)
    begin, end = marks = ("<tool_call>", "</tool_call>")
    listed, single = False, True


class Granite(Wrapped):
    """Templates of Granite 3."""

    name = "granite"
    shown_by = ("<|tool_call|>",)
    (begin,) = marks = ("<|tool_call|>",)


class NemotronNano(Wrapped):
    """Templates of Nemotron Nano v2."""

    name = "nemotron-v2"
    shown_by = ("<TOOLCALL>",)
    begin, end = marks = ("<TOOLCALL>", "</TOOLCALL>")


class ToolCallsList(Wrapped):
    """Templates of Apriel and others with a list in ``<tool_calls>``."""

    name = "tool-calls-list"
    shown_by = ("<tool_calls>[",)
    begin, end = marks = ("<tool_calls>", "</tool_calls>")


class ToolCallsLines(Wrapped):
    """Templates of MiniMax M1 and others with an object in each line of ``<tool_calls>``."""

    name = "tool-calls-lines"
    shown_by = (("<tool_calls>\\n{", "<tool_calls>\n{"),)
    begin, end = marks = ("<tool_calls>", "</tool_calls>")
    listed = False


class CommandR7B(Wrapped):
    """Templates of Command R7B, Command A and later."""

    name = "command-r7b"
    shown_by = ("<|START_ACTION|>",)
    begin, end = "<|START_ACTION|>", "<|END_ACTION|>"
    answer = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
    marks = (begin, end, *answer)
    keys, first = ("tool_name", "parameters"), '"tool_call_id": "0", '


class FireFunction(Wrapped):
    """Templates of FireFunction 2."""

    name = "firefunction"
    shown_by = ("functools[",)
    begin = "functools"


class GigaChat(Wrapped):
    """Templates of GigaChat 3.1."""

    name = "gigachat"
    shown_by = ("<|role_sep|>", "<|function_call|>")
    (begin,) = marks = ("<|function_call|>",)
    listed, single = False, True


class GigaChat3(Wrapped):
    """Templates of GigaChat 3, where a call is a message of its own."""

    name = "gigachat3"
    shown_by = ("<|role_sep|>", "<|message_sep|>", "'function call'")
    marks = ("<|message_sep|>", "<|role_sep|>")
    begin = "<|message_sep|>\n\nfunction call<|role_sep|>\n"
    listed, single = False, True


class Mistral(Family):
    """Templates of Mistral: ``[TOOL_CALLS][{"name": ...}]``, later ``[TOOL_CALLS]name[ARGS]{...}``."""

    name = "mistral"
    shown_by = (BEGIN,)
    marks = (BEGIN, ARGUMENTS, CALL_ID)
    around_calls = (BEGIN, "")

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        while (yield from read_text(reader, BEGIN)):
            start = reader.at
            if (yield from reader.read_next("[")):
                found = yield from self._list(reader, calls)
            elif (yield from reader.peek()) == "{":
                found = (yield from read_call(reader, calls)) != "text"
            else:
                found = yield from self._named(reader, calls)
            if found:
                yield from reader.skip_space()
            else:
                yield reader.back(start, BEGIN)

    def _list(self, reader: TextReader, calls: Calls) -> Generator[Delta | None, None, bool]:
        before = calls.n
        while (yield from read_call(reader, calls)) == "call":
            if not (yield from reader.read_next(",")):
                break
        yield from reader.read_any("]")
        return calls.n > before

    def _named(self, reader: TextReader, calls: Calls) -> Generator[Delta | None, None, bool]:
        name = ""
        while (yield from reader.peek()) not in ("", "[", "{", "\n"):
            name += yield from reader.peek()
            reader.at += 1
        named = yield from reader.read_end(CALL_ID)
        if named:
            while (yield from reader.peek()) not in ("", "[", "{"):
                reader.at += 1
        follows = yield from reader.read_end(ARGUMENTS)
        named = follows or named
        follows = yield from reader.peek()
        if not name.strip() or (follows != "{" and (follows or not named)):
            return False
        with suppress(Malformed):  # cut off before or within its arguments
            yield from read_arguments(reader, calls, name.strip())
        return True

    def call(self, function: Function) -> list[Part]:
        if ARGUMENTS in self.template:
            return [f"{BEGIN}{function.name}{ARGUMENTS}", Schema(function.parameters)]
        return [f"{BEGIN}[", *object_with(function, "arguments"), "]"]


TAG, START, END = "<|python_tag|>", "<|python_start|>", "<|python_end|>"


class Llama3(Family):
    """Templates of Llama 3.1 to 3.3 and 4: ``{"name": ..., "parameters": ...}``, possibly after a tag."""

    name = "llama3"
    # The tag; or ipython, and a header of either form
    shown_by = ((TAG, "ipython"), (TAG, "<|start_header_id|>", "<|header_start|>"))
    marks = (TAG, START, END)

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        start = reader.at
        tagged = yield from reader.read_next(TAG, START)
        while (yield from read_call(reader, calls, tools)) == "call":
            if not (yield from reader.read_next(";")):
                break
        if calls.n:
            yield from reader.read_any(END)
        elif not tagged:
            reader.at = start
        if mark := (yield from read_text(reader, TAG, START)):
            kind = yield from read_call(reader, calls, tools)
            if kind == "text":
                yield reader.back(reader.at, mark)
            else:
                yield from reader.read_next(END)
            yield from read_text(reader)

    def call(self, function: Function) -> list[Part]:
        return object_with(function, "parameters")


class Generic(Family):
    """``{"name": ..., "arguments": ...}`` as the whole reply, with the name of a tool."""

    name = "generic"

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        start = reader.at
        listed = yield from reader.read_next("[")
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
        return object_with(function, "arguments")
