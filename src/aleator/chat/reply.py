"""Reads a reply while it is written: its reasoning first, then content and calls as its family writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from aleator.chat.call_object import Calls, Deltas
from aleator.chat.families.family import Family, Thinking, read_text
from aleator.chat.message import Delta, Message, ToolCall
from aleator.chat.text_reader import TextReader


class Reply:
    """Reads a reply.

    Args:
        family: How calls are written; None: there are no tools, and all is content.
        thinking: How the model writes reasoning; None: it does not, or the family reads it.
        opened: Whether the prompt ends within reasoning.
        tools: Schemas of the tools' arguments by name.
        key: The ids of calls are made of it: equal keys give equal ids.
    """

    def __init__(
        self,
        family: Family | None,
        thinking: Thinking | None = None,
        opened: bool = False,
        tools: Mapping[str, Any] | None = None,
        key: bytes = b"",
    ) -> None:
        self._family, self._thinking, self._opened = family, thinking, opened
        self._tools, self._key = dict(tools or {}), key
        self._reader = TextReader()
        self._deltas = self._read()
        self._texts = {"content": "", "reasoning": ""}
        self._calls: list[ToolCall] = []

    @property
    def message(self) -> Message:
        """The message, as far as it was read."""
        return Message(self._texts["content"], self._texts["reasoning"], tuple(self._calls))

    def push(self, text: str) -> list[Delta]:
        """Read a piece of the reply; returns what it adds to the message."""
        self._reader.add(text)
        return list(self._ready())

    def finish(self) -> list[Delta]:
        """Read the rest after the reply has ended; returns what it adds to the message."""
        self._reader.ended = True
        return list(self._ready())

    def _ready(self) -> Iterator[Delta]:
        for delta in self._deltas:
            if delta is not None:
                yield self._taken(delta)
            elif not self._reader.ended:
                return

    def _taken(self, delta: Delta) -> Delta:
        if delta.kind == "call":
            digest = sha256(self._key + delta.index.to_bytes(4, "little")).hexdigest()
            self._calls.append(ToolCall(digest[:9], delta.text, "", complete=False))
            return Delta("call", delta.text, delta.index, digest[:9])
        if delta.kind == "content" or delta.kind == "reasoning":
            self._texts[delta.kind] += delta.text
            return delta
        call = self._calls[delta.index]
        complete = delta.kind == "call_end"
        self._calls[delta.index] = ToolCall(
            call.id, call.name, call.arguments + delta.text, complete
        )
        return delta

    def _read(self) -> Deltas:
        reader, thinking = self._reader, self._thinking
        if thinking is not None:
            start, opened = reader.at, self._opened
            if not opened:
                yield from reader.skip_space()
                opened = bool((yield from reader.read_any(thinking.begin)))
            if opened:
                yield from reader.skip_space()
                for delta in read_text(reader, thinking.end):
                    yield None if delta is None else Delta("reasoning", delta.text)
                yield from reader.skip_space()
            else:
                reader.at = start
        if self._family is None:
            yield from read_text(reader)
        else:
            yield from self._family.read(reader, Calls(), self._tools)
