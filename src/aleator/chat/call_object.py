"""A call of a tool as a JSON object with its name and arguments: how it is read, and forced."""

from __future__ import annotations

import json
from collections.abc import Collection, Generator
from typing import Literal

from aleator.chat.message import Delta, Function
from aleator.chat.reply import Calls, Deltas, Malformed, Part, Schema, TextReader, collected

_ARGUMENTS = ("arguments", "parameters")


def read_arguments(reader: TextReader, calls: Calls, name: str) -> Deltas:
    """A call whose name was read before; its arguments come as a JSON value, or Malformed is raised."""
    yield calls.begin(name)
    yield from _value(reader, calls)
    yield calls.end()


def read_call(
    reader: TextReader, calls: Calls, names: Collection[str] | None = None, key: str = "name"
) -> Generator[Delta | None, None, Literal["call", "broken", "text"]]:
    """A call as ``{"name": ..., "arguments": {...}}``, or with "parameters"; ``key`` is that of the name.

    To be a call it must have one of ``names``, and arguments; None: every object with a name is one.

    Returns:
        "call"; "broken": it had begun when it turned out to be wrong; "text": it is no call, and nothing was
        read.
    """
    start, name, held, begun, closed = reader.at, "", "", False, False
    try:
        yield from reader.expect("{")
        first = True
        while True:
            yield from reader.skip_space()
            if (yield from reader.peek()) == "}":
                reader.at += 1
                break
            if not first:
                yield from reader.expect(",")
            first = False
            word = yield from reader.read_string()
            yield from reader.expect(":")
            if word == key and not name:
                name = yield from reader.read_string()
                if names is not None and name not in names:
                    raise Malformed
                if held:
                    begun = closed = True
                    yield calls.begin(name)
                    yield calls.arguments(held)
            elif word in _ARGUMENTS and not begun and not held:
                if name:
                    begun = True
                    yield calls.begin(name)
                    yield from _value(reader, calls)
                    closed = True
                else:
                    held, _ = yield from collected(reader.read_value())
            else:
                yield from collected(reader.read_value())
        if not begun:
            if not name or names is not None:
                raise Malformed
            yield calls.begin(name)
            yield calls.arguments("{}")
        yield calls.end()
    except Malformed:
        if closed and reader.ended:
            yield calls.end()  # cut off after its arguments
            return "call"
        if begun:
            return "broken"
        reader.at = start
        return "text"
    return "call"


def _value(reader: TextReader, calls: Calls) -> Deltas:
    """The arguments; those that are written as JSON within a JSON string are taken out of it."""
    yield from reader.skip_space()
    if (yield from reader.peek()) == '"':
        said = yield from reader.read_string()
        try:
            json.loads(said)
        except (ValueError, RecursionError):
            raise Malformed from None
        yield calls.arguments(said)
        return
    for piece in reader.read_value():
        yield None if piece is None else calls.arguments(piece)


def object_with(function: Function, key: str, name: str = "name", first: str = "") -> list[Part]:
    """A call as a JSON object that begins with ``first``; ``key`` names the arguments, ``name`` the name."""
    head = f'{{{first}{json.dumps(name)}: {json.dumps(function.name)}, "{key}": '
    return [head, Schema(function.parameters), "}"]
