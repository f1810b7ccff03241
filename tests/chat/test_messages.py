from __future__ import annotations

from typing import Any

import pytest

from aleator import Message, ParameterError, ToolCall
from aleator.chat.message import checked_messages, checked_tools, chosen_tools
from tests.chat.templates import CLOCK, WEATHER

HI = {"role": "user", "content": "Hi"}


def call(**changes: Any) -> dict[str, Any]:
    return {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}} | changes


WRONG: list[tuple[Any, str]] = [
    ("Hi", r"messages='Hi': give a list"),
    ([], "messages is empty"),
    ([HI, 3], r"messages\[1\]=3: give a mapping"),
    ([{"content": "a"}], r"messages\[0\].role=None: give one of system, developer, user, assistant, tool"),
    ([HI, {"role": "bot", "content": "a"}], r"messages\[1\].role='bot'"),
    ([{"role": "user"}], r"messages\[0\].content=None: give a text"),
    ([{"role": "user", "content": 3}], r"messages\[0\].content=3"),
    ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\].content\[0\].text=None"),
    (
        [HI, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}],
        r"messages\[1\].content\[1\].type='image_url': pictures are not supported",
    ),
    ([{"role": "user", "content": [{"type": "file"}]}], "files are not supported"),
    ([HI | {"tool_calls": [call()]}], r"messages\[0\].tool_calls=.*has role, content, name"),
    ([{"role": "assistant", "tool_calls": "a"}], r"messages\[0\].tool_calls='a'"),
    ([{"role": "assistant", "tool_calls": [{}]}], r"messages\[0\].tool_calls\[0\]={}"),
    ([{"role": "assistant", "tool_calls": [call(id=3)]}], r"tool_calls\[0\].id=3"),
    (
        [{"role": "assistant", "tool_calls": [call(function={"name": "", "arguments": "{}"})]}],
        r"function.name=''",
    ),
    (
        [{"role": "assistant", "tool_calls": [call(function={"name": "f", "arguments": "{"})]}],
        r"function.arguments='{': not JSON",
    ),
    (
        [{"role": "assistant", "tool_calls": [call(function={"name": "f", "arguments": "[]"})]}],
        r"function.arguments=\[\]: give an object",
    ),
    ([HI, {"role": "tool", "content": "1", "tool_call_id": "z"}], r"messages\[1\].tool_call_id='z'"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "match"), WRONG, ids=range(len(WRONG)))
def test_what_is_malformed_is_named(messages: Any, match: str) -> None:
    with pytest.raises(ParameterError, match=match) as caught:
        checked_messages(messages)
    assert caught.value.parameter == "messages"


def test_what_is_nested_deeply_is_named() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    arguments = {"name": "f", "arguments": "[" * 100_000}
    for messages, match in (
        ([{"role": "user", "content": {"a": deep}}], r"messages\[0\].content="),
        ({"a": deep}, "messages={'a': "),
        (
            [{"role": "assistant", "tool_calls": [call(function=arguments)]}],
            "arguments='.*: not JSON: ",
        ),
    ):
        with pytest.raises(ParameterError, match=match) as caught:
            checked_messages(messages)
        assert len(str(caught.value)) < 300


def test_messages_in_the_form_of_templates() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    answer = Message("", "hm", (ToolCall("a", "f", '{"x": 1}'),))
    nothing: dict[str, Any] = {"refusal": None, "tool_calls": []}
    made = checked_messages(
        [
            {"role": "user", "content": parts},
            answer,
            {"role": "tool", "content": "1", "tool_call_id": "a"},
            {"role": "assistant", "content": "b", **nothing},
        ]
    )
    assert [m["content"] for m in made] == ["a\nb", "", "1", "b"]
    assert made[1]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    ]
    assert made[1]["reasoning_content"] == "hm"
    assert made[3].keys() == {"role", "content"}


def test_calls_that_were_cut_off_are_not_sent_back() -> None:
    whole, cut = ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "f", '{"x": ', complete=False)
    assert Message("", "", (whole, cut)).as_json() == Message("", "", (whole,)).as_json()
    assert Message("", "", (cut,)).as_json() == {"role": "assistant", "content": ""}
    made = checked_messages([HI, Message("", "", (cut,)), HI])
    assert made[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("tools", "match"),
    [
        ("a", "tools='a'"),
        ([{}], r"tools\[0\]={}"),
        ([CLOCK | {"type": "retrieval"}], r"tools\[0\].type='retrieval'"),
        ([{"function": {"name": "a b"}}], r"tools\[0\].function.name='a b'"),
        ([CLOCK, CLOCK], r"tools\[1\].function.name='clock': another"),
        ([{"function": {"name": "a", "description": 3}}], r"function.description=3"),
        ([{"function": {"name": "a", "parameters": {"type": "string"}}}], r"function.parameters="),
        ([{"function": {"name": "a", "strict": "yes"}}], r"function.strict='yes'"),
    ],
)
def test_tools_that_are_malformed(tools: Any, match: str) -> None:
    with pytest.raises(ParameterError, match=match) as caught:
        checked_tools(tools)
    assert caught.value.parameter == "tools"


def test_choices() -> None:
    tools = checked_tools([WEATHER, CLOCK])
    weather, clock = (function for _, function in tools)
    assert chosen_tools(None, tools) == chosen_tools("auto", tools) == (tools, [])
    assert chosen_tools("none", tools) == ([], [])
    assert chosen_tools("required", tools) == (tools, [weather, clock])
    named = {"type": "function", "function": {"name": "clock"}}
    assert chosen_tools("clock", tools) == chosen_tools(named, tools) == (tools, [clock])
    assert chosen_tools(None, []) == ([], [])
    for choice in ("any", 3, {"type": "function"}, {"function": {"name": "no"}}):
        with pytest.raises(ParameterError, match="give one of 'auto', 'none', 'required', 'get_w"):
            chosen_tools(choice, tools)
    with pytest.raises(ParameterError, match="no tools are given"):
        chosen_tools("required", [])


def _allowed(mode: Any, *names: Any) -> dict[str, Any]:
    listed = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": listed}}


def test_allowed_tools() -> None:
    """The model sees the listed tools alone, and must call one of them where the mode says so."""
    tools = checked_tools([WEATHER, CLOCK])
    _, clock = tools[1]
    assert chosen_tools(_allowed("auto", "clock"), tools) == (tools[1:], [])
    assert chosen_tools(_allowed("required", "clock"), tools) == (tools[1:], [clock])
    both = _allowed("required", "clock", "get_weather")
    assert chosen_tools(both, tools) == chosen_tools("required", tools)
    within = "tool_choice.allowed_tools"
    wrong: list[tuple[Any, str]] = [
        ({"type": "allowed_tools"}, f"{within}=None: give"),
        (_allowed("none", "clock"), f"{within}.mode='none': give 'auto' or 'required'"),
        (_allowed("auto"), rf"{within}.tools=\[\]: give a list of tools"),
        (
            _allowed("auto", "clock", "sun"),
            r"tools\[1\].function.name='sun': .* get_weather, clock",
        ),
        (_allowed("auto", ["clock"]), r"tools\[0\].function.name=\['clock'\]"),
    ]
    for choice, match in wrong:
        with pytest.raises(ParameterError, match=match) as caught:
            chosen_tools(choice, tools)
        assert caught.value.parameter == "tool_choice"


def test_strict_arguments_need_a_forced_call() -> None:
    strict = checked_tools([CLOCK, {"function": {"name": "f", "strict": True}}])
    assert chosen_tools(_allowed("auto", "clock"), strict) == (strict[:1], [])
    with pytest.raises(ParameterError, match=r"tools\[1\].function.strict=True"):
        chosen_tools("auto", strict)
    assert chosen_tools("required", strict)[1]
    assert chosen_tools("none", strict) == ([], [])
