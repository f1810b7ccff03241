"""Writes more of Python as JavaScript than to_javascript.py: what reads replies of chats, and checks messages.

In addition: generators, exceptions, regular expressions and classes that inherit.  Arguments of methods
are given by position.  js/src/python-text.js has Python's functions and methods where JavaScript's differ.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, UnionType
from typing import Any

from code_to_javascript import Code, as_json
from to_javascript import Program

from aleator.core import json_text

FUNCTIONS = {
    "float": "parse_float", "int": "parse_int", "set": "new_set", "min": "least", "max": "greatest",
    **{name: name for name in (
        "all", "any", "bool", "check_levels", "dict", "dumps", "enumerate", "len", "list", "literal_eval",
        "loads", "map", "next", "range", "repr", "reversed", "sorted", "str", "tuple",
    )},
}  # fmt: skip
"""Python's functions, and their names in js/src/python.js or js/src/python-text.js."""
METHODS = {
    "append", "find", "get", "index", "isprintable", "items", "join", "keys", "lower", "lstrip", "partition",
    "removeprefix", "removesuffix", "replace", "rstrip", "setdefault", "split", "startswith", "strip",
    "update",
}  # fmt: skip
"""Those of Python's texts, lists, dictionaries and sets in js/src/python-text.js."""
ABSTRACT = {Mapping: "mapping", Sequence: "list", list: "list", str: "string"}
ERRORS = {
    ValueError: "py.ValueError", SyntaxError: "py.ValueError", RecursionError: "RangeError",
    StopIteration: "py.StopIteration",
}  # fmt: skip
"""What JavaScript throws in place of Python's errors."""
BINARY = {ast.BitAnd: "common", ast.BitOr: "union"}


def _is_own(cls: type) -> bool:
    """Whether a class is not Python's."""
    return cls.__module__.partition(".")[0] not in sys.stdlib_module_names


class ParserProgram(Program):
    """The code of functions and classes with all that they use.

    Args:
        given: objects that JavaScript has under a name already.
        spelled: parts of texts, and what stands in their place.
        unwritten: names of members that JavaScript does not need.
    """

    def __init__(
        self, given: Mapping[Any, str], spelled: Mapping[str, str], unwritten: Sequence[str]
    ) -> None:
        super().__init__(given, [])
        self.spelled, self.unwritten = spelled, unwritten

    def name_of(self, value: Any) -> str:
        if value in (len, repr):
            return f"py.{value.__name__}"
        if not isinstance(value, type) or value in self._names:
            return super().name_of(value)
        name = self._names[value] = value.__name__.lstrip("_")
        if issubclass(value, BaseException):
            self.code.append(f"class {name} extends Error {{}}")
        else:
            lines = self._class(name, value)  # adds the code of what it uses
            self.code.append(lines)
        return name

    def function(self, function: FunctionType) -> str:
        made = ParserCode(self, function)
        return f"function{made.star} {self._names[function]}({made.parameters}) {{ {made.body} }}"

    def _class(self, name: str, cls: type) -> str:
        """The code of a class; its constants are those of the prototype."""
        bases = [b for b in cls.__bases__ if _is_own(b)]
        parent = f" extends {self.name_of(bases[0])}" if bases else ""
        lines, constants = [f"class {name}{parent} {{"], []
        fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
        if fields:
            shown = self.defaults(cls)
            lines.append(f"  constructor(given) {{ Object.assign(this, {shown}, given) }}")
        for key, member in vars(cls).items():
            inner = {property: "fget", classmethod: "__func__"}.get(type(member))
            function = getattr(member, inner) if inner else member
            hidden = key.startswith(("__", "_abc")) and (key != "__init__" or fields)
            if hidden or key in self.unwritten or any(key == f.name for f in fields):
                continue
            if isinstance(function, FunctionType):
                if getattr(function, "__isabstractmethod__", False):
                    continue
                code = ParserCode(self, function, cls)
                kind = {property: "get ", classmethod: "static "}.get(type(member), code.star)
                shown = "constructor" if key == "__init__" else key
                lines.append(f"  {kind}{shown}({code.parameters}) {{ {code.body} }}")
            else:
                constants.append(f"{key}: {self.constant(member)}")
        if constants:
            shown = ", ".join(constants)
            lines.append(f"  static {{ Object.assign(this.prototype, {{ {shown} }}) }}")
        return "\n".join([*lines, "}"])

    def constant(self, value: Any) -> str:
        if isinstance(value, re.Pattern):
            return self.pattern(value)
        if isinstance(value, type) or callable(value):
            return self.name_of(value)
        if dataclasses.is_dataclass(value):
            members = (
                f"{f.name}: {self.constant(getattr(value, f.name))}"
                for f in dataclasses.fields(value)
            )
            return f"new {self.name_of(type(value))}({{ {', '.join(members)} }})"
        if isinstance(value, dict):
            pairs = (f"[{as_json(k)}, {self.constant(v)}]" for k, v in value.items())
            return f"new Map([{', '.join(pairs)}])"
        return self.spelling(as_json(value))

    def spelling(self, text: str) -> str:
        """A text with JavaScript's words for what is Python's."""
        for ours, theirs in self.spelled.items():
            text = text.replace(ours, theirs)
        return text


class ParserCode(Code):
    """The code of one function or method.

    Attributes:
        star: "*" for a generator.
    """

    program: ParserProgram

    def __init__(
        self, program: ParserProgram, function: Callable[..., Any], cls: type | None = None
    ) -> None:
        self.cls = cls
        super().__init__(program, function, method=cls is not None)
        self.star = "*" if "(yield" in self.body else ""
        if cls is not None:
            self.parameters = re.sub(r"(\w+) = \[\]$", r"...\1", self.parameters)

    def static(self, e: ast.expr) -> Any:
        if isinstance(e, ast.Attribute) and isinstance(self.static(e.value), re.Pattern):
            return None
        return super().static(e)

    def statement(self, s: ast.stmt) -> str:
        match s:
            case ast.For(target, values, body, []):
                head = f"for ({self.target(target)} of py.each({self.expression(values)}))"
                return f"{head} {{ {self._block(body)} }}"
            case ast.Pass():
                return ""
            case ast.Break():
                return "break;"
            case ast.Continue():
                return "continue;"
            case ast.Raise(ast.Name(name)):
                return f"throw new {self.program.name_of(self.globals[name])}();"
            case ast.With([ast.withitem(ast.Call(ast.Name("suppress"), errors), None)], body):
                handled = f"if (!({self._is_one(errors)})) throw caught;"
                return f"try {{ {self._block(body)} }} catch (caught) {{ {handled} }}"
            case ast.Try(
                body, [ast.ExceptHandler(ast.expr() as kind, name, handling)], otherwise, []
            ):
                errors = kind.elts if isinstance(kind, ast.Tuple) else [kind]
                bound = f"const {name} = caught; " if name else ""
                handled = (
                    f"if (!({self._is_one(errors)})) throw caught; {bound}{self._block(handling)}"
                )
                if otherwise:  # no error of what follows is caught
                    handled = f"failed = true; {handled}"
                made = f"try {{ {self._block(body)} }} catch (caught) {{ {handled} }}"
                if not otherwise:
                    return made
                return (
                    f"{{ let failed = false; {made} if (!failed) {{ {self._block(otherwise)} }} }}"
                )
            case ast.Assign([ast.Subscript(of, key)], value):
                of_, key_, value_ = map(self.expression, (of, key, value))
                return f"py.put({of_}, {key_}, {value_});"
            case ast.AugAssign(ast.Subscript() as target, operator, value):
                return self.statement(ast.Assign([target], ast.BinOp(target, operator, value)))
        return super().statement(s)

    def _is_one(self, errors: Sequence[ast.expr]) -> str:
        kinds = [self.static(each) for each in errors]
        names = sorted({ERRORS.get(kind) or self.program.name_of(kind) for kind in kinds})
        return " || ".join(f"caught instanceof {name}" for name in names)

    def expression(self, e: ast.expr) -> str:
        match e:
            case ast.Yield(value):
                return f"(yield {'null' if value is None else self.expression(value)})"
            case ast.YieldFrom(value):
                return f"(yield* {self.expression(value)})"
            case ast.Lambda(arguments, body):
                names = ", ".join(a.arg for a in arguments.args)
                return f"(({names}) => {self.expression(body)})"
            case ast.Attribute(ast.Name("self"), name) if self._is_method(name):
                return f"this.{name}.bind(this)"
            case ast.Name("cls"):
                return "this.prototype"
            case ast.BinOp(left, operator, right) if type(operator) in BINARY:
                name = BINARY[type(operator)]
                return f"py.{name}({self.expression(left)}, {self.expression(right)})"
            case ast.Constant(str(text)):
                return self.program.constant(text)
        return super().expression(e)

    def _is_method(self, name: str) -> bool:
        return isinstance(getattr(self.cls, name, None), FunctionType)

    def _constant(self, value: Any) -> str:
        return self.program.constant(value)

    def _text(self, part: ast.expr) -> str:
        match part:
            case ast.FormattedValue(value, -1, ast.JoinedStr([ast.Constant(str(spec))])):
                return (
                    f"${{py.str({self.expression(value)}).slice(0, {int(spec.removeprefix('.'))})}}"
                )
        return self.program.spelling(super()._text(part))

    def _comprehension(self, each: str, loops: list[ast.comprehension]) -> str:
        """Conditions are tested one by one, as they may set names."""
        made = f"[{each}]"
        for loop in reversed(loops):
            for test in reversed(loop.ifs):
                made = f"({self.truth(test)} ? {made} : [])"
            values = self.expression(loop.iter)
            made = f"py.iterated({values}).flatMap(({self.target(loop.target)}) => {made})"
        return made

    def _call(self, e: ast.Call) -> str:
        called = self.static(e.func)
        name = getattr(called, "__name__", "")
        match e.func:
            case ast.Attribute(ast.Call(ast.Name("super")), "__init__"):
                return f"super({self._listed(e.args)})"
            case ast.Attribute(ast.Call(ast.Name("super")), method):
                return f"super.{method}({self._listed(e.args)})"
            case ast.Attribute(
                ast.Call(ast.Attribute(_, "JSONDecoder"), [], keywords), "raw_decode"
            ):
                return f"py.raw_decode({self._listed(e.args, keywords)})"
        if called is isinstance:
            return self._instance(*e.args)
        if isinstance(called, type) and issubclass(called, BaseException):
            made = self._listed(e.args[-1:])  # the message
            return (
                f"new {ERRORS[called]}({made})"
                if called in ERRORS
                else f"py.error({as_json(name)}, {made})"
            )
        if dataclasses.is_dataclass(called) or called is dataclasses.replace:
            return super()._call(e)
        if isinstance(called, type) and _is_own(called) and not e.keywords:
            return f"new {self.program.name_of(called)}({self._listed(e.args)})"
        module = getattr(called, "__module__", "")
        if module.startswith("aleator") and module != json_text.__name__:
            return super()._call(e)
        if callable(called):
            if name not in FUNCTIONS:
                raise NotImplementedError(ast.unparse(e))
            return f"py.{FUNCTIONS[name]}({self._listed(e.args, e.keywords)})"
        if isinstance(e.func, ast.Attribute):
            if e.keywords:
                raise NotImplementedError(ast.unparse(e))
            of, method = self.expression(e.func.value), e.func.attr
            if method in METHODS:
                return f"py.{method}({', '.join(filter(None, (of, self._listed(e.args))))})"
            return f"{of}.{method}({self._listed(e.args)})"
        return f"{self.expression(e.func)}({self._listed(e.args)})"

    def _listed(self, given: Sequence[ast.expr], keywords: Sequence[ast.keyword] = ()) -> str:
        """Arguments; those with keywords are members of the last."""
        made = [
            f"...py.iterated({self.expression(each.value)})"
            if isinstance(each, ast.Starred)
            else self.expression(each)
            for each in given
        ]
        if keywords:
            made.append(self._members(list(keywords)))
        return ", ".join(made)

    def _instance(self, value: ast.expr, kind: ast.expr) -> str:
        match kind:
            case ast.BinOp(left, ast.BitOr(), right):
                return f"({self._instance(value, left)} || {self._instance(value, right)})"
        found = self.static(kind)
        if isinstance(found, UnionType) or found is bytes:
            return "false"  # JavaScript has no texts of bytes
        if found in ABSTRACT:
            return f"py.is_a({self.expression(value)}, {as_json(ABSTRACT[found])})"
        return f"({self.expression(value)} instanceof {self.program.name_of(found)})"
