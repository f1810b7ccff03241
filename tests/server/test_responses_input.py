"""Requests of Responses as chats."""

from __future__ import annotations

from typing import Any

import pytest

from aleator.core.errors import ParameterError
from aleator.server.chat import ChatRequest
from aleator.server.dialects.nested import Nested
from aleator.server.dialects.responses_input import FIELDS, messages_of, repeated, request_of


def asked(**body: Any) -> ChatRequest:
    return request_of(FIELDS.read({"input": "Hi", **body}))


def body(**fields: Any) -> Nested:
    return Nested("", fields, "an object")


TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


def test_a_text_is_a_message_of_the_user() -> None:
    made = asked(instructions="Be brief.", max_output_tokens=7, temperature=0.5, top_k=3, seed=1)
    assert made.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert made.options == {"max_tokens": 7, "temperature": 0.5, "top_k": 3, "seed": 1}
    assert made.tools == []
    assert made.tool_choice is None
    assert made.parallel_tool_calls is True


def test_what_the_assistant_said_in_a_row_is_one_message() -> None:
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "d"}],
            "encrypted_content": None,
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "e", "annotations": [], "logprobs": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c1",
            "name": "weather",
            "arguments": '{"city": "Verona"}',
            "status": "completed",
        },
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "f"}],
        },
        {"type": "function_call_output", "call_id": "c1", "output": "g"},
        {"type": "message", "role": "assistant", "content": "h"},
    ]
    calls = [
        {"id": id, "type": "function", "function": {"name": "weather", "arguments": arguments}}
        for id, arguments in (("c1", {"city": "Verona"}), ("c2", {}))
    ]
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    assert messages_of(body(input=items)) == [
        {"role": "developer", "content": "a"},
        {"role": "user", "content": parts},
        {"role": "assistant", "reasoning_content": "d", "content": "e", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c2", "content": "f"},
        {"role": "tool", "tool_call_id": "c1", "content": "g"},
        {"role": "assistant", "content": "h"},
    ]


def test_reasoning_without_content_is_its_summary() -> None:
    summary = [{"type": "summary_text", "text": "s"}]
    items = [{"type": "reasoning", "summary": summary}, {"role": "user", "content": "x"}]
    assert messages_of(body(input=items))[0] == {"role": "assistant", "reasoning_content": "s"}
    with pytest.raises(ParameterError, match=r"input\[0\]\.content is missing.*encrypted"):
        messages_of(
            body(input=[{"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}])
        )


def test_tools_and_the_choice_of_one() -> None:
    made = asked(
        tools=[{**TOOL, "description": "d"}],
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
    )
    function = {"name": "weather", "description": "d", "parameters": {"type": "object"}}
    assert made.tools == [{"type": "function", "function": function}]
    assert made.tool_choice == "weather"
    assert made.parallel_tool_calls is False
    assert asked(tools=[{**TOOL, "strict": True}]).tools[0]["function"]["strict"] is True
    assert asked(tool_choice="required").tool_choice == "required"
    listed = {"mode": "auto", "tools": [{"type": "function", "name": "weather"}]}
    named = [{"type": "function", "function": {"name": "weather"}}]
    chosen = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
    assert asked(tool_choice={"type": "allowed_tools", **listed}).tool_choice == chosen


def test_formats_of_the_text() -> None:
    schema = {"type": "object", "properties": {}}
    format = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    assert asked(text={"format": format, "verbosity": "medium"}).options["json_schema"] == schema
    assert asked(text={"format": {"type": "json_object"}}).options["json_schema"] == {
        "type": "object"
    }
    assert asked(text={"format": {"type": "text"}}).options == {}
    assert asked(text={}).options == {}


def test_reasoning_and_log_probabilities() -> None:
    made = asked(
        reasoning={"effort": "low", "summary": "auto"},
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        top_logprobs=2,
    )
    assert made.template_arguments == {"reasoning_effort": "low"}
    assert made.options == {"logprobs": 2}
    assert asked(include=["message.output_text.logprobs"]).options == {"logprobs": 0}
    assert asked().template_arguments is None


def test_labels_are_accepted() -> None:
    made = asked(
        store=True, user="u", metadata={"a": "b"}, service_tier="auto", safety_identifier="s",
        prompt_cache_key="k", prompt_cache_retention="24h", max_tool_calls=3, truncation="disabled",
        background=False, stream_options={"include_obfuscation": False}, previous_response_id=None,
    )  # fmt: skip
    assert made.options == {}


@pytest.mark.parametrize(
    ("body", "name", "said"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "responses are not stored here"),
        ({"conversation": "c"}, "conversation", "responses are not stored here"),
        ({"background": True}, "background", "while the request waits"),
        ({"truncation": "auto"}, "truncation", "shorten the input"),
        ({"prompt": {"id": "p"}}, "prompt", "send input"),
        ({"input": None}, "input", "missing"),
        ({"input": []}, "input", "give a text, or a list of items"),
        ({"input": ["a"]}, "input[0]", "give an object"),
        ({"input": [{"role": "user"}]}, "input[0].content", "is missing"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "not stored"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type", "give one of"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "give 'user'"),
        ({"input": [{"role": "user", "content": "x", "nmae": "y"}]}, "input[0].nmae", "unknown"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
            "pictures are not supported",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "input[0].content[0].type",
            "files are not supported",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]},
            "input[0].call_id",
            "no call before it",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "x", "name": "f", "arguments": "{"}]},
            "input[0].arguments",
            "not JSON",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "only tools of type 'function'"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type", "give 'function' or 'allowed_tools'"),
        (
            {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "mcp"}]}},
            "tool_choice.tools[0].type",
            "give 'function'",
        ),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "ask for it in a message"),
        ({"text": {"format": {"type": "json"}}}, "text.format.type", "give 'text'"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n"}}},
            "text.format.schema",
            "give a JSON schema",
        ),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "without a summary"),
        ({"include": ["everything"]}, "include[0]", "give one of"),
        ({"top_logprobs": 3}, "top_logprobs", "it needs include"),
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
    body = FIELDS.read(
        {"input": "x", "truncation": "auto", "typo": 1, "text": {"verbosity": "low", "typo": 1}},
        True,
    )
    assert request_of(body).messages == [{"role": "user", "content": "x"}]


def test_the_response_repeats_the_request() -> None:
    body = FIELDS.read(
        {
            "input": "x",
            "instructions": "i",
            "tools": [TOOL],
            "tool_choice": "auto",
            "metadata": {"k": "v"},
            "reasoning": {"effort": "low"},
            "max_output_tokens": 4,
        }
    )
    made = repeated(body)
    assert made["tools"] == [{**TOOL, "description": None}]
    told = made["instructions"], made["metadata"], made["max_output_tokens"]
    assert told == ("i", {"k": "v"}, 4)
    assert made["reasoning"] == {"effort": "low", "summary": None}
    assert made["text"]["format"] == {"type": "text"}


def test_what_the_assistant_refused_is_its_text() -> None:
    parts = [{"type": "output_text", "text": "No"}, {"type": "refusal", "refusal": ", I will not."}]
    said = {"type": "message", "role": "assistant", "content": parts}
    (made,) = messages_of(body(input=[said]))
    assert [each["text"] for each in made["content"]] == ["No", ", I will not."]
