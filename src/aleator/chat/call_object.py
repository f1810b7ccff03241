"""Reads and forces a tool call that is a JSON object with a name and arguments."""

from __future__ import annotations

import json
from collections.abc import Collection, Generator
from typing import Literal

from aleator.chat.message import Delta, Function
from aleator.chat.reply import Calls, Deltas, Malformed, Part, Schema, TextReader, collected
from aleator.core.json_text import loads

_ARGUMENTS = ("arguments", "parameters")


def read_arguments(reader: TextReader, calls: Calls, name: str) -> Deltas:
    """Read the arguments of a call after its name, as a JSON value; raise Malformed if there is none."""
    yield calls.begin(name)
    yield from _value(reader, calls)
    yield calls.end()


def read_call(
    reader: TextReader, calls: Calls, names: Collection[str] | None = None, key: str = "name"
) -> Generator[Delta | None, None, Literal["call", "broken", "text"]]:
    """Read a call as ``{"name": ..., "arguments": {...}}``, or with "parameters"; ``key`` is the key of the
    name.

    A call has one of ``names``, and arguments; None: every object with a name is a call.

    Returns:
        "call"; "broken": the object turned out to be wrong after the call had begun, or is cut off after its
        name; "text": it is not a call, and nothing was read.
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
                said = yield from reader.read_string()
                if names is not None and said not in names:
                    raise Malformed
                name = said
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
            if names is not None:
                name = ""  # without arguments it calls no tool
            if not name:
                raise Malformed
            yield calls.begin(name)
            yield calls.arguments("{}")
        yield calls.end()
    except Malformed:
        if closed and reader.ended:
            yield calls.end()  # cut off after its arguments
            return "call"
        if name and not begun and not (yield from reader.peek()):  # cut off before its arguments
            begun = True
            yield calls.begin(name)
        if begun:
            return "broken"
        reader.at = start
        return "text"
    return "call"


def _value(reader: TextReader, calls: Calls) -> Deltas:
    """Read the arguments; unwrap them if they are JSON within a JSON string."""
    yield from reader.skip_space()
    if (yield from reader.peek()) == '"':
        said = yield from reader.read_string()
        try:
            loads(said)
        except ValueError:
            raise Malformed from None
        yield calls.arguments(said)
        return
    for piece in reader.read_value():
        yield None if piece is None else calls.arguments(piece)


def object_with(function: Function, key: str, name: str = "name", first: str = "") -> list[Part]:
    """The parts of a call as a JSON object that begins with ``first``; ``key`` and ``name`` are its keys."""
    head = f'{{{first}{json.dumps(name)}: {json.dumps(function.name)}, "{key}": '
    return [head, Schema(function.parameters), "}"]
