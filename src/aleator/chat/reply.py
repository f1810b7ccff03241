"""A reply read as it comes: its reasoning first, then what its family makes of the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from aleator.chat.call_object import Calls, Deltas
from aleator.chat.families.family import Family, Thinking, read_text
from aleator.chat.message import Delta, Message, ToolCall
from aleator.chat.source import Source


class Reply:
    """Reads a reply.

    Args:
        family: How calls are written; None: there are no tools, and all is content.
        thinking: How reasoning is written; None: it is not, or the family reads it.
        opened: The prompt ends within reasoning already.
        tools: Schemas of the tools' arguments by the tools' names.
        key: Makes the ids of calls: equal keys give equal ids.
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
        self._source = Source()
        self._deltas = self._read()
        self._texts = {"content": "", "reasoning": ""}
        self._calls: list[ToolCall] = []

    @property
    def message(self) -> Message:
        """What was read so far."""
        return Message(self._texts["content"], self._texts["reasoning"], tuple(self._calls))

    def push(self, text: str) -> list[Delta]:
        """What a piece of the reply adds to the message."""
        self._source.add(text)
        return list(self._ready())

    def finish(self) -> list[Delta]:
        """What is left when the reply has ended."""
        self._source.ended = True
        return list(self._ready())

    def _ready(self) -> Iterator[Delta]:
        for delta in self._deltas:
            if delta is not None:
                yield self._taken(delta)
            elif not self._source.ended:
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
        source, thinking = self._source, self._thinking
        if thinking is not None:
            start, opened = source.at, self._opened
            if not opened:
                yield from source.space()
                opened = bool((yield from source.begins(thinking.begin)))
            if opened:
                yield from source.space()
                for delta in read_text(source, thinking.end):
                    yield None if delta is None else Delta("reasoning", delta.text)
                yield from source.space()
            else:
                source.at = start
        if self._family is None:
            yield from read_text(source)
        else:
            yield from self._family.read(source, Calls(), self._tools)
