"""Calls in Python syntax: ``<|tool_call_start|>[name(key="value", n=2)]<|tool_call_end|>``."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from aleator.chat.families.named_arguments import forced, with_commas
from aleator.chat.message import Delta, Function
from aleator.chat.reply import Calls, Deltas, Family, Part, TextReader, collected, read_text

_JSON = {"true": True, "false": False, "null": None}


class Pythonic(Family):
    """Templates of LFM2 and LFM2.5."""

    name: ClassVar[str] = "pythonic"
    begin: ClassVar[str] = "<|tool_call_start|>"
    end: ClassVar[str] = "<|tool_call_end|>"
    marks = (begin, end)
    around_calls: ClassVar[tuple[str, str] | None] = (begin, end)

    @classmethod
    def shows(cls, template: str) -> bool:
        """Whether the template has the family's marks."""
        shown = ("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: [")
        return any(mark in template for mark in shown)

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        while (yield from read_text(reader, self.begin)):
            start = reader.at
            said, _ = yield from collected(reader.read_until(self.end))
            found = parsed(said, tools)
            if found is None:
                reader.at = start
                yield Delta("content", self.begin)
                continue
            yield from written(found, calls)
            yield from reader.skip_space()

    def call(self, function: Function) -> list[Part]:
        head = f"{self.begin}[{function.name}("
        return [head, *self.arguments(function), f")]{self.end}"]

    def arguments(self, function: Function) -> list[Part]:
        """Arguments by name, as a grammar forces them."""
        return with_commas(forced(function, self.name, lambda key, value: [f"{key}=", value]))


class PythonicList(Pythonic):
    """Templates of Llama 3.2 and 4 that ask for ``[name(key="value"), ...]`` as the whole reply."""

    name: ClassVar[str] = "pythonic-list"
    begin: ClassVar[str] = "<|python_start|>"
    end: ClassVar[str] = "<|python_end|>"
    marks = (begin, end)
    around_calls = None

    @classmethod
    def shows(cls, template: str) -> bool:
        """Whether the template says how calls are written."""
        return "[func_name1(" in template

    def read(self, reader: TextReader, calls: Calls, tools: Collection[str]) -> Deltas:
        start = reader.at
        yield from reader.read_next(self.begin)
        yield from reader.skip_space()
        if (yield from reader.peek()) == "[":
            said, _ = yield from collected(reader.read_until(self.end))
            found = parsed(said, tools) or []
            if found and all(name in tools for name, _ in found):
                yield from written(found, calls)
                start = reader.at
        reader.at = start
        yield from read_text(reader)

    def call(self, function: Function) -> list[Part]:
        return [f"[{function.name}(", *self.arguments(function), ")]"]


def written(found: list[tuple[str, dict[str, Any]]], calls: Calls) -> Deltas:
    """The deltas of whole calls."""
    for name, arguments in found:
        yield calls.begin(name)
        yield calls.arguments(json.dumps(arguments, ensure_ascii=False))
        yield calls.end()


def parsed(text: str, tools: Collection[str] = ()) -> list[tuple[str, dict[str, Any]]] | None:
    """Calls as names and arguments, with values of Python or JSON; None if the text has another form.

    ``tools`` are tool names, which need not be Python identifiers.
    """
    names: dict[str, str] = {}
    for i, name in enumerate(tools):
        if not name.isidentifier():
            names[f"tool_{i}_"] = name
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}\(", f"tool_{i}_(", text)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        each = tree.elts if isinstance(tree, ast.List) else [tree]
        found = [_call(node, names) for node in each]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return found or None


def _call(node: ast.expr, names: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """A call's name and arguments; ValueError if the node is not a call."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError(node)
    name = ast.unparse(node.func)
    if not re.fullmatch(r"[\w.]+", name):
        raise ValueError(name)
    arguments = {}
    for each in node.keywords:
        if each.arg is None:
            raise ValueError(each)
        arguments[each.arg] = _value(each.value)
    return names.get(name, name), arguments


def _value(node: ast.expr) -> Any:
    """The value of a literal; ValueError for anything else."""
    if isinstance(node, ast.Name) and node.id in _JSON:
        return _JSON[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) for key in node.keys if key is not None]
        if len(keys) != len(node.values) or not all(isinstance(key, str) for key in keys):
            raise ValueError(node)
        return dict(zip(keys, map(_value, node.values), strict=True))
    value = ast.literal_eval(node)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ValueError(node)
