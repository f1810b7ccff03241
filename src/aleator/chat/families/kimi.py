"""Kimi K2: ``<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>``."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress

from aleator.chat.call_object import read_arguments
from aleator.chat.message import Delta, Function
from aleator.chat.reply import Calls, Deltas, Family, Malformed, Part, Schema, TextReader, read_text

BEGIN, END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_NAME = re.compile(r"(?:functions\.)?([\w.-]+?)(?::\d+)?")


class Kimi(Family):
    """Templates of Kimi K2."""

    name = "kimi"
    shown_by = (BEGIN,)
    marks = (BEGIN, END, CALL, ARGUMENTS, CALL_END)

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        while mark := (yield from read_text(reader, BEGIN, CALL)):
            start, before = reader.at, calls.n
            yield from reader.skip_space()
            if mark == BEGIN:
                yield from reader.read_any(CALL)
            with suppress(Malformed):
                while True:
                    said, _ = yield from reader.read_exactly(ARGUMENTS)
                    name = _NAME.fullmatch(said.strip())
                    if name is None:
                        break
                    yield from read_arguments(reader, calls, name[1])
                    yield from reader.skip_space()
                    yield from reader.read_any(CALL_END)
                    yield from reader.skip_space()
                    if not (yield from reader.read_any(CALL)):
                        break
            if calls.n == before:
                reader.at = start
                yield Delta("content", mark)
                continue
            yield from reader.read_any(END)
            yield from reader.skip_space()

    def call(self, function: Function) -> list[Part]:
        head = f"{BEGIN}{CALL}functions.{function.name}:0{ARGUMENTS}"
        return [head, Schema(function.parameters), f"{CALL_END}{END}"]
