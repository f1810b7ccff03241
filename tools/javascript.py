"""Write what the npm package in js/ takes from the declarations: src/facts.js and src/parameters.d.ts.

    python tools/javascript.py

`make wasm` runs it.  Short methods of samplers are written as JavaScript: when a sampler does nothing, and the
arguments of its native form.  An architecture whose module reads fields of its own is listed without facts.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import math
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aleator
from aleator.core.parameter import Parameter
from aleator.models import gguf_config
from aleator.models.architecture import Architecture
from aleator.models.files import fields as limits
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import _FOREIGN, _MIN_ENTRY, _MIN_TENSOR
from aleator.models.files.tensor_types import _OTHER_TYPES, TENSOR_TYPES
from aleator.models.index import ARCHITECTURES
from aleator.samplers import base, dry
from aleator.samplers.index import FIRST, ORDERED, SAMPLERS
from aleator.samplers.order import _LAST
from aleator.samplers.params import _TRUNCATION, ALL
from aleator.samplers.presets import DEFAULT_PRESET, PRESETS
from aleator.text import gguf_vocabulary, pretokenizers, special_tokens, vocabulary

OUT = Path(__file__).parent.parent / "js" / "src"
METHODS = ("asked_for", "neutral", "coefficients", "seed_in", "_unseeded", "arguments", "native")
BASE = (base.Sampler, base.SeededSampler)  # js/src/sampler.js has these
ELSEWHERE = ("json_schema", "regex", "phases", "watermark_key_file")
"""Parameters that JavaScript lacks."""
OPERATORS = {
    ast.Eq: "===", ast.NotEq: "!==", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/",
}  # fmt: skip


def as_json(value: object) -> str:
    """JSON, in which a module can have numbers that JSON lacks."""
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(str(k))}: {as_json(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, list | tuple | set | frozenset):
        members = sorted(value) if isinstance(value, set | frozenset) else value
        return "[" + ", ".join(map(as_json, members)) + "]"
    return json.dumps(value, ensure_ascii=False)


class Translator:
    """Writes a method of a few statements in JavaScript; NotImplementedError for what it does not know."""

    def __init__(self, method: Any) -> None:
        self.globals = method.__globals__
        tree = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0]
        if not isinstance(tree, ast.FunctionDef):
            raise NotImplementedError(ast.dump(tree))
        self.arguments = [a.arg for a in tree.args.args[1:]]
        self.body = " ".join(map(self.statement, tree.body))

    def statement(self, s: ast.stmt) -> str:
        match s:
            case ast.Expr(ast.Constant()):
                return ""
            case ast.Return(value) if value is not None:
                return f"return {self.expression(value)};"
            case ast.If(test, body, []):
                return f"if ({self.truth(test)}) {{ {' '.join(map(self.statement, body))} }}"
            case ast.Assign([ast.Tuple(names)], ast.Tuple(values)):
                pairs = zip(names, values, strict=True)
                return " ".join(
                    f"const {self.expression(n)} = {self.expression(v)};" for n, v in pairs
                )
            case ast.Assign([ast.Name(name)], value):
                return f"const {name} = {self.expression(value)};"
        raise NotImplementedError(ast.dump(s))

    def truth(self, e: ast.expr) -> str:
        return self.expression(e) if isinstance(e, ast.Compare) else f"truth({self.expression(e)})"

    def expression(self, e: ast.expr) -> str:
        match e:
            case ast.Constant(value):
                return as_json(value)
            case ast.Name("self"):
                return "this"
            case ast.Name(name):
                return name
            case ast.Tuple(members) | ast.List(members):
                return f"[{', '.join(map(self.expression, members))}]"
            case ast.Starred(value):
                return "..." + self.expression(value)
            case ast.BoolOp(ast.And(), values):
                return f"({' && '.join(map(self.expression, values))})"
            case ast.BoolOp(ast.Or(), values):
                return f"({' || '.join(map(self.expression, values))})"
            case ast.UnaryOp(ast.Not(), value):
                return f"!{self.truth(value)}"
            case ast.Compare(left, [operator], [right]):
                return f"({self.expression(left)} {OPERATORS[type(operator)]} {self.expression(right)})"
            case ast.BinOp(left, operator, right):
                return f"({self.expression(left)} {OPERATORS[type(operator)]} {self.expression(right)})"
            case ast.IfExp(test, yes, no):
                return f"({self.truth(test)} ? {self.expression(yes)} : {self.expression(no)})"
            case ast.Subscript(
                value, ast.Slice(None, ast.UnaryOp(ast.USub(), ast.Constant(int(n))), None)
            ):
                return f"{self.expression(value)}.slice(0, -{n})"
            case ast.Subscript(ast.Name(name), ast.Constant(str(key))):
                return f"{name}.{key!s}"
            case ast.Call(ast.Name("bool"), [value]):
                return self.truth(value)
            case ast.Call(ast.Name("single"), [value]):
                return f"Math.fround({self.expression(value)})"
            case ast.Call(ast.Attribute(ast.Name("host"), kernel), given):
                return f"[{json.dumps(kernel)}, [{', '.join(map(self.expression, given))}]]"
            case ast.Call(ast.Attribute(ast.Call(ast.Name("super")), name), given):
                return f"super.{name}({', '.join(map(self.expression, given))})"
            case ast.Call(ast.Attribute(ast.Attribute(ast.Name(name), part), "index"), given):
                all_of = as_json(getattr(self.globals[name], part))
                return f"{all_of}.indexOf({self.expression(given[0])})"
            case ast.Call(function, given):
                return f"{self.expression(function)}({', '.join(map(self.expression, given))})"
            case ast.Attribute(value, name):
                return f"{self.expression(value)}.{name}"
        raise NotImplementedError(ast.dump(e))


def sampler_classes() -> Iterator[str]:
    """Every sampler as a class."""
    written: set[type] = set()
    for cls in SAMPLERS:
        for each in reversed(cls.__mro__):
            if each in written or each in BASE or not issubclass(each, base.Sampler):
                continue
            written.add(each)
            yield from _class_of(each)


def _class_of(cls: type[base.Sampler]) -> Iterator[str]:
    parent = next(each for each in cls.__mro__[1:] if issubclass(each, base.Sampler)).__name__
    yield f"export class {cls.__name__} extends {parent} {{"
    for name in METHODS:
        found = vars(cls).get(name)
        if found is not None:
            inner = {property: "fget", classmethod: "__func__"}.get(type(found))
            method = Translator(getattr(found, inner) if inner else found)
            kind = {property: "get ", classmethod: "static "}.get(type(found), "")
            yield f"  {kind}{name}({', '.join(method.arguments)}) {{ {method.body} }}"
    if cls in SAMPLERS:
        facts = {
            "sampler": cls.name,
            "kernel": "" if cls.kernel is None else _kernel_name(cls),
            "parameters": [p.name for p in cls.parameters()],
            "switch": None if cls.switch is None else cls.switch.name,
            "off": None if cls.switch is None else cls.switch.neutral,
            "single": cls.switch is not None and cls.switch.type is float,
            "ordered": cls.name in ORDERED,
            "writes": cls.writes and cls.name not in _LAST,
            "selects": cls.selects,
            "aliases": cls.aliases,
        }
        yield from (f"  static {name} = {as_json(value)}" for name, value in facts.items())
    yield "}"


def _kernel_name(cls: type[base.Sampler]) -> str:
    return getattr(cls.kernel, "__name__", type(cls.kernel).__name__)


def parameters() -> dict[str, dict[str, Any]]:
    """The sampling parameters, as js/src/parameters.js checks them."""
    made: dict[str, dict[str, Any]] = {}
    allowed = next(cls for cls in SAMPLERS if cls.name == "token_mask").parameters()
    for p in [*ALL.values(), *allowed]:
        told = {
            "type": p.type.__name__, "neutral": p.neutral, "help": p.help, "choices": p.choices, "most": p.most,
            "low": p.low, "high": p.high, "openLow": p.open_low, "openHigh": p.open_high, "beyond": p.beyond,
            "aliases": p.aliases, "optional": p.optional, "metadata": p.metadata, "range": p.interval,
        }  # fmt: skip
        # Not what is absent; 0 is a bound.
        made[p.name] = {
            k: v
            for k, v in told.items()
            if k == "neutral" or not (v is None or v in ((), "") or v is False)
        }
    return made


class _Recorded(dict[str, Any]):
    """Metadata that note which keys are asked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


def _read(name: str, read: Any, architecture: Architecture) -> tuple[Any, set[str]]:
    """The configuration that a reader makes of the least metadata, and the keys that it asked for."""
    sizes = {
        "block_count": 4, "embedding_length": 64, "feed_forward_length": 96, "attention.head_count": 4,
        "attention.head_count_kv": 2, "context_length": 128, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5, "vocab_size": 100,
    }  # fmt: skip
    values = _Recorded({f"{name}.{key}": value for key, value in sizes.items()})
    fields = Fields("facts", values)
    file = SimpleNamespace(
        fields=fields,
        tensors={},
        get=fields.get,
        require=fields.require,
        array_length=lambda key: None,
    )
    return read(file, architecture), values.asked


def architectures() -> dict[str, Any]:
    """Facts of the architectures that the plain reader understands, null for the others."""
    made: dict[str, Any] = {}
    for name, architecture in ARCHITECTURES.items():
        plain, asked = _read(name, gguf_config.transformer, architecture)
        made[name] = None
        try:
            own = (
                plain
                if architecture.read_gguf is None
                else _read(name, architecture.read_gguf, architecture)[0]
            )
        except aleator.AleatorError:
            continue
        if own == plain and architecture.recurrent is None:
            told = {
                f.name: getattr(architecture, f.name)
                for f in dataclasses.fields(architecture)
                if f.name not in ("name", "read_gguf", "hugging_face")
            }
            # Other fields of the architecture mean what only its own reader knows.
            made[name] = told | {
                "keys": sorted(
                    key.removeprefix(f"{name}.") for key in asked if key.startswith(f"{name}.")
                )
            }
    return made


def facts() -> dict[str, Any]:
    """Everything that is no function."""
    types = [dataclasses.asdict(t) for t in TENSOR_TYPES.values()]
    return {
        "VERSION": aleator.__version__,
        "PARAMETERS": parameters(),
        "ELSEWHERE": ELSEWHERE,
        "PRESETS": PRESETS,
        "DEFAULT_PRESET": DEFAULT_PRESET,
        "LAST": _LAST,
        "TRUNCATION": _TRUNCATION,
        "ARCHITECTURES": architectures(),
        "TENSOR_TYPES": types,
        "OTHER_TYPES": _OTHER_TYPES,
        "FOREIGN": {key.decode("latin-1"): value for key, value in _FOREIGN.items()},
        "MIN_ENTRY": _MIN_ENTRY,
        "MIN_TENSOR": _MIN_TENSOR,
        "LIMITS": {k: v for k, v in vars(limits).items() if re.fullmatch("MAX_[A-Z]+", k)},
        "PRE_TOKENIZERS": pretokenizers.PRE_TOKENIZERS,
        "ADDS_BOS": pretokenizers.ADDS_BOS,
        "WHOLE_WORDS": pretokenizers.WHOLE_WORDS,
        "CHARACTERS": pretokenizers.CHARACTERS,
        "VOCABULARIES": vocabulary._MODELS,
        "NO_VOCABULARY": vocabulary._NO_VOCABULARY,
        "BYTE_CHARACTERS": [vocabulary.BYTE_CHARACTERS[i] for i in range(256)],
        "SPACE": special_tokens.SPACE,
        "MAX_BREAKER_BYTES": dry.MAX_BREAKER_BYTES,
        "MAX_TAIL_TOKENS": dry.MAX_TAIL_TOKENS,
        "SPECIAL_KEYS": gguf_vocabulary.GGUF_SPECIALS,
        "ATTRIBUTES": {a.name: a.value for a in special_tokens.TokenAttribute},
        "KNOWN_TEXTS": special_tokens._KNOWN_TEXTS,
        "END_TEXTS": special_tokens._END_TEXTS,
        "END_SPECIALS": special_tokens._END_SPECIALS,
        "MESSAGE_PARTS": special_tokens._MESSAGE_PARTS,
    }


def typescript(p: Parameter) -> str:
    """A parameter as a field of SamplingParameters."""
    kinds = {int: "number", float: "number", bool: "boolean", str: "string"}
    kind = kinds.get(p.type, "unknown")
    if p.choices:
        kind = " | ".join(f"'{word}'" for word in p.choices)
    kind = TYPES.get(p.name, kind) + (" | null" if p.optional else "")
    bounds = f" Range {p.interval}." if p.type in (int, float) else ""
    default = "" if p.type not in (int, float, bool, str) else f" Neutral: {p.neutral!r}."
    return f"  /** {p.help[0].upper()}{p.help[1:]}.{bounds}{default} */\n  {p.name}?: {kind}"


TYPES = {
    "seed": "number | bigint | null",
    "samplers": "string | string[]",
    "logit_bias": "Record<number, number> | Iterable<[number | string, number]>",
    "bad_words": "(string | number[])[]",
    "dry_sequence_breakers": "(string | number[])[]",
    "allowed_token_ids": "number[]",
    "stop_token_ids": "number[]",
    "grammar": "string",
}


def main() -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    head = "// Made by tools/javascript.py of the declarations in src/aleator; not to be edited.\n"
    lines = [head, "import { Sampler, SeededSampler, truth } from './sampler.js'\n"]
    lines += [f"export const {name} = {as_json(value)}" for name, value in facts().items()]
    lines += sampler_classes()
    lines.append(f"export const FIRST = [{', '.join(cls.__name__ for cls in FIRST)}]")
    lines.append(f"export const SAMPLERS = [{', '.join(cls.__name__ for cls in SAMPLERS)}]")
    (OUT / "facts.js").write_text("\n".join(lines) + "\n")
    types = "\n".join(typescript(p) for p in ALL.values() if p.name not in ELSEWHERE)
    declared = f"{head}\nexport interface SamplingParameters {{\n{types}\n}}\n"
    (OUT / "parameters.d.ts").write_text(declared)
    return 0


if __name__ == "__main__":
    sys.exit(main())
