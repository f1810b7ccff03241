"""Calls in tags: the name, then each argument by itself, strings without quotes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from aleator.chat.families.named_arguments import (
    PYTHON,
    forced,
    in_turn,
    is_text,
    no_constant,
    properties,
)
from aleator.chat.families.pythonic import literal
from aleator.chat.message import Function
from aleator.chat.reply import (
    Calls,
    Deltas,
    Family,
    Malformed,
    Part,
    TextReader,
    Waiting,
    Words,
    read_text,
)
from aleator.core.json_text import loads
from aleator.core.records import dataclass

_NAME = re.compile(r"[\w.:/-]+")


@dataclass(frozen=True)
class Tags:
    """How calls are written."""

    begin: str  # Before all calls, or before each where ``call`` is ""
    call: str  # Before a name
    # What may follow a name; if it is neither white space nor part of ``call``, it is read again
    name_ends: tuple[str, ...]
    key: str  # Before an argument's name
    key_end: str  # After it
    value: str  # Before its value
    value_end: str  # After it
    call_end: str  # After the arguments
    end: str  # After all calls; "": nothing
    head: str  # Text written before the arguments of ``{name}``
    # Text written before the value of ``{key}``; ``{string}`` is whether the value is a string without quotes
    before: str
    after: str  # Text written after the value
    tail: str  # Text written after the arguments


def json_value(text: str, schema: Any) -> str:
    """An unquoted value as JSON: a string if the schema says so or it is invalid JSON; else unchanged.

    Some templates show objects and lists as Python writes them, so models do too.
    """
    if not is_text(schema):
        bare = text.strip()
        bare = PYTHON.get(bare, bare)
        try:
            loads(bare, parse_constant=no_constant)
        except ValueError:
            kind = schema.get("type") if isinstance(schema, Mapping) else None
            made = literal(bare) if kind in ("object", "array") else None
            if made is not None and made[0] in "{[":
                return made
        else:
            return bare
    return json.dumps(text, ensure_ascii=False)


class Tagged(Family):
    """Templates whose models write calls in tags."""

    tags: Tags
    bare: ClassVar[bool] = False
    """Whether models leave the mark before all calls out."""

    def __init_subclass__(cls) -> None:
        cls.around_calls = cls.tags.begin, cls.tags.end or cls.tags.call_end

    def read(self, reader: TextReader, calls: Calls, tools: Mapping[str, Any]) -> Deltas:
        tags = self.tags
        begins = (tags.begin, tags.call) if self.bare else (tags.begin,)
        while found := (yield from read_text(reader, *begins)):
            start, before = reader.at, calls.n
            try:
                if found == tags.call:
                    name, _ = yield from reader.read_exactly(*tags.name_ends)
                    if name not in tools:
                        raise Malformed
                    reader.at = start - len(found)
                yield from self._calls(reader, calls, tools)
            except Malformed:
                if calls.n == before:
                    yield reader.back(start, found)

    def _calls(self, reader: TextReader, calls: Calls, tools: Mapping[str, Any]) -> Deltas:
        tags = self.tags
        yield from reader.skip_space()
        if tags.call and not (yield from reader.read_any(tags.call)):
            raise Malformed
        while True:
            yield from self._call(reader, calls, tools)
            yield from reader.skip_space()
            if tags.end and (yield from reader.read_end(tags.end)):
                yield from reader.skip_space()
                return
            if not tags.call or not (yield from reader.read_any(tags.call)):
                return

    def _call(self, reader: TextReader, calls: Calls, tools: Mapping[str, Any]) -> Deltas:
        tags = self.tags
        name, mark = yield from reader.read_exactly(*tags.name_ends)
        if mark in (tags.key, tags.call_end):
            reader.at -= len(mark)
        name = name.strip()
        if not _NAME.fullmatch(name):
            raise Malformed
        schemas, opened = properties(tools.get(name)), "{"
        yield calls.begin(name)
        yield from reader.skip_space()
        while (yield from reader.read_any(tags.key)):
            key, _ = yield from reader.read_exactly(tags.key_end)
            if tags.value and not (yield from reader.read_next(tags.value)):
                raise Malformed
            text = yield from self._text(reader)
            key = key.strip()
            said = self._value(text, schemas.get(key))
            yield calls.arguments(f"{opened}{json.dumps(key, ensure_ascii=False)}: {said}")
            opened = ", "
            yield from reader.skip_space()
        if not (yield from reader.read_any(tags.call_end)):
            raise Malformed
        yield calls.arguments("{}" if opened == "{" else "}")
        yield calls.end()

    def _text(self, reader: TextReader) -> Waiting[str]:
        """Read a value, and what follows it."""
        text, _ = yield from reader.read_exactly(self.tags.value_end)
        return text

    def _value(self, text: str, schema: Any) -> str:
        """A value that was read, as JSON; line ends are the form's, or there is one on either side."""
        inner = text.removeprefix("\n").removesuffix("\n")
        lines = self.tags.after[:1] == "\n" or len(inner) == len(text) - 2
        return json_value(inner if lines else text, schema)

    def call(self, function: Function) -> list[Part]:
        tags = self.tags

        def one(key: str, value: Part) -> list[Part]:
            string = isinstance(value, Words)
            begin = tags.before.replace("{key}", key).replace("{string}", str(string).lower())
            return [begin, value] if string else [begin, value, tags.after]

        arguments = forced(function, self.name, one, tags.value_end, tags.after)
        return [tags.head.replace("{name}", function.name), *in_turn(arguments), tags.tail]


class Qwen3Coder(Tagged):
    """Templates of Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5 and others of their form."""

    name = "qwen3-coder"
    shown_by = ("<tool_call>", "<function=")
    marks = ("<tool_call>", "</tool_call>")
    bare, ends_reasoning = True, ("<tool_call>\n<function=",)
    tags = Tags(
        "<tool_call>", "<function=", (">",), "<parameter=", ">", "", "</parameter>", "</function>",
        "</tool_call>", "<tool_call>\n<function={name}>\n", "<parameter={key}>\n", "\n</parameter>\n",
        "</function>\n</tool_call>",
    )  # fmt: skip


class SeedOss(Tagged):
    """Templates of Seed-OSS."""

    name = "seed-oss"
    shown_by = ("<seed:tool_call>",)
    marks = ("<seed:tool_call>", "</seed:tool_call>")
    tags = Tags(
        "<seed:tool_call>", "<function=", (">",), "<parameter=", ">", "", "</parameter>", "</function>",
        "</seed:tool_call>", "<seed:tool_call>\n<function={name}>\n", "<parameter={key}>", "</parameter>\n",
        "</function>\n</seed:tool_call>",
    )  # fmt: skip


class MiniMaxM2(Tagged):
    """Templates of MiniMax M2."""

    name = "minimax-m2"
    shown_by = ("<minimax:tool_call>",)
    marks = ("<minimax:tool_call>", "</minimax:tool_call>")
    tags = Tags(
        "<minimax:tool_call>", '<invoke name="', ('">',), '<parameter name="', '">', "", "</parameter>",
        "</invoke>", "</minimax:tool_call>", '<minimax:tool_call>\n<invoke name="{name}">\n',
        '<parameter name="{key}">', "</parameter>\n", "</invoke>\n</minimax:tool_call>",
    )  # fmt: skip


class Dsml(Tagged):
    """Templates of DeepSeek V3.2."""

    name = "dsml"
    shown_by = ("dsml_token", "function_calls>")
    marks = ("｜DSML｜",)
    tags = Tags(
        "<｜DSML｜function_calls>", '<｜DSML｜invoke name="', ('">',), '<｜DSML｜parameter name="', '"',
        'string="', "</｜DSML｜parameter>", "</｜DSML｜invoke>", "</｜DSML｜function_calls>",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="{name}">\n',
        '<｜DSML｜parameter name="{key}" string="{string}">', "</｜DSML｜parameter>\n",
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    )  # fmt: skip
    ends_reasoning = (tags.begin,)

    def _value(self, text: str, schema: Any) -> str:
        """A value, after what says whether it is a string."""
        string, _, text = text.partition('">')
        return (
            json.dumps(text, ensure_ascii=False) if string == "true" else json_value(text, schema)
        )


class DsmlV4(Dsml):
    """Templates of DeepSeek V4."""

    name = "dsml-v4"
    shown_by = ("dsml_token", "tool_calls>")
    tags = replace(
        Dsml.tags,
        begin="<｜DSML｜tool_calls>",
        end="</｜DSML｜tool_calls>",
        head=Dsml.tags.head.replace("function_calls", "tool_calls"),
        tail=Dsml.tags.tail.replace("function_calls", "tool_calls"),
    )
    ends_reasoning = (tags.begin,)


class MiniCpm5(Tagged):
    """Templates of MiniCPM 5, with tags as in XML."""

    name = "minicpm5"
    shown_by = ('<function name="', '<param name="')
    tags = Tags(
        '<function name="', "", ('">',), '<param name="', '">', "", "</param>", "</function>", "",
        '<function name="{name}">', '<param name="{key}">', "</param>", "</function>",
    )  # fmt: skip

    def _text(self, reader: TextReader) -> Waiting[str]:
        """Read a value, which may stand between marks that let it contain tags."""
        if not (yield from reader.read_any("<![CDATA[")):
            return (yield from super()._text(reader))
        text, _ = yield from reader.read_exactly("]]>")
        yield from reader.read_exactly(self.tags.value_end)
        return text


class Glm(Tagged):
    """Templates of GLM 4.5 and later, and of others with their tags."""

    name = "glm"
    shown_by = ("<tool_call>", "<arg_key>")
    marks = (
        "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
    )  # fmt: skip
    tags = Tags(
        "<tool_call>", "", ("\n", "<arg_key>", "</tool_call>"), "<arg_key>", "</arg_key>", "<arg_value>",
        "</arg_value>", "</tool_call>", "", "<tool_call>{name}\n", "<arg_key>{key}</arg_key>\n<arg_value>",
        "</arg_value>\n", "</tool_call>",
    )  # fmt: skip

    def __init__(self, template: str) -> None:
        super().__init__(template)
        if "</arg_key><arg_value>" in template:  # all on one line
            before, after = "<arg_key>{key}</arg_key><arg_value>", "</arg_value>"
            self.tags = replace(self.tags, head="<tool_call>{name}", before=before, after=after)


class Hy3(Tagged):
    """Templates of Hunyuan 3, whose marks all end in one word."""

    name = "hy3"
    shown_by = (("<tool_sep{}>", "<tool_sep:opensource>"), ":opensource")
    tags = Tags(
        "<tool_calls:opensource>", "<tool_call:opensource>", ("<tool_sep:opensource>",),
        "<arg_key:opensource>", "</arg_key:opensource>", "<arg_value:opensource>", "</arg_value:opensource>",
        "</tool_call:opensource>", "</tool_calls:opensource>",
        "<tool_calls:opensource>\n<tool_call:opensource>{name}<tool_sep:opensource>\n",
        "<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>",
        "</arg_value:opensource>\n", "</tool_call:opensource>\n</tool_calls:opensource>",
    )  # fmt: skip
    marks = (
        tags.begin, tags.call, *tags.name_ends, tags.key, tags.key_end, tags.value, tags.value_end,
        tags.call_end, tags.end,
    )  # fmt: skip
