"""Calls as JSON objects that are the whole reply: of Llama 3, and of templates without marks of their own."""

from __future__ import annotations

from collections.abc import Collection

from aleator.chat.call_object import object_with, read_call
from aleator.chat.message import Delta, Function
from aleator.chat.reply import Calls, Deltas, Family, Part, TextReader, read_text

TAG, START, END = "<|python_tag|>", "<|python_start|>", "<|python_end|>"


class Llama3(Family):
    """Templates of Llama 3.1 to 3.3 and 4: ``{"name": ..., "parameters": ...}``, perhaps after a tag."""

    name = "llama3"
    marks = (TAG, START, END)

    @classmethod
    def shows(cls, template: str) -> bool:
        """Whether the template has their marks."""
        headers = "<|start_header_id|>" in template or "<|header_start|>" in template
        return TAG in template or (headers and "ipython" in template)

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        start = reader.at
        yield from reader.skip_space()
        tagged = yield from reader.read_any(TAG, START)
        while (yield from read_call(reader, calls, tools)) == "call":
            yield from reader.skip_space()
            if not (yield from reader.read_any(";")):
                break
        if calls.n:
            yield from reader.read_any(END)
        elif not tagged:
            reader.at = start
        if mark := (yield from read_text(reader, TAG, START)):
            kind = yield from read_call(reader, calls, tools)
            if kind == "text":
                yield Delta("content", mark)
            else:
                yield from reader.skip_space()
                yield from reader.read_any(END)
            yield from read_text(reader)

    def call(self, function: Function) -> list[Part]:
        return object_with(function, "parameters")


class Generic(Family):
    """``{"name": ..., "arguments": ...}`` as the whole reply, with the name of a tool."""

    name = "generic"

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        start = reader.at
        yield from reader.skip_space()
        listed = yield from reader.read_any("[")
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
