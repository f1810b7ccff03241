"""Gemma 4: ``<|tool_call>call:name{key:<|"|>text<|"|>,n:2}<tool_call|>``, after the answer if any."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from aleator.chat.call_object import Calls, Deltas
from aleator.chat.families.family import Family, Function, Part, Words, read_text
from aleator.chat.families.named_arguments import forced, with_commas
from aleator.chat.message import Delta
from aleator.chat.source import Malformed, Source
from aleator.core.errors import GrammarError

BEGIN, END, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
THOUGHT, THOUGHT_END = "<|channel>", "<channel|>"
_CALL = re.compile(r"call:([^{\s]+)(?=\{)")
_KEY = re.compile(r"[^:}]+")
_PLAIN = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_SINGLE = frozenset(("number", "integer", "boolean", "null"))
_DEEPEST = 64
_NEWER = "{#- OpenAI Chat Completions:"
"""Templates with this comment read messages of tools as they are."""


class Gemma4(Family):
    """Templates of Gemma 4."""

    name = "gemma4"
    marks = (BEGIN, END, QUOTE, THOUGHT, THOUGHT_END)

    @staticmethod
    def shows(template: str) -> bool:
        """Whether the template has their mark."""
        return f"{BEGIN}call:" in template

    def read(self, source: Source, calls: Calls, tools: Mapping[str, Any]) -> Deltas:
        """See :meth:`Family.read`."""
        while found := (yield from read_text(source, BEGIN, THOUGHT, THOUGHT_END)):
            if found == THOUGHT:
                said, _ = yield from source.collect(THOUGHT_END)
                yield Delta("reasoning", said.removeprefix("thought").lstrip("\n"))
            if found != BEGIN:
                continue
            start = source.at
            try:
                said, _ = yield from source.exactly(END)
            except Malformed:  # the text ended without the mark
                said = source.since(start)
            call = parsed(said.strip())
            if call is None:
                source.at = start
                yield Delta("content", BEGIN)
                continue
            yield calls.begin(call[0])
            yield calls.arguments(json.dumps(call[1], ensure_ascii=False))
            yield calls.end()
            yield from source.space()

    def call(self, function: Function) -> list[Part]:
        """See :meth:`Family.call`."""
        listed = function.parameters.get("properties", {})

        def one(key: str, value: Part) -> list[Part]:
            if isinstance(value, Words):
                return [f"{key}:{QUOTE}", value]
            if not _is_single(listed.get(key)):
                raise GrammarError(
                    f"tools: parameters of {function.name}: {key!r} cannot be enforced in gemma4's form of "
                    "calls, where strings stand between marks: give it the type string, number, integer or "
                    "boolean"
                )
            return [f"{key}:", value]

        arguments = forced(function, self.name, one, QUOTE, QUOTE)
        head = f"{BEGIN}call:{function.name}{{"
        return [head, *with_commas(arguments), f"}}{END}"]

    def turns(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """See :meth:`Family.turns`: results are part of the message that called, as in llama.cpp."""
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
    """A tool's result as part of the message that called it."""
    results = caller.setdefault("tool_responses", [])
    calls = caller["tool_calls"]
    known = len(results) < len(calls)
    name = calls[len(results)]["function"]["name"] if known else message.get("tool_call_id", "")
    response = message.get("content")
    if isinstance(response, str):
        with suppress(ValueError, RecursionError):
            response = json.loads(response)
    results.append({"name": name, "response": response})


def _is_single(schema: Any) -> bool:
    """Whether a schema describes numbers, booleans or null, which are written as in JSON."""
    if not isinstance(schema, Mapping):
        return False
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        return all(value is None or isinstance(value, bool | int | float) for value in values)
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return set(kinds) <= _SINGLE


def parsed(text: str) -> tuple[str, dict[str, Any]] | None:
    """A call's name and arguments; None where the text is none."""
    head = _CALL.match(text)
    if head is None:
        return None
    try:
        value, end = _value(text, head.end(), 0)
    except ValueError:
        return None
    return (head[1], value) if end == len(text) and isinstance(value, dict) else None


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value that begins here, and where it ends.

    Raises:
        ValueError: There is none.
    """
    if depth > _DEEPEST:
        raise ValueError(depth)
    if text.startswith(QUOTE, at):
        end = text.index(QUOTE, at + len(QUOTE))
        return text[at + len(QUOTE) : end], end + len(QUOTE)
    if text[at : at + 1] in ("{", "["):
        return _several(text, at, depth)
    plain = _PLAIN.match(text, at)
    if plain is None:
        raise ValueError(at)
    return json.loads(plain[0]), plain.end()


def _several(text: str, at: int, depth: int) -> tuple[Any, int]:
    """A dictionary or a list; raises ValueError where there is none."""
    keyed = text[at] == "{"
    close = "}" if keyed else "]"
    members: list[tuple[str, Any]] = []
    at = _space(text, at + 1)
    while not text.startswith(close, at):
        if members:
            if not text.startswith(",", at):
                raise ValueError(at)
            at = _space(text, at + 1)
        name = ""
        if keyed:
            key = _KEY.match(text, at)
            if key is None or text[key.end() : key.end() + 1] != ":":
                raise ValueError(at)
            name = key[0].removeprefix(QUOTE).removesuffix(QUOTE)
            at = _space(text, key.end() + 1)
        value, at = _value(text, at, depth + 1)
        members.append((name, value))
        at = _space(text, at)
    made = dict(members) if keyed else [value for _, value in members]
    return made, at + 1


def _space(text: str, at: int) -> int:
    """Where the white space from here on ends."""
    while text[at : at + 1] in (" ", "\n", "\t", "\r"):
        at += 1
    return at
