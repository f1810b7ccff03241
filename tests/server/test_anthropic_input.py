"""Requests of Messages as chats."""

from __future__ import annotations

from typing import Any

import pytest

from aleator.core.errors import ParameterError
from aleator.server.chat import ChatRequest
from aleator.server.dialects.anthropic_input import COUNTED, FIELDS, messages_of, request_of
from aleator.server.dialects.nested import Nested

HI = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "weather", "input_schema": {"type": "object"}}


def body(**fields: Any) -> Nested:
    return Nested("", fields, "an object")


def asked(**body: Any) -> ChatRequest:
    return request_of(FIELDS.read({"model": "m", "messages": HI, "max_tokens": 9, **body}))


def test_a_message() -> None:
    made = asked(system="Be brief.", stop_sequences=["END"], temperature=0.5, top_k=3, seed=1)
    assert made.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert made.options == {
        "max_tokens": 9,
        "stop": ["END"],
        "temperature": 0.5,
        "top_k": 3,
        "seed": 1,
    }
    assert (made.tools, made.tool_choice, made.parallel_tool_calls) == ([], None, True)
    assert (made.enable_thinking, made.template_arguments) == (None, None)


def test_blocks_and_turns_become_messages() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    system = [{"type": "text", "text": "a", **cached}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "user", "content": "c"},
        {"role": "user", "content": [{"type": "text", "text": "d", "citations": None}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "e", "signature": ""},
                {"type": "text", "text": "f"},
                {
                    "type": "tool_use",
                    "id": "t1",
                    "name": "weather",
                    "input": {"city": "Verona"},
                    **cached,
                },
                {"type": "tool_use", "id": "t2", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "g"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}],
                },
                {"type": "text", "text": "j", **cached},
            ],
        },
    ]
    calls = [
        {"id": id, "type": "function", "function": {"name": "weather", "arguments": arguments}}
        for id, arguments in (("t1", {"city": "Verona"}), ("t2", {}))
    ]

    def parts(*texts: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": text} for text in texts]

    assert messages_of(body(messages=messages, system=system)) == [
        {"role": "system", "content": parts("a", "b")},
        {"role": "user", "content": parts("c", "d")},
        {"role": "assistant", "reasoning_content": "e", "content": "f", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "t1", "content": "g"},
        {"role": "tool", "tool_call_id": "t2", "content": parts("Error: h", "i")},
        {"role": "user", "content": "j"},
    ]


def test_a_result_without_content() -> None:
    messages = [
        *HI,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "is_error": True}],
        },
    ]
    assert messages_of(body(messages=messages))[-1] == {
        "role": "tool",
        "tool_call_id": "t",
        "content": "Error: ",
    }


def test_tools_and_the_choice_of_one() -> None:
    made = asked(
        tools=[{**TOOL, "description": "d", "cache_control": None}],
        tool_choice={"type": "tool", "name": "weather"},
    )
    function = {"name": "weather", "description": "d", "parameters": {"type": "object"}}
    assert made.tools == [{"type": "function", "function": function}]
    assert (made.tool_choice, made.parallel_tool_calls) == ("weather", True)
    made = asked(tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert (made.tool_choice, made.parallel_tool_calls) == ("required", False)
    assert asked(tool_choice={"type": "auto"}).tool_choice == "auto"
    assert asked(tool_choice={"type": "none"}).tool_choice == "none"


def test_thinking() -> None:
    made = asked(thinking={"type": "enabled", "budget_tokens": 5})
    assert (made.enable_thinking, made.options["reasoning_budget"]) == (True, 5)
    made = asked(thinking={"type": "disabled"})
    assert made.enable_thinking is False
    assert "reasoning_budget" not in made.options
    assert asked(thinking={"type": "adaptive"}).enable_thinking is None


def test_output() -> None:
    format = {"type": "json_schema", "schema": {"type": "object"}}
    made = asked(output_config={"effort": "low", "format": format})
    assert made.options["json_schema"] == {"type": "object"}
    assert made.template_arguments == {"reasoning_effort": "low"}
    assert asked(output_format=format).options["json_schema"] == {"type": "object"}


def test_counting_needs_no_max_tokens() -> None:
    made = request_of(COUNTED.read({"model": "m", "messages": HI, "tools": [TOOL]}))
    assert made.options == {}
    assert len(made.tools) == 1


def test_labels_are_accepted() -> None:
    made = asked(
        metadata={"user_id": "u"},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
        mcp_servers=[],
        container=None,
    )
    assert made.options == {"max_tokens": 9}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


@pytest.mark.parametrize(
    ("body", "name", "said"),
    [
        ({"max_tokens": None}, "max_tokens", "missing"),
        ({"container": "c"}, "container", "no tools of its own"),
        ({"context_management": {}}, "context_management", "send the messages"),
        ({"stop_sequences": "END"}, "stop_sequences", "give a list of texts"),
        ({"system": 3}, "system", "give a text, or a list"),
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "give 'user'"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "at least one block"),
        ({"messages": [*HI, {"role": "assistant", "content": "x"}]}, "messages", "going on with a text"),
        (user({"type": "image", "source": {}}), "messages[0].content[0].type", "pictures are not"),
        (user({"type": "document", "source": {}}), "messages[0].content[0].type", "files are not"),
        (user({"type": "tool_use", "id": "x"}), "messages[0].content[0].type", "give 'text'"),
        (
            user({"type": "tool_result", "tool_use_id": "x"}),
            "messages[0].content[0].tool_use_id",
            "no call before it",
        ),
        ({"tools": [{**TOOL, "type": "web_search_20250305"}]}, "tools[0].type", "only tools of your own"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema", "give a JSON schema"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading", "sees all tools"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "give a text"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "give a whole number"),
        ({"thinking": {"type": "disabled", "display": "omitted"}}, "thinking.display", "as it is"),
        ({"output_config": {"format": {"type": "json"}}}, "output_config.format.type", "json_schema"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema", "give a JSON schema"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(
    body: dict[str, Any], name: str, said: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        asked(**body)
    assert caught.value.parameter == name
    assert said in str(caught.value)


def test_lenient() -> None:
    given = {"model": "m", "messages": [{**HI[0], "typo": 1}], "max_tokens": 3, "typo": 1}
    assert request_of(FIELDS.read(given, True)).messages == HI
