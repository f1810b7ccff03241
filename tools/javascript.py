"""Write what the npm package in js/ takes from the declarations: src/facts.js, src/models.js, src/chats.js,
src/expression-parts.js and src/parameters.d.ts.

    python tools/javascript.py

`make wasm` runs it.  Short methods of samplers are written as JavaScript: when a sampler does nothing, and the
arguments of its native form; and with all that they use, the readers of models' dimensions and layers, of
chats' replies and of banned expressions.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from code_to_javascript import Code, as_json
from parsers_to_javascript import ParserProgram
from to_javascript import Program
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

import aleator
from aleator.cache.storage.layer import TYPES as CACHE_TYPES
from aleator.chat import message, prompt, reply
from aleator.chat.families import FAMILIES
from aleator.core import json_text
from aleator.core.contract import Purpose
from aleator.core.integers import MAX_TOKEN
from aleator.core.parameter import Parameter
from aleator.generate import bans, expressions, loops
from aleator.generate import complete_grammar as ending
from aleator.generate.options import GenerateOptions
from aleator.models import config, gguf_config, refused
from aleator.models.files import fields as limits
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import _FOREIGN, _MIN_ENTRY, _MIN_TENSOR, GGUFFile
from aleator.models.files.tensor_types import _OTHER_TYPES, TENSOR_TYPES
from aleator.models.index import ARCHITECTURES
from aleator.models.layers import parts, recurrent_parts
from aleator.models.layers.layer_source import LayerSource
from aleator.models.weights import _DIMENSIONS
from aleator.samplers import base, dry, phase_table
from aleator.samplers.index import FIRST, ORDERED, SAMPLERS
from aleator.samplers.order import _LAST
from aleator.samplers.params import _TRUNCATION, ALL
from aleator.samplers.presets import DEFAULT_PRESET, PRESETS
from aleator.text import chat_template, gguf_vocabulary, pretokenizers, special_tokens, vocabulary

OUT = Path(__file__).parent.parent / "js" / "src"
METHODS = ("asked_for", "neutral", "coefficients", "seed_in", "_unseeded", "arguments", "native")
BASE = (base.Sampler, base.SeededSampler)  # js/src/sampler.js has these
ELSEWHERE = ("watermark_key_file",)
"""Parameters that JavaScript lacks."""


class SamplerCode(Code):
    """A method of a sampler: native forms are their names and arguments, tables objects."""

    def expression(self, e: ast.expr) -> str:
        match e:
            case ast.Subscript(ast.Name(name), ast.Constant(str(key))):
                return f"{name}.{key}"
            case ast.Call(ast.Name("single"), [value]):
                return f"Math.fround({self.expression(value)})"
            case ast.Call(ast.Attribute(ast.Name("host"), kernel), given):
                return f"[{as_json(kernel)}, [{', '.join(map(self.expression, given))}]]"
            case ast.Call(ast.Attribute(ast.Call(ast.Name("super")), name), given):
                return f"super.{name}({', '.join(map(self.expression, given))})"
            case ast.Call(ast.Attribute(parts, "index"), [value]):
                return f"{self.expression(parts)}.indexOf({self.expression(value)})"
        return super().expression(e)


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
            code = SamplerCode(Program({}, BASE), getattr(found, inner) if inner else found, True)
            kind = {property: "get ", classmethod: "static "}.get(type(found), "")
            yield f"  {kind}{name}({code.parameters}) {{ {code.body} }}"
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
            "low": p.low, "high": p.high, "openLow": p.open_low, "beyond": p.beyond,
            "aliases": p.aliases, "optional": p.optional, "metadata": p.metadata, "range": p.interval,
        }  # fmt: skip
        # Not what is absent; 0 is a bound.
        made[p.name] = {
            k: v
            for k, v in told.items()
            if k == "neutral" or not (v is None or v in ((), "") or v is False)
        }
    return made


def architectures() -> dict[str, Any]:
    """What the architectures declare, but how their files are read."""
    return {
        name: {
            f.name: getattr(architecture, f.name)
            for f in dataclasses.fields(architecture)
            if f.name not in ("read_gguf", "hugging_face")
        }
        for name, architecture in ARCHITECTURES.items()
    }


def models() -> Iterator[str]:
    """The readers of dimensions, and the tensors of layers, as in src/aleator/models."""
    program = Program(
        {Fields: "Fields", config.unsupported: "unsupported"},
        [Fields, GGUFFile, LayerSource, config.ModelConfig, parts.Attention],
    )
    readers = {
        name: program.name_of(architecture.read_gguf or gguf_config.transformer)
        for name, architecture in ARCHITECTURES.items()
    }
    layers = (
        parts.Attention, parts.LayerEmbeddings, parts.LayerEmbedding, recurrent_parts.FeedForwardAlone,
        recurrent_parts.stateful, recurrent_parts.state_shape, parts.gate_of,
    )  # fmt: skip
    names = {each.__name__: program.name_of(each) for each in layers}
    yield "import * as py from './python.js'"
    yield "import { Fields } from './gguf.js'"
    yield (
        "const unsupported = (path, what) => "
        "py.error('UnsupportedModel', `the model needs ${what}, which is not supported`)"
    )
    yield from program.code
    yield f"export const READERS = {{{', '.join(f'{as_json(k)}: {v}' for k, v in readers.items())}}}"
    yield f"export const TABLE = {as_json(parts.TABLE)}"
    yield f"export {{ {', '.join(f'{v} as {k}' for k, v in names.items())} }}"


def chats() -> Iterator[str]:
    """What reads replies and checks messages, as in src/aleator/chat."""
    given = {reply.call_id: "callId", message._wrong: "wrong", message.shown: "shown"}
    spelled = {
        "tool_choice": "toolChoice", "a mapping": "an object", "a list": "an array",
        "True or False": "true or false", "strict=True": "strict=true",
    }  # fmt: skip
    program = ParserProgram(given, spelled, ("around_calls",))
    checks = (message.checked_messages, message.checked_tools, message.chosen_tools)
    used = (*checks, reply.Reply, reply.Schema, reply.Words, reply.Maybe, message.Function)
    names = {each.__name__: program.name_of(each) for each in used}
    families = [program.name_of(each) for each in FAMILIES]
    yield "import * as py from './python-text.js'"
    yield "import { callId } from './digest.js'"
    yield "import { shown, wrong } from './native.js'"
    yield from program.code
    yield f"export const FAMILIES = [{', '.join(families)}]"
    yield f"export {{ {', '.join(f'{v} as {k}' for k, v in names.items())} }}"


def banned_expressions() -> Iterator[str]:
    """The reader of banned expressions, as in src/aleator/generate/expressions.py."""
    program = Program({}, [expressions._Reader])
    reader, any_of = map(program.name_of, (expressions._Reader, expressions.any_of))
    yield "import * as py from './python.js'"
    yield from program.code
    yield f"export {{ {reader} as Reader, {any_of} as any_of }}"


def characters(*members: str) -> list[tuple[int, int]]:
    """The ranges of a class with these members, as Unicode 16 has it; browsers have those of their age."""
    every = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
    others = Split(Regex(f"[^{''.join(members)}]+"), "removed")
    return [(ord(run[0]), ord(run[-1])) for run, _ in others.pre_tokenize_str(every)]


def unicode_classes() -> dict[str, str]:
    """The Unicode classes of pre-tokenizers, as members of a class."""
    names = {
        name
        for cuts in pretokenizers.PRE_TOKENIZERS.values()
        for name in re.findall(r"\\p\{\w+\}", "".join(cuts))
    }
    return {
        name: "".join(rf"\u{{{first:x}}}-\u{{{last:x}}}" for first, last in characters(name))
        for name in sorted(names)
    }


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
        "DIMENSIONS": _DIMENSIONS,
        "OTHER_TYPES": _OTHER_TYPES,
        "CACHE_TYPES": [
            {"name": t.native, "block": t.block, "size": t.block_bytes}
            for t in CACHE_TYPES.values()
        ],
        "KINDS": refused.KINDS,
        "FOREIGN": {key.decode("latin-1"): value for key, value in _FOREIGN.items()},
        "MIN_ENTRY": _MIN_ENTRY,
        "MIN_TENSOR": _MIN_TENSOR,
        "LIMITS": {k: v for k, v in vars(limits).items() if re.fullmatch("MAX_[A-Z]+", k)},
        "PRE_TOKENIZERS": pretokenizers.PRE_TOKENIZERS,
        "UNICODE_CLASSES": unicode_classes(),
        "DIGITS": characters(r"\p{Nd}"),  # \d, \w and \s of Rust's expressions
        "WORD": characters(r"\p{Alphabetic}", r"\p{M}", r"\p{Nd}", r"\p{Pc}", r"\p{Join_Control}"),
        "SPACES": characters(r"\p{White_Space}"),
        "MOST_LEVELS": json_text.MOST_LEVELS,
        "ADDS_BOS": pretokenizers.ADDS_BOS,
        "WHOLE_WORDS": pretokenizers.WHOLE_WORDS,
        "CHARACTERS": pretokenizers.CHARACTERS,
        "VOCABULARIES": {
            k: v for k, v in vocabulary._MODELS.items() if k not in vocabulary._PIECES
        },
        "NO_VOCABULARY": vocabulary._NO_VOCABULARY,
        "BYTE_CHARACTERS": [special_tokens.BYTE_CHARACTERS[i] for i in range(256)],
        "SPACE": special_tokens.SPACE,
        "MAX_BREAKER_BYTES": dry.MAX_BREAKER_BYTES,
        "MAX_TAIL_TOKENS": dry.MAX_TAIL_TOKENS,
        "SPECIAL_KEYS": gguf_vocabulary.GGUF_SPECIALS,
        "ATTRIBUTES": {a.name: a.value for a in special_tokens.TokenAttribute},
        "KNOWN_TEXTS": special_tokens._KNOWN_TEXTS,
        "END_TEXTS": special_tokens._END_TEXTS,
        "END_SPECIALS": special_tokens._END_SPECIALS,
        "MESSAGE_PARTS": special_tokens._MESSAGE_PARTS,
        "STRIPPING_MODELS": gguf_vocabulary._STRIPPING_MODELS,
        "NOT_STRIPPING": gguf_vocabulary._NOT_STRIPPING,
        "ENDING": {
            **{k: v for k, v in vars(ending).items() if type(v) is int},
            "DIGITS": [order.decode() for order in ending._DIGITS],
        },
        "LOOPS": {name: getattr(loops, name) for name in ("RANGES", "SHORT", "STRETCH", "USUAL")},
        "BANS": {k: v for k, v in vars(bans).items() if type(v) is int},
        "BAN": int(Purpose.BAN),
        "EXPRESSIONS": {
            **{k: v for k, v in vars(expressions).items() if type(v) is int},
            "OVER": expressions._OVER,
            "ANCHOR": expressions._ANCHOR.pattern,
        },
        "REASONING_MARKS": GenerateOptions().reasoning_marks,
        "PHASES": {
            "MAX_TOKEN": MAX_TOKEN,
            **{k: v for k, v in vars(phase_table).items() if k.isupper() and k != "TYPE_CHECKING"},
        },
        "CHAT": {
            "THINKING": [dataclasses.asdict(each) for each in prompt.THINKING],
            "FOREIGN": prompt.FOREIGN,
            "AROUND_CALLS": {family.name: family.around_calls for family in FAMILIES},
            "LIMITS": {k: v for k, v in vars(chat_template).items() if k.startswith("MAX_")},
        },
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
    "regex": "string",
    "phases": "Record<string, string | SamplingParameters & "
    "{ preset?: string; begin?: string | number; end?: string | number }>",
    "json_schema": "boolean | string | Record<string, unknown>",
}


def write(out: Path) -> None:
    """Write the files into a folder."""
    head = "// Made by tools/javascript.py of the declarations in src/aleator; not to be edited.\n"
    lines = [
        head,
        "import * as py from './python.js'",
        "import { Sampler, SeededSampler } from './sampler.js'\n",
    ]
    lines += [f"export const {name} = {as_json(value)}" for name, value in facts().items()]
    lines += sampler_classes()
    lines.append(f"export const FIRST = [{', '.join(cls.__name__ for cls in FIRST)}]")
    lines.append(f"export const SAMPLERS = [{', '.join(cls.__name__ for cls in SAMPLERS)}]")
    (out / "facts.js").write_text("\n".join(lines) + "\n")
    (out / "models.js").write_text("\n".join([head, *models()]) + "\n")
    (out / "chats.js").write_text("\n".join([head, *chats()]) + "\n")
    (out / "expression-parts.js").write_text("\n".join([head, *banned_expressions()]) + "\n")
    types = "\n".join(typescript(p) for p in ALL.values() if p.name not in ELSEWHERE)
    declared = f"{head}\nexport interface SamplingParameters {{\n{types}\n}}\n"
    (out / "parameters.d.ts").write_text(declared)


if __name__ == "__main__":
    write(OUT)
