"""Replies in the shapes of families: read the same however they are cut."""

from __future__ import annotations

from typing import Any

import pytest

from aleator.chat.families import FAMILIES, family_of
from aleator.chat.families.tagged import json_value
from aleator.chat.message import Function, Message
from aleator.chat.reply import Reply, Thinking
from tests.chat import templates

THINK = Thinking("<think>", "</think>")
TOOLS = {
    each["function"]["name"]: each["function"]["parameters"]
    for each in (templates.WEATHER, templates.CLOCK, templates.WRITE)
}
PARIS = '{"city": "Paris", "days": 2}'


def read(
    template: str, text: str, size: int, thinking: Thinking | None = None, opened: bool = False
) -> Message:
    family = family_of(template)
    reply = Reply(family, None if family.thinking else thinking, opened, TOOLS, b"key")
    deltas = []
    for at in range(0, len(text), size):
        deltas += reply.push(text[at : at + size])
    deltas += reply.finish()
    made = reply.message
    # What is streamed joins to the message.
    for kind, whole in (("content", made.content), ("reasoning", made.reasoning_content)):
        assert "".join(d.text for d in deltas if d.kind == kind) == whole
    for i, call in enumerate(made.tool_calls):
        own = [d for d in deltas if d.index == i and d.kind not in ("content", "reasoning")]
        assert (own[0].kind, own[0].text, own[0].id) == ("call", call.name, call.id)
        assert "".join(d.text for d in own[1:]) == call.arguments
        assert (own[-1].kind == "call_end") == call.complete
    return made


def calls(message: Message) -> list[tuple[str, str, bool]]:
    return [(call.name, call.arguments, call.complete) for call in message.tool_calls]


WEATHER, CLOCK = [("get_weather", PARIS, True)], [("clock", "{}", True)]
BOTH = [*WEATHER, *CLOCK]
# Template, reply, content, calls.
CASES: list[tuple[str, str, str, list[Any]]] = [
    ("hermes", "Just text < b.", "Just text < b.", []),
    (
        "hermes",
        f'Let me see.\n<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>',
        "Let me see.", WEATHER,
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"a": "}\\""}, "name": "x"}</tool_call>\n'
        '<tool_call>\n{"name": "clock"}\n</tool_call>',
        "", [("x", '{"a": "}\\""}', True), ("clock", "{}", True)],
    ),
    ("hermes", '<tool_call>{"name": "x", "arguments": "{\\"a\\": 1}"}', "", [("x", '{"a": 1}', True)]),
    ("hermes", "<tool_call>no json</tool_call>", "<tool_call>no json</tool_call>", []),
    ("llama3", f'{{"name": "get_weather", "parameters": {PARIS}}}', "", WEATHER),
    (
        "llama3", '<|python_tag|>{"name": "clock", "parameters": {}}; {"name": "clock", "parameters": {}}',
        "", CLOCK * 2,
    ),
    ("llama3", '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}', []),
    ("llama3", '{"name": "clock", "age": 3}', '{"name": "clock", "age": 3}', []),
    ("llama3", 'Well.<|python_tag|>{"name": "clock", "parameters": {}}', "Well.", CLOCK),
    (
        "mistral",
        f'Hm. [TOOL_CALLS] [{{"name": "get_weather", "arguments": {PARIS}}}, '
        '{"name": "clock", "arguments": {}}]',
        "Hm.", BOTH,
    ),
    (
        "mistral args",
        f"[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]clock[CALL_ID]123456789[ARGS]{{}}",
        "", BOTH,
    ),
    ("mistral args", "[TOOL_CALLS]get_weather{}", "", [("get_weather", "{}", True)]),
    ("mistral args", '[TOOL_CALLS]x[ARGS]{"a', "", [("x", '{"a', False)]),
    (
        "deepseek",
        "So.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        f"{PARIS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{{}}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "So.", BOTH,
    ),
    (
        "deepseek bare",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{PARIS}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        "", WEATHER,
    ),
    ("generic", f'{{"name": "get_weather", "arguments": {PARIS}}}', "", WEATHER),
    (
        "generic", '[{"name": "clock", "arguments": {}}, {"name": "clock", "parameters": {}}]\n',
        "", CLOCK * 2,
    ),
    ("generic", '{"name": "Bob"}', '{"name": "Bob"}', []),
    (
        "qwen3-coder",
        "Let me see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=clock>\n"
        "</function>\n</tool_call>",
        "Let me see.", BOTH,
    ),
    (
        # A string's own line ends are kept, and a string of digits is a string.
        "qwen3-coder",
        "<tool_call><function=write><parameter=text>\n<b>12\n\n</parameter><parameter=name>\n7\n</parameter>"
        "<parameter=more>\nTrue\n</parameter></function></tool_call> Done.",
        "Done.",
        [("write", '{"text": "<b>12\\n", "name": "7", "more": true}', True)],
    ),
    (
        "qwen3-coder", "<tool_call>\n<function=write>\n<parameter=name>\nx\n</parameter>\n<parameter=te",
        "", [("write", '{"name": "x"', False)],
    ),
    ("qwen3-coder", "<tool_call>\nnothing</tool_call>", "<tool_call>\nnothing</tool_call>", []),
    ("qwen3-coder", "<tool_call>\n<function=not a name>", "<tool_call>\n<function=not a name>", []),
    (
        "seed-oss",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter=days>2"
        "</parameter>\n</function>\n</seed:tool_call>",
        "", WEATHER,
    ),
    (
        "minimax-m2",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n<invoke name="clock">\n</invoke>\n'
        "</minimax:tool_call>",
        "", BOTH,
    ),
    (
        "glm",
        "Hm.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days"
        "</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>clock\n</tool_call>",
        "Hm.", BOTH,
    ),
    (
        "glm line",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key>"
        "<arg_value>2</arg_value></tool_call><tool_call>clock</tool_call>",
        "", BOTH,
    ),
    ("glm", "<tool_call>two words</tool_call>", "<tool_call>two words</tool_call>", []),
    (
        "hy3",
        "Hm.<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Paris</arg_value:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n"
        "</tool_call:opensource>\n<tool_call:opensource>clock<tool_sep:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
        "Hm.", BOTH,
    ),
    (
        "firefunction",
        f'Hm. functools[{{"name": "get_weather", "arguments": {PARIS}}}, '
        '{"name": "clock", "arguments": {}}]',
        "Hm.", BOTH,
    ),
    ("firefunction", "import functools", "import functools", []),
    (
        "granite",
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {PARIS}}}, '
        '{"name": "clock", "arguments": {}}]',
        "", BOTH,
    ),
    (
        "nemotron-v2", f'So. <TOOLCALL>[{{"name": "get_weather", "arguments": {PARIS}}}]</TOOLCALL>',
        "So.", WEATHER,
    ),
    ("nemotron-v2", "<TOOLCALL>[]</TOOLCALL>", "<TOOLCALL>[]</TOOLCALL>", []),
    (
        "tool-calls-list", f'<tool_calls>[{{"name": "get_weather", "arguments": {PARIS}}}]</tool_calls>',
        "", WEATHER,
    ),
    (
        "tool-calls-lines",
        f'<tool_calls>\n{{"name": "get_weather", "arguments": {PARIS}}}\n{{"name": "clock"}}\n</tool_calls>',
        "", BOTH,
    ),
    (
        "command-r7b",
        f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {PARIS}}}\n]'
        "<|END_ACTION|>",
        "", WEATHER,
    ),
    ("command-r7b", "<|START_RESPONSE|>Hello <b>.<|END_RESPONSE|>", "Hello <b>.", []),
    (
        "kimi",
        "Yes.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        f"{PARIS}<|tool_call_end|><|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{{}}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        "Yes.", BOTH,
    ),
    (
        "pythonic",
        "<|tool_call_start|>[get_weather(city='Paris', days=2), clock()]<|tool_call_end|>I look.",
        "I look.", BOTH,
    ),
    (
        "pythonic", '<|tool_call_start|>[write(name="a\\"b", more=[true, None, {"k": -1.5}])]',
        "", [("write", '{"name": "a\\"b", "more": [true, null, {"k": -1.5}]}', True)],
    ),
    (
        "pythonic", "<|tool_call_start|>__import__('os')<|tool_call_end|>",
        "<|tool_call_start|>__import__('os')<|tool_call_end|>", [],
    ),
    (
        "gemma4",
        'Hm.<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|>'
        "<|tool_call>call:clock{}<tool_call|>",
        "Hm.", BOTH,
    ),
    (
        "gemma4",
        '<|tool_call>call:write{name:<|"|>a, "b" {<|"|>,more:{k:[1,true,<|"|>c<|"|>],n:{}},kind:null}'
        "<tool_call|>",
        "",
        [("write", '{"name": "a, \\"b\\" {", "more": {"k": [1, true, "c"], "n": {}}, "kind": null}', True)],
    ),
    ("gemma4", "<|tool_call>call:x{a", "<|tool_call>call:x{a", []),
    ("gemma4", f"<|tool_call>call:x{{a:{'[' * 100}", f"<|tool_call>call:x{{a:{'[' * 100}", []),
    (
        "dsml",
        'Hm.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" '
        'string="true">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">2'
        '</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>",
        "Hm.", BOTH,
    ),
    (
        # The mark decides, whatever the schema and the text look like; line ends are the string's own.
        "dsml-v4",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="write">\n<｜DSML｜parameter name="more" string="true">12\n'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="list" string="false">[1, "">"]</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        "",
        [("write", '{"more": "12\\n", "list": "[1, \\"\\">\\"]"}', True)],
    ),
    ("dsml", "<｜DSML｜function_calls>no</", "<｜DSML｜function_calls>no</", []),
    (
        "minicpm5",
        'So.\n<function name="get_weather"><param name="city">Paris</param><param name="days">2</param>'
        '</function>\n<function name="clock"></function>',
        "So.", BOTH,
    ),
    (
        "minicpm5",
        '<function name="write"><param name="text"><![CDATA[a</param>\n<b>]]></param><param name="more">True'
        "</param></function>",
        "", [("write", '{"text": "a</param>\\n<b>", "more": true}', True)],
    ),
    (
        "functionary-v3.1",
        f"Well. <function=get_weather>{PARIS}</function><function=clock>{{}}</function>",
        "Well.", BOTH,
    ),
    ("functionary-v3.1", "<function=get_weather>no", "<function=get_weather>no", []),
    ("functionary-v3.2", f"all\nI look. >>>get_weather\n{PARIS}>>>clock\n{{}}", "I look.", BOTH),
    ("functionary-v3.2", f">>>get_weather\n{PARIS}", "", WEATHER),
    ("functionary-v3.2", "all\nTwo\nlines", "Two\nlines", []),
    ("functionary-v3.2", "no recipient", "no recipient", []),
    ("pythonic-list", "[get_weather(city='Paris', days=2), clock()]", "", BOTH),
    ("pythonic-list", "<|python_start|>[clock()]<|python_end|>Done.", "Done.", CLOCK),
    ("pythonic-list", "[other(a=1)]", "[other(a=1)]", []),
    ("pythonic-list", "[clock()](url)", "[clock()](url)", []),
    (
        # Names that are no names in Python, and a string that looks like a call.
        "pythonic",
        "<|tool_call_start|>[get-it(from='get-it(x)', user-id=(1,)), a.b(c=(2))]<|tool_call_end|>",
        "",
        [("get-it", '{"from": "get-it(x)", "user-id": [1]}', True), ("a.b", '{"c": 2}', True)],
    ),
    (
        "pythonic",
        r"""<|tool_call_start|>[f(a='it\'s \d', b="\ud83d\ude00\/", c='\ud800', d='''x
y''', e={'k': 0x10, "l": 1_000,})]""",
        "",
        [
            (
                "f",
                '{"a": "it\'s \\\\d", "b": "😀/", "c": "\\ud800", "d": "x\\ny", "e": {"k": 16, "l": 1000}}',
                True,
            )
        ],
    ),
    ("pythonic", "<|tool_call_start|>[f(a=1e999, a=-1e999)]", "", [("f", '{"a": -1e999}', True)]),
    *(
        ("pythonic", f"<|tool_call_start|>{said}", f"<|tool_call_start|>{said}", [])
        for said in (
            f"[f(a=0x{'f' * 5000})]", f"[f(a={'[' * 5000})]", "[f(a=nan)]", "[f(1)]", "[f(a=1,,)]",
            "[f(a=1) g()]", "[f(a=f'{1}')]", "[f(**{'a': 1})]", "[]", "[f(a=1)]]", "f", "[see f(a=1)]",
        )
    ),
    # A mark that begins no call is part of the answer, with the white space before it.
    ("hermes", "Use <tool_call> tags.", "Use <tool_call> tags.", []),
    ("pythonic", "a\n<|tool_call_start|>b", "a\n<|tool_call_start|>b", []),
    ("functionary-v3.2", "all\nType:\n>>> print(1)\n1\n>>>", "Type:\n>>> print(1)\n1\n>>>", []),
    # What was read of arguments is the same, however the text was cut.
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1}', "}", [("f", '{"a": [1', False)]),
    ("pythonic-list", "[1, 2] are numbers", "[1, 2] are numbers", []),
    (
        "llama3 of 4", f'<|python_start|>{{"name": "get_weather", "parameters": {PARIS}}}<|python_end|>',
        "", WEATHER,
    ),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_calls_and_content(case: tuple[str, str, str, list[Any]], size: int) -> None:
    name, text, content, expected = case
    made = read(templates.FAMILIES[name], text, size)
    assert made.content == content
    assert calls(made) == expected


@pytest.mark.parametrize("size", [1, 4, 10_000])
def test_harmony(size: int) -> None:
    text = (
        "<|channel|>analysis<|message|>Think {hard}.<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
        f"<|message|>{PARIS}<|call|><|start|>assistant to=functions.clock<|channel|>commentary json"
        "<|message|>{}"
    )
    made = read(templates.HARMONY, text, size)
    assert made.reasoning_content == "Think {hard}."
    assert made.content == "I look."
    assert calls(made) == [("get_weather", PARIS, True), ("clock", "{}", True)]
    made = read(templates.HARMONY, "<|channel|>final<|message|>Hello <b>.", size)
    assert made == Message("Hello <b>.")
    assert read(templates.HARMONY, "no channels", size) == Message("no channels")


@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_reasoning(size: int) -> None:
    call = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    made = read(templates.HERMES, f"\n<think>\nOne <two>.\n</think>\n\nYes. {call}", size, THINK)
    assert (made.reasoning_content, made.content) == ("One <two>.", "Yes.")
    assert calls(made) == [("clock", "{}", True)]
    made = read(templates.DEEPSEEK, "So be it.\n</think>\n\nNo.", size, THINK, opened=True)
    assert made == Message("No.", "So be it.")
    made = read(templates.DEEPSEEK, "cut off", size, THINK, opened=True)
    assert made == Message("", "cut off")
    # Only a reply's beginning is reasoning.
    made = read(templates.HERMES, "a <think>b</think>", size, THINK)
    assert made == Message("a <think>b</think>")


@pytest.mark.parametrize(
    ("said", "kind", "made"),
    [
        ("{'a': [1, None], \"b\": 'c'}", "object", '{"a": [1, null], "b": "c"}'),
        ("[True, (1,), '\\n']", "array", '[true, [1], "\\n"]'),
        ("{'a': 1}", "string", "\"{'a': 1}\""),
        ("['a", "array", '"[\'a"'),
        ("['a'] b", "array", "\"['a'] b\""),
        ("'a'", "array", "\"'a'\""),
        ("[" * 5000, "array", f'"{"[" * 5000}"'),
    ],
)
def test_objects_and_lists_as_python_writes_them(said: str, kind: str, made: str) -> None:
    assert json_value(said, {"type": kind}) == made


def test_each_template_is_of_one_family() -> None:
    for name, template in templates.FAMILIES.items():
        assert family_of(template).name == name.split()[0]
    assert family_of(templates.CHATML).name == "generic"
    assert [family.name for family in FAMILIES][-1] == "generic"


def test_ids_are_the_same_each_time_and_differ_between_calls() -> None:
    text = '<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "a"}</tool_call>'
    first, second = read(templates.HERMES, text, 3).tool_calls
    assert first.id != second.id
    assert all(len(call.id) == 9 and call.id.isalnum() for call in (first, second))
    assert read(templates.HERMES, text, 7).tool_calls == (first, second)
    assert first.as_json() == {
        "id": first.id,
        "type": "function",
        "function": {"name": "a", "arguments": "{}"},
    }


@pytest.mark.parametrize("end", ["", " ", "}", ', "a": 1}'])
def test_a_call_without_a_value_for_its_arguments_is_not_complete(end: str) -> None:
    text = f'<tool_call>{{"name": "clock", "arguments":{end}'
    for size in (1, len(text)):
        assert calls(read(templates.HERMES, text, size)) == [("clock", "", False)]


def test_arguments_nested_too_deeply_are_no_arguments() -> None:
    text = f'<tool_call>{{"name": "f", "arguments": "{"[" * 100_000}"}}</tool_call>'
    made = read(templates.HERMES, text, len(text))
    assert not any(call.complete for call in made.tool_calls)


@pytest.mark.parametrize("name", templates.FAMILIES)
def test_marks_stand_around_calls(name: str) -> None:
    """A phase of calls begins and ends with them."""
    family = family_of(templates.FAMILIES[name])
    if family.name in ("llama3", "generic", "functionary-v3.2", "pythonic-list"):
        assert family.around_calls is None
        return
    assert family.around_calls is not None
    begin, end = family.around_calls
    first, *_, last = family.call(Function("clock", {"type": "object", "properties": {}}))
    assert str(first).startswith(begin)
    # Those of gpt-oss and DeepSeek end with a token that the model draws by itself.
    assert family.name in ("harmony", "deepseek") or str(last).endswith(end)
