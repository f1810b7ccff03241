"""What a family of templates shares: how its models write calls of tools, and how to make them do so."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator
from typing import Any, ClassVar

from aleator.chat.call_object import Calls, Deltas
from aleator.chat.message import Delta
from aleator.chat.source import Source
from aleator.core.records import dataclass


@dataclass(frozen=True)
class Schema:
    """A place in a reply where JSON stands that a schema describes."""

    schema: Any


Part = str | Schema
"""A part of a reply that is forced: text, in which names of control tokens are these tokens, or JSON."""


@dataclass(frozen=True)
class Thinking:
    """How a model writes its reasoning.

    Attributes:
        begin: What begins it.
        end: What ends it.
        after: What stands between it and the answer.
    """

    begin: str
    end: str
    after: str = ""


@dataclass(frozen=True)
class Function:
    """A tool as it was declared.

    Attributes:
        name: Its name.
        parameters: JSON schema of its arguments.
    """

    name: str
    parameters: Any


class Family(ABC):
    """Templates whose models write calls in one way.

    Args:
        template: The template's text.
    """

    name: ClassVar[str]
    thinking: ClassVar[Thinking | None] = None
    """Of families that have a way of their own to write reasoning, and read it themselves."""
    marks: ClassVar[tuple[str, ...]] = ()
    """Names by which a reply is read, which may be control tokens."""

    def __init__(self, template: str) -> None:
        self.template = template

    @staticmethod
    @abstractmethod
    def shows(template: str) -> bool:
        """Whether a template is of this family."""

    @abstractmethod
    def read(self, source: Source, calls: Calls, names: Collection[str]) -> Deltas:
        """Read a reply, after its reasoning.

        Args:
            source: The text.
            calls: Of the reply.
            names: Of the tools.
        """

    @abstractmethod
    def call(self, function: Function) -> list[Part]:
        """A call of a function, and nothing else."""

    def content(self, schema: Any) -> list[Part]:
        """An answer that is JSON, and nothing else."""
        return [Schema(schema)]


def read_text(source: Source, *markers: str) -> Generator[Delta | None, None, str]:
    """Content up to a marker, which is read too; returns it, or "" at the end of the text."""
    pieces = source.until(*markers)
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            return str(end.value)
        yield None if piece is None else Delta("content", piece)


def object_with(function: Function, key: str) -> list[Part]:
    """A call as a JSON object, with its arguments under a key."""
    head = f'{{"name": {json.dumps(function.name)}, "{key}": '
    return [head, Schema(function.parameters), "}"]
