"""Reads and forces arguments that are written one by one, each with its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aleator.chat.message import Function
from aleator.chat.reply import Maybe, Part, Schema, Words
from aleator.core.errors import GrammarError

_KEY = re.compile(r"[\w.$ -]+")
_LIMITS = frozenset(("enum", "const", "minLength", "maxLength"))
"""Keywords of a string's schema that can be enforced without quotes."""
_REFUSED = frozenset(("pattern", "format"))
_WHOLE = frozenset(
    (
        "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "minProperties", "maxProperties",
        "propertyNames", "dependentRequired", "dependentSchemas", "$ref",
    )
)  # fmt: skip
"""Keywords about several arguments together."""
PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Constants of Python in JSON."""


def properties(parameters: Any) -> dict[str, Any]:
    """Schemas of single arguments by name; references within the parameters are resolved."""
    listed = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(listed, Mapping):
        return {}
    return {str(key): _followed(parameters, schema) for key, schema in listed.items()}


def _followed(root: Mapping[str, Any], schema: Any) -> Any:
    for _ in range(8):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return schema
        at: Any = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            at = at.get(step) if isinstance(at, Mapping) else None
        schema = at
    return None


def is_text(schema: Any) -> bool:
    """Whether a schema describes only strings."""
    if not isinstance(schema, Mapping):
        return False
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        return all(isinstance(value, str) for value in values)
    return schema.get("type") in ("string", ["string"])


def no_constant(name: str) -> None:
    """Refuse NaN and Infinity, which are not JSON."""
    raise ValueError(name)


def forced(
    function: Function,  # The tool
    family: str,  # Its name, for errors
    one: Callable[[str, Part], Sequence[Part]],  # Writes an argument with a name and a value
    mark: str = "",  # Mark that ends a string without quotes; "": strings have quotes
    end: str = "",  # What is written after it, with the mark
) -> list[tuple[bool, list[Part]]]:
    """Arguments as a grammar forces them, in the order of the schema; each with whether it is required.

    Raises:
        GrammarError: The schema cannot be enforced in this form.
    """
    where = f"tools: parameters of {function.name}"
    root = function.parameters
    if not isinstance(root, Mapping):
        return []
    whole = sorted(_WHOLE & root.keys())
    if whole:
        raise GrammarError(
            f"{where}: {whole[0]!r} cannot be enforced in {family}'s form of calls, where each argument is "
            "written by itself: give a plain object with properties"
        )
    listed = properties(root)
    required = root.get("required", [])
    absent = next((key for key in required if key not in listed), None)
    if absent is not None:
        raise GrammarError(f"{where}: {absent!r} is required and not among the properties")
    made = []
    for key, schema in listed.items():
        if not _KEY.fullmatch(key):
            raise GrammarError(f"{where}: {key!r} cannot be written in {family}'s form of calls")
        part: Part
        if mark and is_text(schema):
            wrong = sorted(_REFUSED & schema.keys())
            if wrong:
                raise GrammarError(
                    f"{where}: {wrong[0]!r} of {key!r} cannot be enforced in {family}'s form of calls, where "
                    "strings have no quotes: leave it out"
                )
            part = Words({k: v for k, v in schema.items() if k in _LIMITS}, mark, end)
        else:
            shared = {k: root[k] for k in ("$defs", "definitions") if k in root}
            part = Schema({**shared, **schema} if isinstance(schema, Mapping) else {})
        made.append((key in required, list(one(key, part))))
    return made


def in_turn(arguments: Sequence[tuple[bool, list[Part]]]) -> list[Part]:
    """Arguments without separators."""
    parts: list[Part] = []
    for needed, written in arguments:
        parts += written if needed else [Maybe(tuple(written))]
    return parts


def with_commas(arguments: Sequence[tuple[bool, list[Part]]], comma: str = ", ") -> list[Part]:
    """Arguments separated by commas, required ones first."""
    needed = [written for must, written in arguments if must]
    others = [written for must, written in arguments if not must]
    parts: list[Part] = []
    for written in needed:
        parts += [comma, *written] if parts else written
    if needed:
        return parts + [Maybe((comma, *written)) for written in others]
    chain: list[Part] = []
    for i, written in reversed(list(enumerate(others))):
        chain = [Maybe((*([comma] if i else []), *written, *chain))]
    return chain
