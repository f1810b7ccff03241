"""Calls that are cut off or damaged: what was begun stays incomplete, and what is no call is content."""

from __future__ import annotations

from typing import Any

import pytest

from aleator.chat.families.named_arguments import forced, properties, with_commas
from aleator.chat.message import Function, Message
from aleator.chat.reply import Maybe
from tests.chat import templates
from tests.chat.test_families import PARIS, THINK, calls, read

KIMI = "<|tool_call_begin|>functions.clock:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
BEGIN = "<|tool_call_start|>"
BEGINNING, DEEPSEEK = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"
NO_NAME = "<|tool_calls_section_begin|><|tool_call_begin|>two words<|tool_call_argument_begin|>{}"
CODER = (
    "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
GIGACHAT = "<|message_sep|>\n\nfunction call<|role_sep|>\n"
GLM = "<tool_call>write\n<arg_key>name</arg_key>\n<arg_value>x</arg_value>\n"

# Template, reply, content (None: the reply itself), calls.
CASES: list[tuple[str, str, str | None, list[Any]]] = [
    ("hermes", '<tool_call>{"name": "f", "arguments": 12', "", [("f", "12", True)]),
    ("hermes", '<tool_call>{name: "clock"}</tool_call>', None, []),
    ("mistral", f'[TOOL_CALLS]{{"name": "get_weather", "arguments": {PARIS}}}', "",
     [("get_weather", PARIS, True)]),
    ("hermes", '<tool_call>{"name": "clock"', "", [("clock", "", False)]),
    ("hermes", '<tool_call>{"name": "clo', None, []),
    ("llama3", '{"name": "clock"', "", [("clock", "", False)]),
    ("llama3", '{"name": "Bob"', None, []),
    ("mistral", "[TOOL_CALLS][1, 2]", None, []),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": ', "", [("f", "", False)]),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": "b', "", [("f", '{"a": "b', False)]),
    ("mistral args", "[TOOL_CALLS]clock[ARGS]", "", [("clock", "", False)]),
    ("mistral args", "[TOOL_CALLS]clock", None, []),
    ("mistral args", "[TOOL_CALLS]clock[CALL_ID]12345[AR", "", [("clock", "", False)]),
    ("mistral args", "[TOOL_CALLS]clock[CALL_ID]12 [no", None, []),
    ("deepseek", f"{DEEPSEEK}function<｜tool▁sep｜>cl", None, []),
    ("deepseek", f"{DEEPSEEK}function<｜tool▁sep｜>clock\n", "", [("clock", "", False)]),
    ("deepseek", f"{DEEPSEEK}function<｜tool▁sep｜>clock\n```json\n", "", [("clock", "", False)]),
    ("deepseek", f"{DEEPSEEK}function<｜tool▁sep｜>clock\n```json\n{{", "", [("clock", "{", False)]),
    ("deepseek", f"{DEEPSEEK}function<｜tool▁sep｜>clock\n``x", None, []),
    ("deepseek", f"So.\n{BEGINNING}", None, []),
    ("deepseek", f"So.\n{BEGINNING}{DEEPSEEK}some words\n", None, []),
    ("deepseek bare", f"{DEEPSEEK}clock<｜tool▁sep｜>{{}}\n{DEEPSEEK}cl", f"\n{DEEPSEEK}cl",
     [("clock", "{}", True)]),
    ("deepseek bare", f"{DEEPSEEK}clock<｜tool▁sep｜>", "", [("clock", "", False)]),
    ("deepseek bare", f"{DEEPSEEK}clock<｜tool▁sep｜>no", None, []),
    ("functionary-v3.1", "<function=clock>", "", [("clock", "", False)]),
    ("pythonic", f"{BEGIN}[clock(), f(a=1, b='x\\'y', c='z", "",
     [("clock", "{}", True), ("f", '{"a": 1, "b": "x\'y"', False)]),
    ("pythonic", f"{BEGIN}[f(a=1, b=2", "", [("f", '{"a": 1', False)]),
    ("pythonic", f"{BEGIN}[f(a={{'b': [1, ", "", [("f", "", False)]),
    ("pythonic", f"{BEGIN}[f(a=1)]<|tool_ca", "", [("f", '{"a": 1}', True)]),
    ("pythonic", f"{BEGIN}[f(a=1), g", "", [("f", '{"a": 1}', True)]),
    ("pythonic", f"{BEGIN}[f", None, []),
    ("pythonic-list", "[clock(), get_weather(city='Paris', days=", "",
     [("clock", "{}", True), ("get_weather", '{"city": "Paris"', False)]),
    ("pythonic", f"{BEGIN}[f(a=1, b='''c", "", [("f", '{"a": 1', False)]),
    ("pythonic-list", "[clock(), other(", None, []),
    ("pythonic-list", "[clock(), clo", "", [("clock", "{}", True)]),
    ("pythonic-list", "[clock(), and then", None, []),
    ("pythonic-list", "[clock()] 'tells", None, []),
    ("llama3", 'Well.<|python_tag|>{"name": "Bob"}', None, []),
    ("llama3", "<|python_tag|>print(1)", "print(1)", []),
    ("kimi", KIMI, "", [("clock", "{}", True)]),
    ("kimi", NO_NAME, None, []),
    ("glm", f"{GLM}<arg_key>more</arg_key>1</tool_call>", "1</tool_call>",
     [("write", '{"name": "x"', False)]),
    ("glm", f"{GLM}and more", "and more", [("write", '{"name": "x"', False)]),
    # The mark before all calls is left out.
    ("qwen3-coder", f"So.\n{CODER}", "So.", [("get_weather", PARIS, True)]),
    ("qwen3-coder", f"{CODER}\n<tool_call>\n<function=clock></function></tool_call>", "",
     [("get_weather", PARIS, True), ("clock", "{}", True)]),
    ("qwen3-coder", "As <function=x> tells", None, []),
    ("qwen3-coder", "<function=clock", None, []),
    # Line ends of a string, where the form has none, or one on either side.
    ("seed-oss", "<seed:tool_call><function=write><parameter=text>a\n</parameter><parameter=name>\nb\n"
     "</parameter><parameter=kind>\n</parameter></function></seed:tool_call>", "",
     [("write", '{"text": "a\\n", "name": "b", "kind": "\\n"}', True)]),
    ("gigachat", f'So.<|function_call|>{{"name": "get_weather", "arguments": {PARIS}}}', "So.",
     [("get_weather", PARIS, True)]),
    ("gigachat3", f'So.{GIGACHAT}{{"name": "get_weather", "arguments": {PARIS}}}', "So.",
     [("get_weather", PARIS, True)]),
    ("gemma4", "<|channel><|channel>thought\n<channel|>So.<channel|>", "So.", []),
    ("gemma4", "<|tool_call>nothing<tool_call|>", None, []),
    ("gemma4", "<|tool_call>call:x{a:1} more<tool_call|>", None, []),
    ("gemma4", '<|tool_call>call:x{a:<|"|>b}<tool_call|>', None, []),
    ("gemma4", '<|tool_call>call:x{a:<|"|>b<|"|>c:1}<tool_call|>', None, []),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize(
    ("name", "call", "end"),
    [
        ("qwen3-coder", "<tool_call>\n<function=clock>\n</function>\n", "</tool_call>"),
        ("dsml", "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"clock\">\n</｜DSML｜invoke>\n",
         "</｜DSML｜function_calls>"),
        ("functionary-v3.1", "<function=clock>{}", "</function>"),
        ("deepseek", f"{DEEPSEEK}function<｜tool▁sep｜>clock\n```json\n{{}}\n", "```"),
        ("deepseek bare", f"{DEEPSEEK}clock<｜tool▁sep｜>{{}}", "<｜tool▁call▁end｜>"),
        ("deepseek bare", f"{BEGINNING}{DEEPSEEK}clock<｜tool▁sep｜>{{}}<｜tool▁call▁end｜>",
         "<｜tool▁calls▁end｜>"),
    ],
)  # fmt: skip
def test_an_end_mark_that_is_cut_off_is_no_content(
    name: str, call: str, end: str, size: int
) -> None:
    for n in range(len(end) + 1):
        made = read(templates.FAMILIES[name], call + end[:n], size)
        assert (made.content, calls(made)) == ("", [("clock", "{}", True)])
    made = read(templates.FAMILIES[name], f"{call}{end[:-1]}?", size)
    assert made.content == f"{end[:-1]}?"


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_calls_and_content(case: tuple[str, str, str | None, list[Any]], size: int) -> None:
    name, text, content, wanted = case
    made = read(templates.FAMILIES[name], text, size)
    assert made.content == (text if content is None else content)
    assert calls(made) == wanted


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("qwen3-coder", f"<tool_call>\n{CODER}"),
        ("kimi", KIMI),
        ("kimi", f"<|tool_calls_section_begin|>{KIMI}<|tool_calls_section_end|>"),
        ("dsml", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n'),
        ("dsml-v4", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n'),
    ],
)  # fmt: skip
def test_a_call_ends_reasoning_that_goes_on(name: str, call: str, size: int) -> None:
    made = read(templates.FAMILIES[name], f"I <b> look.\n{call}", size, THINK, opened=True)
    assert (made.reasoning_content, made.content) == ("I <b> look.", "")
    assert [each.complete for each in made.tool_calls] == [True]


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_recipient_that_is_no_tool_is_not_called(size: int) -> None:
    code = "<|channel|>commentary to=python <|constrain|>code<|message|>print(1)<|call|>"
    made = read(templates.HARMONY, f"{code}<|start|>assistant{code}", size)
    assert made == Message("", "print(1)print(1)")
    text = "<|channel|>commentary to=assistant<|channel|>final<|message|>Hello."
    assert read(templates.HARMONY, text, size) == Message("Hello.")
    text = "<|channel|>commentary to=clock<|message|>{}<|call|>"
    assert calls(read(templates.HARMONY, text, size)) == [("clock", "{}", True)]


def test_a_schema_that_refers_to_itself_says_nothing() -> None:
    circle = {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#/properties/a"}}}
    assert properties(circle) == {"a": None, "b": None}
    far = {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "string"}}}
    assert properties(far) == {"a": {"type": "string"}}


def test_parameters_that_are_no_object_force_no_arguments() -> None:
    assert forced(Function("clock", True), "gemma4", lambda key, value: [key, value]) == []


def test_a_comma_stands_between_arguments_that_may_all_be_left_out() -> None:
    optional: list[Any] = [(False, ["a"]), (False, ["b"]), (False, ["c"])]
    last = Maybe((", ", "c"))
    assert with_commas(optional) == [Maybe(("a", Maybe((", ", "b", last))))]
    assert with_commas([*optional[:1], (True, ["d"])]) == ["d", Maybe((", ", "a"))]
