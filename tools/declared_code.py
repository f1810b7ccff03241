"""Defaults of public functions and classes, and constants of modules, one callable or constant a line.

A part of what tools/declared.py records.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

SOURCE = Path(__file__).parent.parent / "src" / "aleator"
FOLDERS = ("cache", "generate", "grammar", "models", "samplers", "text")
NUMBERS = (bool, int, float)
MOST = 40
"""Entries of a table; longer ones are compared with what other programs have."""


def modules(folder: str) -> Iterator[ModuleType]:
    """Those of a folder; kernels need Triton, and their numbers are compared with native ones."""
    for path in sorted((SOURCE / folder).rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if not {"kernels", "triton"} & {*parts} and not path.stem.startswith("__"):
            yield import_module(".".join(("aleator", *parts)))


def is_record(value: Any) -> bool:
    """Whether a value is an object of a dataclass."""
    return is_dataclass(value) and not isinstance(value, type)


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a text, None, or made of such in an order."""
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        short = len(value) <= MOST
        return short and all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if is_record(value):
        return all(is_plain(getattr(value, each.name)) for each in fields(value))
    return value is None or type(value) in (*NUMBERS, str, bytes)


def has_number(value: Any) -> bool:
    """Whether a plain value has a number in it."""
    if is_record(value):
        return any(has_number(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, dict):
        return any(map(has_number, (*value, *value.values())))
    return (
        any(map(has_number, value)) if isinstance(value, tuple | list) else type(value) in NUMBERS
    )


def assigned(module: ModuleType) -> Iterator[str]:
    """Names that a module gives values itself."""
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = (
                [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets
            )
            for node in (each for target in targets for each in ast.walk(target)):
                if isinstance(node, ast.Name):
                    yield node.id


def callables(place: str, owner: Any, module: str) -> Iterator[tuple[str, Any]]:
    """Public functions, classes and their methods that a module or a class defines."""
    for name, value in list(vars(owner).items()):
        value = getattr(value, "__func__", value)
        if name.startswith("_") or getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, type):
            if issubclass(value, Enum):
                continue
            yield f"{place}.{name}", value
            yield from callables(f"{place}.{name}", value, module)
        elif isinstance(value, FunctionType):
            yield f"{place}.{name}", value


def lines(folder: str) -> Iterator[str]:
    """What the modules of a folder have for defaults and constants."""
    for module in modules(folder):
        place = module.__name__.removeprefix("aleator.")
        for name in assigned(module):
            value = getattr(module, name)
            if name.isupper() and is_plain(value) and has_number(value):
                entries = value.items() if isinstance(value, dict) else ()
                if any(map(is_record, dict(entries).values())):
                    yield from (f"{place}.{name}[{key!r}] = {each!r}" for key, each in entries)
                else:
                    yield f"{place}.{name} = {value!r}"
        for name, value in callables(place, module, module.__name__):
            try:
                parameters = inspect.signature(value).parameters.values()
            except (TypeError, ValueError):
                continue
            defaults = [
                f"{each.name}={each.default!r}"
                for each in parameters
                if each.default is not each.empty and is_plain(each.default)
            ]
            if defaults:
                yield f"{name}({', '.join(defaults)})"
