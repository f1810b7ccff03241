"""Functionary: ``<function=name>{...}</function>``, and by recipients, ``>>>name`` and a line of arguments."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any

from aleator.chat.call_object import read_arguments
from aleator.chat.message import Function
from aleator.chat.reply import Calls, Deltas, Family, Malformed, Part, Schema, TextReader, read_text


class FunctionTags(Family):
    """Templates of Functionary 3.1."""

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
                if name.isprintable() and (yield from reader.peek()) == "{":
                    yield from read_arguments(reader, calls, name.strip())
                    yield from reader.read_next(self.END)
            if calls.n == before:
                yield reader.back(start, self.BEGIN)

    def call(self, function: Function) -> list[Part]:
        return [f"{self.BEGIN}{function.name}>", Schema(function.parameters), self.END]


class Recipients(Family):
    """Templates of Functionary 3.2, whose prompts end with the mark before the first recipient."""

    MARK, USER = ">>>", "all"

    name = "functionary-v3.2"
    shown_by = (f"{MARK}{USER}", f"{MARK}${{recipient}}")

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
