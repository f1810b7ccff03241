"""Calls with the name apart from the arguments, as in gpt-oss, Kimi, DeepSeek and Functionary."""

from __future__ import annotations

import re
from collections.abc import Collection, Generator
from contextlib import suppress
from typing import Any, ClassVar

from aleator.chat.call_object import read_arguments
from aleator.chat.message import Delta, Function, Kind
from aleator.chat.reply import (
    Calls,
    Deltas,
    Family,
    Malformed,
    Part,
    Schema,
    TextReader,
    Thinking,
    collected,
    read_kind,
    read_text,
)


class Harmony(Family):
    """Templates of gpt-oss: messages on channels, ``<|channel|>final<|message|>``; calls name a recipient."""

    CHANNEL, MESSAGE, START, END = "<|channel|>", "<|message|>", "<|start|>", "<|end|>"
    CALL, RETURN, AGAIN = "<|call|>", "<|return|>", f"{START}assistant"
    _RECIPIENT = re.compile(r"to=(functions\.)?([^\s<]+)")

    name = "harmony"
    shown_by = (CHANNEL, MESSAGE)
    marks = (CHANNEL, MESSAGE, START, END, "<|constrain|>")
    around_calls = (f"{CHANNEL}commentary to=", CALL)
    thinking: ClassVar[Thinking | None] = Thinking(f"{CHANNEL}analysis{MESSAGE}", END, AGAIN)

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        while True:
            start = reader.at
            header, marked = yield from collected(reader.read_until(self.MESSAGE))
            if not marked:
                if start == 0 and not header.startswith((self.CHANNEL, self.START)):
                    yield Delta("content", header)  # without channels
                return
            recipient = self._RECIPIENT.search(header)
            if recipient is not None and (recipient[1] or recipient[2] in tools):
                with suppress(Malformed):  # cut off within its arguments
                    yield from read_arguments(reader, calls, recipient[2])
                yield from collected(
                    reader.read_until(self.END, self.CALL, self.RETURN, self.AGAIN)
                )
                continue
            # What is for a tool that is not here is no answer.
            answers = recipient is None or f"{self.CHANNEL}final" in header
            thinks = f"{self.CHANNEL}analysis" in header
            kind: Kind = "content" if answers and not thinks else "reasoning"
            yield from read_kind(kind, reader, self.END, self.CALL, self.RETURN, self.AGAIN)

    def call(self, function: Function) -> list[Part]:
        head = (
            f"{self.CHANNEL}commentary to=functions.{function.name} <|constrain|>json{self.MESSAGE}"
        )
        return [head, Schema(function.parameters)]

    def content(self, schema: Any) -> list[Part]:
        return [f"{self.CHANNEL}final{self.MESSAGE}", Schema(schema)]


class Kimi(Family):
    """Templates of Kimi K2: ``<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}``."""

    BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    CALL, ARGUMENTS, CALL_END = (
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    )
    _NAME = re.compile(r"(?:functions\.)?([\w.-]+?)(?::\d+)?")

    name = "kimi"
    shown_by = (BEGIN,)
    marks = (BEGIN, END, CALL, ARGUMENTS, CALL_END)
    around_calls = (BEGIN, END)
    ends_reasoning = (BEGIN, CALL)

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        while mark := (yield from read_text(reader, self.BEGIN, self.CALL)):
            start, before = reader.at, calls.n
            yield from reader.skip_space()
            if mark == self.BEGIN:
                yield from reader.read_any(self.CALL)
            with suppress(Malformed):
                while True:
                    said, _ = yield from reader.read_exactly(self.ARGUMENTS)
                    name = self._NAME.fullmatch(said.strip())
                    if name is None:
                        break
                    yield from read_arguments(reader, calls, name[1])
                    yield from reader.read_next(self.CALL_END)
                    if not (yield from reader.read_next(self.CALL)):
                        break
            if calls.n == before:
                yield reader.back(start, mark)
                continue
            yield from reader.read_any(self.END)
            yield from reader.skip_space()

    def call(self, function: Function) -> list[Part]:
        head = f"{self.BEGIN}{self.CALL}functions.{function.name}:0{self.ARGUMENTS}"
        return [head, Schema(function.parameters), f"{self.CALL_END}{self.END}"]


class DeepSeek(Family):
    """Templates of DeepSeek R1 and V3 (arguments in a block of code), and of V3.1 on (bare)."""

    BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    FENCE = "```"

    name = "deepseek"
    shown_by = (CALL,)
    marks = (BEGIN, END, CALL, SEPARATOR, CALL_END)
    around_calls = (BEGIN, END)

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        while mark := (yield from read_text(reader, self.BEGIN, self.CALL)):
            start = reader.at
            if mark == self.BEGIN:
                yield from reader.read_next(self.CALL)
            while (yield from self._call(reader, calls)):
                mark = yield from reader.read_next(self.CALL)
                start = reader.at
                if not mark:
                    break
            if mark:
                yield reader.back(start, mark)
                continue
            yield from reader.read_end(self.END)
            yield from reader.skip_space()

    def _call(self, reader: TextReader, calls: Calls) -> Generator[Delta | None, None, bool]:
        """Read a call after its mark; False: it is none."""
        name, apart, named = "", False, False
        while (character := (yield from reader.peek())) not in ("", "\n", "{"):
            named = bool((yield from reader.read_any(self.SEPARATOR)))
            apart = apart or named
            if not named:
                name += character
                reader.at += 1
            elif name.strip() == "function":
                name = ""  # R1 and V3 put the kind of tool first
        named = named or (apart and character == "\n")
        fenced = yield from reader.read_end(f"{self.FENCE}json")
        if not fenced:
            fenced = yield from reader.read_any(self.FENCE)
        yield from reader.skip_space()
        follows = yield from reader.peek()
        if not name.strip() or (follows != "{" and (follows or not named)):
            return False
        with suppress(Malformed):  # cut off before or within its arguments
            yield from read_arguments(reader, calls, name.strip())
            if fenced:
                yield from reader.read_end(self.FENCE)
            yield from reader.read_end(self.CALL_END)
        return True

    def call(self, function: Function) -> list[Part]:
        if self.FENCE in self.template:
            head = f"{self.BEGIN}{self.CALL}function{self.SEPARATOR}{function.name}\n{self.FENCE}json\n"
        else:
            head = f"{self.BEGIN}{self.CALL}{function.name}{self.SEPARATOR}"
        return [head, Schema(function.parameters)]


class FunctionTags(Family):
    """Templates of Functionary 3.1: ``<function=name>{...}</function>``."""

    BEGIN, END = "<function=", "</function>"

    name = "functionary-v3.1"
    shown_by = ("has_code_interpreter", BEGIN, END)
    around_calls = (BEGIN, END)

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        while (yield from read_text(reader, self.BEGIN)):
            start, before = reader.at, calls.n
            with suppress(Malformed):
                name, _ = yield from reader.read_exactly(">")
                yield from reader.skip_space()
                if name.isprintable() and (yield from reader.peek()) in ("{", ""):
                    yield from read_arguments(reader, calls, name.strip())
                    yield from reader.read_end(self.END)
            if calls.n == before:
                yield reader.back(start, self.BEGIN)

    def call(self, function: Function) -> list[Part]:
        return [f"{self.BEGIN}{function.name}>", Schema(function.parameters), self.END]


class Recipients(Family):
    """Templates of Functionary 3.2: ``>>>name`` and a line of arguments.

    Their prompts end with the mark before the first recipient.
    """

    MARK, USER = ">>>", "all"

    name = "functionary-v3.2"
    shown_by = (f"{MARK}{USER}", f"{MARK}${{recipient}}")
    marks_content = True

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        mark = yield from reader.read_next(self.MARK)
        while True:
            start = reader.at
            try:
                name, _ = yield from reader.read_exactly("\n")
            except Malformed:
                name = ""
            if name.strip() in tools:
                with suppress(Malformed):  # cut off within its arguments
                    yield from read_arguments(reader, calls, name.strip())
            elif name.strip() != self.USER:
                reader.at = start
                if mark:
                    yield reader.back(start, mark)
            mark = yield from read_text(reader, self.MARK)
            if not mark:
                break

    def call(self, function: Function) -> list[Part]:
        return [f"{function.name}\n", Schema(function.parameters)]

    def content(self, schema: Any) -> list[Part]:
        return [f"{self.USER}\n", Schema(schema)]
