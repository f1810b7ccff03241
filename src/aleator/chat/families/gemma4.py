"""Gemma 4: ``<|tool_call>call:name{key:<|"|>text<|"|>,n:2}<tool_call|>``."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aleator.chat.families.named_arguments import forced, no_constant, with_commas
from aleator.chat.message import Delta, Function
from aleator.chat.reply import (
    Calls,
    Deltas,
    Family,
    Malformed,
    Part,
    TextReader,
    Words,
    collected,
    read_text,
)
from aleator.core.json_text import check_levels, loads

BEGIN, END, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
THOUGHT, THOUGHT_END = "<|channel>", "<channel|>"
_HEAD = re.compile(r"\s*call:([\w.-]+)\s*(?={)")
_BARE = re.compile(r"[^,:{}\[\]]+")
_DEPTH = 64
_NEWER = "{#- OpenAI Chat Completions:"
"""Templates with this comment take tool messages unchanged."""


class Gemma4(Family):
    """Templates of Gemma 4."""

    name = "gemma4"
    shown_by = (f"{BEGIN}call:",)
    marks = (BEGIN, END, QUOTE, THOUGHT, THOUGHT_END)
    around_calls = (BEGIN, END)
    marks_content = True

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        begins = (BEGIN,) if tools else ()
        while found := (yield from read_text(reader, *begins, THOUGHT, THOUGHT_END)):
            if found == THOUGHT:
                thought, _ = yield from collected(reader.read_until(THOUGHT_END))
                thought = thought.removeprefix(THOUGHT)  # which some write twice
                yield Delta("reasoning", thought.removeprefix("thought").lstrip("\n"))
            if found != BEGIN:
                continue
            start = reader.at
            said, _ = yield from collected(reader.read_until(END))
            head = _HEAD.match(said)
            arguments = None
            if head is not None:
                with suppress(Malformed):
                    arguments, end = _value(said, head.end(), 0)
                    if said[end:].strip():
                        arguments = None
            if head is None or arguments is None:
                yield reader.back(start, BEGIN)
                continue
            yield from calls.whole(head[1], json.dumps(arguments, ensure_ascii=False))
            yield from reader.skip_space()

    def call(self, function: Function) -> list[Part]:
        def one(key: str, value: Part) -> list[Part]:
            return [f"{key}:{QUOTE}" if isinstance(value, Words) else f"{key}:", value]

        arguments = forced(function, self.name, one, QUOTE, QUOTE)
        head = f"{BEGIN}call:{function.name}{{"
        return [head, *with_commas(arguments, ","), f"}}{END}"]

    def turns(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """See :meth:`Family.turns`: results become part of the message with the call, as in llama.cpp."""
        if "tool_responses" not in self.template or _NEWER in self.template:
            return messages
        made: list[dict[str, Any]] = []
        for message in messages:
            last = made[-1] if made else {}
            if message["role"] == "tool" and last.get("tool_calls"):
                _add_result(last, message)
            elif (
                message["role"] == "assistant"
                and last.get("tool_responses")
                and not message.get("tool_calls")
                and message.get("content")
                and not last.get("content")
            ):
                last["content"] = message["content"]
            else:
                made.append(dict(message))
        return made


def _add_result(caller: dict[str, Any], message: Mapping[str, Any]) -> None:
    """Add a tool's result to the message with its call."""
    results = caller.setdefault("tool_responses", [])
    calls = caller["tool_calls"]
    known = len(results) < len(calls)
    name = calls[len(results)]["function"]["name"] if known else message.get("tool_call_id", "")
    response = message.get("content")
    if isinstance(response, str):
        with suppress(ValueError):
            response = loads(response)
    results.append({"name": name, "response": response})


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value at index ``at``, and where it ends."""
    if depth == _DEPTH:
        raise Malformed
    if text.startswith(QUOTE, at):
        begin = at + len(QUOTE)
        end = text.find(QUOTE, begin)
        if end < 0:
            raise Malformed
        return text[begin:end], end + len(QUOTE)
    if text[at : at + 1] in ("{", "["):
        try:
            value, end = json.JSONDecoder(parse_constant=no_constant).raw_decode(text, at)
            check_levels(text[at:end])
        except (ValueError, RecursionError):
            return _several(text, at + 1, depth, text[at] == "{")
        return value, end
    bare = _BARE.match(text, at)
    if bare is None:
        raise Malformed
    word = bare[0].strip()
    try:
        return loads(word, parse_constant=no_constant), bare.end()
    except ValueError:
        return word, bare.end()


def _several(text: str, at: int, depth: int, keyed: bool) -> tuple[Any, int]:
    """The members of an object or list, up to its end."""
    members: dict[str, Any] = {}
    values: list[Any] = []
    close = "}" if keyed else "]"
    while text[at : at + 1] != close:
        if members or values:
            if text[at : at + 1] != ",":
                raise Malformed
            at += 1
        if keyed:
            key, at = _value(text, at, depth + 1)
            if not isinstance(key, str) or text[at : at + 1] != ":":
                raise Malformed
            member, at = _value(text, at + 1, depth + 1)
            members[key] = member
        else:
            value, at = _value(text, at, depth + 1)
            values.append(value)
    return (members if keyed else values), at + 1
