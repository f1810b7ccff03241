"""Writes one Python function as JavaScript: its statements, expressions and calls.

A call's keyword arguments become positional ones, in the order of the signature.  js/src/python.js has Python's
operators where JavaScript's differ.  NotImplementedError says what is not written.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from to_javascript import Program


ARITHMETIC = {ast.Sub: "-", ast.Div: "/"}
OF_LISTS = {ast.Add: "add", ast.Mult: "multiply", ast.Mod: "remainder", ast.Pow: "power"}
"""Operators that js/src/python.js has: of lists too, or with another sign."""
BUILTINS = {
    "range": 2, "len": 1, "tuple": 1, "list": 1, "set": 1, "any": 1, "all": 1, "sum": 1, "max": 9, "min": 9,
    "zip": 9, "enumerate": 1, "bool": 1, "int": 1, "float": 1, "float32": 1, "log": 1, "sqrt": 1,
    "str": 1, "repr": 1, "sorted": 1, "reversed": 1,
}  # fmt: skip
"""Python's functions in js/src/python.js, and how many arguments they may have."""
METHODS = {
    "get": 2, "values": 0, "items": 0, "append": 1, "startswith": 2, "isascii": 0, "isdigit": 0, "encode": 0,
    "join": 1, "partition": 1, "union": 1, "difference": 1, "intersection": 1, "match": 2, "search": 1,
    "sub": 2, "end": 0, "groups": 0,
}  # fmt: skip
"""The same of methods of Python's texts, lists, sets, dictionaries and regular expressions."""
COMPARED = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
RESERVED = {"arguments", "default", "new", "function", "with", "var", "case", "delete"}
KINDS = {int: "integer", float: "number", bool: "boolean", str: "string", list: "list"}
"""Types of a file's fields as js/src/gguf.js calls them."""
ABSENT = "undefined"


def as_json(value: object) -> str:
    """JSON, in which a module can have numbers that JSON lacks."""
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return f"new Uint8Array({[*value]})"
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(str(k))}: {as_json(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, list | tuple | set | frozenset):
        members = sorted(value) if isinstance(value, set | frozenset) else value
        return "[" + ", ".join(map(as_json, members)) + "]"
    return json.dumps(value, ensure_ascii=False)


class Code:
    """The code of one function or method.

    Attributes:
        parameters: between the brackets.
        body: between the braces.
    """

    def __init__(
        self, program: Program, function: Callable[..., Any], method: bool = False
    ) -> None:
        self.program, self.globals = program, function.__globals__
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        if not isinstance(tree, ast.FunctionDef):
            raise NotImplementedError(ast.dump(tree))
        signature = inspect.signature(function)
        self.locals = _assigned(tree)
        self.parameters = _parameters(signature, method)
        self.body = self._block(tree.body, self.locals - set(signature.parameters))

    def _block(self, statements: list[ast.stmt], declared: Iterable[str] = ()) -> str:
        names = f"let {', '.join(sorted(map(_plain, declared)))}; " if declared else ""
        return names + " ".join(map(self.statement, statements))

    def statement(self, s: ast.stmt) -> str:
        match s:
            case ast.Expr(ast.Constant()) | ast.AnnAssign(value=None):
                return ""
            case ast.Expr(value):
                return f"{self.expression(value)};"
            case ast.Return(value):
                return f"return {'null' if value is None else self.expression(value)};"
            case ast.Raise(value) if value is not None:
                return f"throw {self.expression(value)};"
            case ast.Assign(targets, value):
                return " = ".join([*map(self.target, targets), self.expression(value)]) + ";"
            case ast.AnnAssign(target, _, value) if value is not None:
                return f"{self.target(target)} = {self.expression(value)};"
            case ast.AugAssign(target, operator, value):
                changed = ast.BinOp(target, operator, value)
                return f"{self.target(target)} = {self.expression(changed)};"
            case ast.Delete([ast.Subscript(value, key)]):
                return f"{self.expression(value)}.delete({self.expression(key)});"
            case ast.If(test, body, otherwise):
                then = f"if ({self.truth(test)}) {{ {self._block(body)} }}"
                return then + (f" else {{ {self._block(otherwise)} }}" if otherwise else "")
            case ast.While(test, body, []):
                return f"while ({self.truth(test)}) {{ {self._block(body)} }}"
            case ast.For(target, values, body, []):
                head = f"for ({self.target(target)} of py.iterated({self.expression(values)}))"
                return f"{head} {{ {self._block(body)} }}"
            case ast.FunctionDef(name, arguments, body, []):
                if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
                    raise NotImplementedError(f"arguments of the inner function {name}")
                own = [a.arg for a in arguments.args]
                defaults = [None] * (len(own) - len(arguments.defaults)) + list(arguments.defaults)
                shown = [
                    _plain(n) + ("" if d is None else f" = {self.expression(d)}")
                    for n, d in zip(own, defaults, strict=True)
                ]
                inner = self._block(body, _assigned(s) - set(own))
                return f"{name} = ({', '.join(shown)}) => {{ {inner} }};"
        raise NotImplementedError(ast.dump(s))

    def target(self, e: ast.expr) -> str:
        match e:
            case ast.Tuple(members):
                return f"[{', '.join(map(self.target, members))}]"
            case ast.Subscript():
                raise NotImplementedError(ast.dump(e))
        return self.expression(e)

    def truth(self, e: ast.expr) -> str:
        match e:
            case ast.Compare():
                return self.expression(e)
            case ast.BoolOp(operator, values):
                between = " && " if isinstance(operator, ast.And) else " || "
                return f"({between.join(map(self.truth, values))})"
            case ast.UnaryOp(ast.Not(), value):
                return f"!{self.truth(value)}"
        return f"py.truth({self.expression(e)})"

    def static(self, e: ast.expr) -> Any:
        """The object that an expression names outside the function; None: it does not."""
        match e:
            case ast.Name(name) if name not in self.locals and name != "self":
                return self.globals.get(name, getattr(builtins, name, None))
            case ast.Attribute(value, name):
                owner = self.static(value)
                if owner is not None and not isinstance(owner, dict | str | tuple | list):
                    return getattr(owner, name)
        return None

    def expression(self, e: ast.expr) -> str:
        found = self.static(e)
        if found is not None:
            if isinstance(found, dict):
                pairs = ", ".join(f"[{as_json(k)}, {self._constant(v)}]" for k, v in found.items())
                return f"new Map([{pairs}])"
            return self._constant(found)
        match e:
            case ast.Constant(value):
                return as_json(value)
            case ast.Name("self"):
                return "this"
            case ast.Name(name):
                return _plain(name)
            case ast.Attribute(value, name):
                return f"{self.expression(value)}.{name}"
            case ast.Tuple(members) | ast.List(members) | ast.Set(members):
                return f"[{', '.join(map(self.expression, members))}]"
            case ast.Starred(value):
                return f"...py.iterated({self.expression(value)})"
            case ast.Dict(keys, values):
                made = [
                    f"...{self.expression(v)}"
                    if k is None
                    else f"[{self.expression(k)}, {self.expression(v)}]"
                    for k, v in zip(keys, values, strict=True)
                ]
                return f"new Map([{', '.join(made)}])"
            case ast.NamedExpr(target, value):
                return f"({self.target(target)} = {self.expression(value)})"
            case ast.JoinedStr(parts):
                return "`" + "".join(map(self._text, parts)) + "`"
            case ast.BoolOp(operator, values):
                which = "both" if isinstance(operator, ast.And) else "either"
                if any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(e)):
                    raise NotImplementedError(ast.dump(e))  # not within a function of its own
                return (
                    f"py.{which}({', '.join(f'() => {self.expression(each)}' for each in values)})"
                )
            case ast.UnaryOp(ast.Not(), value):
                return f"!{self.truth(value)}"
            case ast.UnaryOp(ast.USub(), value):
                return f"(-{self.expression(value)})"
            case ast.IfExp(test, yes, no):
                return f"({self.truth(test)} ? {self.expression(yes)} : {self.expression(no)})"
            case ast.Compare(left, operators, rights):
                compared = zip([left, *rights], operators, rights, strict=False)
                return "(" + " && ".join(self._compared(*each) for each in compared) + ")"
            case ast.BinOp(left, ast.FloorDiv(), right):
                return f"Math.floor({self.expression(left)} / {self.expression(right)})"
            case ast.BinOp(left, operator, right) if type(operator) in OF_LISTS:
                name = OF_LISTS[type(operator)]
                return f"py.{name}({self.expression(left)}, {self.expression(right)})"
            case ast.BinOp(left, operator, right) if type(operator) in ARITHMETIC:
                sign = ARITHMETIC[type(operator)]
                return f"({self.expression(left)} {sign} {self.expression(right)})"
            case ast.Subscript(value, ast.Slice(low, high, None)):
                ends = [ABSENT if each is None else self.expression(each) for each in (low, high)]
                return f"{self.expression(value)}.slice({', '.join(ends)})"
            case ast.Subscript(value, key):
                return f"py.item({self.expression(value)}, {self.expression(key)})"
            case (
                ast.ListComp(each, loops) | ast.GeneratorExp(each, loops) | ast.SetComp(each, loops)
            ):
                return self._comprehension(self.expression(each), loops)
            case ast.DictComp(key, value, loops):
                pair = f"[{self.expression(key)}, {self.expression(value)}]"
                return f"new Map({self._comprehension(pair, loops)})"
            case ast.Call():
                return self._call(e)
        raise NotImplementedError(ast.dump(e))

    def _constant(self, value: Any) -> str:
        if isinstance(value, re.Pattern):
            return self.program.pattern(value)
        if isinstance(value, type) or callable(value):
            return self.program.name_of(value)
        return as_json(value)

    def _text(self, part: ast.expr) -> str:
        match part:
            case ast.Constant(str(text)):
                return text.replace("\\", "\\\\").replace("`", "\\`").replace("$", "\\$")
            case ast.FormattedValue(value, 114, None):
                return f"${{py.repr({self.expression(value)})}}"
            case ast.FormattedValue(value, -1, None):
                return f"${{py.str({self.expression(value)})}}"
        raise NotImplementedError(ast.dump(part))

    def _compared(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> str:
        if isinstance(left, ast.Call) and self.static(left.func) is type:  # type(x) is int
            test = f"py.is_a({self.expression(left.args[0])}, {as_json(KINDS[self.static(right)])})"
            return test if isinstance(operator, ast.Is) else f"!{test}"
        a, b = self.expression(left), self.expression(right)
        match operator:
            case ast.Is() | ast.IsNot() if isinstance(right, ast.Constant) and right.value is None:
                return f"{a} {'==' if isinstance(operator, ast.Is) else '!='} null"
            case ast.Eq():
                return f"py.equal({a}, {b})"
            case ast.NotEq():
                return f"!py.equal({a}, {b})"
            case ast.LtE() if isinstance(left, ast.Call) and self.static(left.func) is set:
                return f"{a}.every((each) => py.contains({b}, each))"
            case ast.In():
                return f"py.contains({b}, {a})"
            case ast.NotIn():
                return f"!py.contains({b}, {a})"
        if type(operator) not in COMPARED:
            raise NotImplementedError(ast.dump(operator))
        return f"{a} {COMPARED[type(operator)]} {b}"

    def _comprehension(self, each: str, loops: list[ast.comprehension]) -> str:
        *outer, loop = loops
        values, name = f"py.iterated({self.expression(loop.iter)})", self.target(loop.target)
        for test in loop.ifs:
            values += f".filter(({name}) => {self.truth(test)})"
        made = f"{values}.map(({name}) => {each})"
        for loop in reversed(outer):
            name = self.target(loop.target)
            made = f"py.iterated({self.expression(loop.iter)}).flatMap(({name}) => {made})"
        return made

    def _call(self, e: ast.Call) -> str:
        called = self.static(e.func)
        if isinstance(e.func, ast.Attribute) and isinstance(self.static(e.func.value), re.Pattern):
            return self._method(e, e.func)
        name = getattr(called, "__name__", "")
        if called is dataclasses.replace:
            return f"py.replace({self.expression(e.args[0])}, {self._members(e.keywords)})"
        if dataclasses.is_dataclass(called):
            fields = [field.name for field in dataclasses.fields(called)]
            own = [ast.keyword(n, v) for n, v in zip(fields, e.args, strict=False)]
            return f"new {self.program.name_of(called)}({self._members([*own, *e.keywords])})"
        if isinstance(called, type) and issubclass(called, BaseException):
            return f"py.error({as_json(name)}, {', '.join(map(self.expression, e.args))})"
        if getattr(called, "__module__", "").startswith("aleator"):
            new = "new " if isinstance(called, type) else ""
            return (
                f"{new}{self.program.name_of(called)}({self._given(e, inspect.signature(called))})"
            )
        if called is isinstance and isinstance(kind := self.static(e.args[1]), type):
            return f"py.is_a({self.expression(e.args[0])}, {as_json(KINDS[kind])})"
        if callable(called):  # of Python itself
            self._check(e, BUILTINS.get(name), "strict")
            return f"py.{name}({', '.join(map(self.expression, e.args))})"
        if isinstance(e.func, ast.Attribute):
            return self._method(e, e.func)
        self._check(e, len(e.args))
        given = ", ".join(map(self.expression, e.args))
        if isinstance(e.func, ast.Subscript) and isinstance(self.static(e.func.value), dict):
            return f"new ({self.expression(e.func)})({given})"  # a table of classes
        return f"{self.expression(e.func)}({given})"

    def _method(self, e: ast.Call, of: ast.Attribute) -> str:
        """A call of a method: of a class of the program by its signature, or else of Python's own."""
        value, name = self.expression(of.value), of.attr
        is_mapping = (
            isinstance(of.value, ast.Attribute) and of.value.attr == "values"
        )  # fields.values
        if name not in self.program.methods or is_mapping or (name == "values" and not e.args):
            self._check(e, METHODS.get(name))
            return f"py.method({value}, {as_json(name)})({', '.join(map(self.expression, e.args))})"
        signature = self.program.methods[name]
        return f"{value}.{name}({self._given(e, signature, method=True)})"

    def _check(self, e: ast.Call, most: int | None, *named: str) -> None:
        """Refuse a call with other arguments than JavaScript's function has; ``most`` None: there is none."""
        loose = any(k.arg == "strict" and ast.unparse(k.value) != "True" for k in e.keywords)
        if most is None or len(e.args) > most or loose or {k.arg for k in e.keywords} - {*named}:
            raise NotImplementedError(ast.unparse(e))

    def _members(self, keywords: list[ast.keyword]) -> str:
        members = [
            f"...{self.expression(k.value)}"
            if k.arg is None
            else f"{k.arg}: {self.expression(k.value)}"
            for k in keywords
        ]
        return "{ " + ", ".join(members) + " }"

    def _given(self, e: ast.Call, signature: inspect.Signature, method: bool = False) -> str:
        """The arguments of a call in the order of the signature."""
        parameters = list(signature.parameters.values())[int(method) :]
        known, positional = {p.name for p in parameters}, list(e.args)
        nodes: dict[str, ast.expr] = {k.arg: k.value for k in e.keywords if k.arg in known}
        given: dict[str, str] = {}
        for p in parameters:
            if p.kind is p.VAR_POSITIONAL:
                given[p.name] = f"[{', '.join(map(self.expression, positional))}]"
                positional = []
            elif p.kind is p.VAR_KEYWORD:
                given[p.name] = self._members([k for k in e.keywords if k.arg not in known])
            elif p.kind is not p.KEYWORD_ONLY and positional:
                nodes[p.name] = positional.pop(0)
        unknown = {k.arg for k in e.keywords} - known
        variable = any(p.kind is p.VAR_KEYWORD for p in parameters)
        starred = any(isinstance(each, ast.Starred) for each in nodes.values())
        if positional or starred or (unknown and not variable):
            raise NotImplementedError(ast.unparse(e))
        given |= {name: self._argument(node) for name, node in nodes.items()}
        default = nodes.get("default")
        if "kind" in known - given.keys() and isinstance(default, ast.Constant):
            kind = KINDS.get(type(default.value))  # JavaScript's 0 and 0.0 are one number
            if kind:
                given["kind"] = as_json(kind)
        made = [given.get(p.name, ABSENT) for p in parameters]
        while made and made[-1] == ABSENT:
            made.pop()
        return ", ".join(made)

    def _argument(self, e: ast.expr) -> str:
        kind = self.static(e)
        return (
            as_json(KINDS[kind]) if isinstance(kind, type) and kind in KINDS else self.expression(e)
        )


def _parameters(signature: inspect.Signature, method: bool) -> str:
    shown = []
    for p in list(signature.parameters.values())[int(method) :]:
        default = "" if p.default is p.empty else f" = {as_json(p.default)}"
        if p.kind is p.VAR_POSITIONAL:
            default = " = []"
        elif p.kind is p.VAR_KEYWORD:
            default = " = {}"
        shown.append(_plain(p.name) + default)
    return ", ".join(shown)


def _plain(name: str) -> str:
    return f"{name}_" if name in RESERVED else name


def _assigned(tree: ast.FunctionDef) -> set[str]:
    """The local names of a function, its arguments and those of its loops among them."""
    arguments = tree.args
    listed = [*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    names = {a.arg for a in listed if a is not None} - {"self"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef) and node is not tree:
            names |= {node.name, *(a.arg for a in node.args.args)}
    return names
