"""Writes plain Python functions and classes as JavaScript, with all that they use.

Enough of the language for what reads a model's dimensions and tensors; NotImplementedError says what is not.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Mapping
from functools import partial
from types import FunctionType
from typing import Any, Generic, TypeVar

from code_to_javascript import Code, as_json
from patterns_to_javascript import written

T = TypeVar("T")


class Program:
    """The code of some functions and classes, each once, after what it uses.

    Args:
        given: objects that JavaScript has under a name already.
        classes: the classes whose methods may be called with keywords or a variable number of arguments.
    """

    def __init__(self, given: Mapping[Any, str], classes: Iterable[type]) -> None:
        self._names: dict[Any, str] = dict(given)
        self.code: list[str] = []
        self.methods: dict[str, inspect.Signature] = {}
        for cls in classes:
            for name, method in vars(cls).items():
                if not isinstance(method, FunctionType) or name.startswith("__"):
                    continue
                signature = inspect.signature(method)
                known = self.methods.setdefault(name, signature)
                if list(known.parameters.values()) != list(signature.parameters.values()):
                    raise NotImplementedError(f"two methods {name} with different arguments")

    def name_of(self, value: Any) -> str:
        """The name of a function or class, whose code is written if it is new."""
        if isinstance(value, partial):
            signature = inspect.signature(value.func)
            given = [
                as_json(value.keywords[name]) if name in value.keywords else name
                for name in signature.parameters
            ]
            free = [name for name in signature.parameters if name not in value.keywords]
            return f"(({', '.join(free)}) => {self.name_of(value.func)}({', '.join(given)}))"
        if value not in self._names:
            if value.__module__ == "builtins":
                raise NotImplementedError(f"{value.__name__} as a value")
            stem = value.__module__.rpartition(".")[2]
            is_class = isinstance(value, type)
            self._names[value] = value.__name__ if is_class else f"{stem}_{value.__name__}"
            self.code += _Class(self, value).lines() if is_class else [self.function(value)]
        return self._names[value]

    def defaults(self, cls: type) -> str:
        """The defaults of a dataclass's fields, each made anew."""
        given = {}
        for field in dataclasses.fields(cls):
            if field.default is not dataclasses.MISSING:
                given[field.name] = self.constant(field.default)
            elif field.default_factory is not dataclasses.MISSING:
                given[field.name] = self.constant(field.default_factory())
        return "{ " + ", ".join(f"{name}: {value}" for name, value in given.items()) + " }"

    def constant(self, value: Any) -> str:
        """A value that is known before."""
        if dataclasses.is_dataclass(value):
            return f"new {self.name_of(type(value))}({{}})"
        return as_json(value)

    def pattern(self, pattern: re.Pattern[str]) -> str:
        """The name of a regular expression, whose code is written if it is new."""
        if pattern not in self._names:
            name = self._names[pattern] = f"PATTERN_{len(self._names)}"
            flags = "s" if pattern.flags & re.DOTALL else ""
            self.code.append(
                f"const {name} = new py.Pattern({as_json(written(pattern))}, {as_json(flags)})"
            )
        return self._names[pattern]

    def function(self, function: FunctionType) -> str:
        """The code of a function."""
        made = Code(self, function)
        return f"function {self._names[function]}({made.parameters}) {{ {made.body} }}"


@dataclasses.dataclass(frozen=True)
class _Empty:
    pass


class _Plain(Generic[T]):
    """What a class has, whatever is in it."""

    field: int


class _Class:
    """A dataclass, or a class with a constructor."""

    def __init__(self, program: Program, cls: type) -> None:
        self.program, self.cls = program, cls

    def lines(self) -> list[str]:
        cls, own = self.cls, vars(self.cls)
        if any(base is not object and base.__name__ != "Generic" for base in cls.__bases__):
            raise NotImplementedError(f"{cls.__name__} has base classes")
        made = [f"class {cls.__name__} {{"]
        unwritten = set(vars(_Plain))
        if dataclasses.is_dataclass(cls):
            unwritten |= {*vars(_Empty), *cls.__dataclass_fields__}
            made.append(
                f"  constructor(given) {{ Object.assign(this, {self.program.defaults(cls)}, given) }}"
            )
        for name, member in own.items():
            kind = "get " if isinstance(member, property) else ""
            function = member.fget if isinstance(member, property) else member
            if name in unwritten:
                continue
            if not isinstance(function, FunctionType) or (
                name.startswith("__") and name != "__init__"
            ):
                raise NotImplementedError(f"{name} of the class {cls.__name__}")
            code = Code(self.program, function, method=True)
            shown = "constructor" if name == "__init__" else name
            made.append(f"  {kind}{shown}({code.parameters}) {{ {code.body} }}")
        return [*made, "}"]
