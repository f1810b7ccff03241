"""gpt-oss: a reply is messages on channels, ``<|channel|>final<|message|>...``; a call names its recipient."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from typing import Any, ClassVar

from aleator.chat.call_object import read_arguments
from aleator.chat.message import Delta, Function
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
    read_text,
)

CHANNEL, MESSAGE, START, END = "<|channel|>", "<|message|>", "<|start|>", "<|end|>"
CALL, RETURN, AGAIN = "<|call|>", "<|return|>", f"{START}assistant"
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")


class Harmony(Family):
    """Templates of gpt-oss."""

    name = "harmony"
    shown_by = (CHANNEL, MESSAGE)
    marks = (CHANNEL, MESSAGE, START, END, "<|constrain|>")
    thinking: ClassVar[Thinking | None] = Thinking(f"{CHANNEL}analysis{MESSAGE}", END, AGAIN)

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        while True:
            start = reader.at
            header, marked = yield from collected(reader.read_until(MESSAGE))
            if not marked:
                if start == 0 and not header.startswith((CHANNEL, START)):
                    yield Delta("content", header)  # no channels at all
                return
            recipient = _RECIPIENT.search(header)
            if recipient is not None:
                with suppress(Malformed):  # cut off within its arguments
                    yield from read_arguments(reader, calls, recipient[1])
                yield from collected(reader.read_until(END, CALL, RETURN, AGAIN))
                continue
            reasoning = f"{CHANNEL}analysis" in header
            for delta in read_text(reader, END, CALL, RETURN, AGAIN):
                yield Delta("reasoning", delta.text) if delta and reasoning else delta

    def call(self, function: Function) -> list[Part]:
        head = f"{CHANNEL}commentary to=functions.{function.name} <|constrain|>json{MESSAGE}"
        return [head, Schema(function.parameters)]

    def content(self, schema: Any) -> list[Part]:
        return [f"{CHANNEL}final{MESSAGE}", Schema(schema)]
