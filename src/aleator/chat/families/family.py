"""What a family of templates shares: how its models write calls of tools, and how to make them do so."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar

from aleator.chat.call_object import Calls, Deltas
from aleator.chat.message import Delta
from aleator.chat.text_reader import TextReader
from aleator.core.records import dataclass


@dataclass(frozen=True)
class Schema:
    """A place in a reply where JSON stands that a schema describes."""

    schema: Any


@dataclass(frozen=True)
class Words:
    """A place where a string stands without quotes.

    Attributes:
        limits: Of its schema "enum", "const", "minLength" and "maxLength".
        mark: What it is read up to, so that it has none.
        end: What is written after it, with the mark.
    """

    limits: Mapping[str, Any]
    mark: str
    end: str


@dataclass(frozen=True)
class Maybe:
    """Parts that may be left out."""

    parts: tuple[Part, ...]


Part = str | Schema | Words | Maybe
"""A part of a reply that is forced: text, in which names of control tokens are these tokens, or what is
drawn."""


@dataclass(frozen=True)
class Thinking:
    """What begins and ends a model's reasoning, and what stands between it and the answer."""

    begin: str
    end: str
    after: str = ""


@dataclass(frozen=True)
class Function:
    """A tool as it was declared: its name, and the JSON schema of its arguments."""

    name: str
    parameters: Any


class Family(ABC):
    """Templates whose models write calls in one way."""

    name: ClassVar[str]
    shown_by: ClassVar[tuple[str, ...]] = ()
    """What the text of such a template has, all of it; none: it may be any."""
    thinking: ClassVar[Thinking | None] = None
    """Of families that have a way of their own to write reasoning, and read it themselves."""
    marks: ClassVar[tuple[str, ...]] = ()
    """Names by which a reply is read, which may be control tokens."""

    def __init__(self, template: str) -> None:
        self.template = template

    @classmethod
    def shows(cls, template: str) -> bool:
        """Whether a template is of this family."""
        return all(mark in template for mark in cls.shown_by)

    @abstractmethod
    def read(self, reader: TextReader, calls: Calls, tools: Mapping[str, Any]) -> Deltas:
        """Read a reply, after its reasoning; ``tools`` are schemas of arguments by the tools' names."""

    @abstractmethod
    def call(self, function: Function) -> list[Part]:
        """A call of a function, and nothing else."""

    def turns(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Messages as the template reads them, where it wants results of tools elsewhere."""
        return messages

    def content(self, schema: Any) -> list[Part]:
        """An answer that is JSON, and nothing else."""
        return [Schema(schema)]


def read_text(reader: TextReader, *markers: str) -> Generator[Delta | None, None, str]:
    """Content up to a marker, which is read too; returns it, or "" at the end of the text."""
    pieces = reader.read_until(*markers)
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            return str(end.value)
        yield None if piece is None else Delta("content", piece)


def object_with(function: Function, key: str, name: str = "name", first: str = "") -> list[Part]:
    """A call as a JSON object that begins with ``first``; ``key`` names the arguments, ``name`` the name."""
    head = f'{{{first}{json.dumps(name)}: {json.dumps(function.name)}, "{key}": '
    return [head, Schema(function.parameters), "}"]
