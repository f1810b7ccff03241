"""``/v1/chat/completions``: the answers of ``chat``, in OpenAI's form."""

from __future__ import annotations

import json
from typing import Any

import pytest

import aleator
from tests.server.conftest import REASONING, TEMPLATE, Client, MakeClient

PATH = "/v1/chat/completions"
HI: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Good morrow."}],
    "max_tokens": 30,
    "seed": 3,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Verona", "Mantua"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}


def test_answers_and_logprobs_are_those_of_chat(
    client: Client, model: aleator.LanguageModel
) -> None:
    alone = model.chat(**HI, chat_template=TEMPLATE, logprobs=2, temperature=1.3)
    made = client.made(PATH, **HI, logprobs=True, top_logprobs=2, temperature=1.3)
    (choice,) = made["choices"]
    assert choice["message"]["content"] == alone.text
    assert choice["message"]["role"] == "assistant"
    told = alone.generation.logprobs or []
    content = choice["logprobs"]["content"]
    assert [each["logprob"] for each in content] == [each.chosen.logprob for each in told]
    assert [bytes(each["bytes"]) for each in content] == [each.chosen.bytes for each in told]
    assert [[t["logprob"] for t in each["top_logprobs"]] for each in content] == [
        [t.logprob for t in each.top] for each in told
    ]
    assert made["usage"]["prompt_tokens"] == len(alone.generation.request.tokens)
    assert made["usage"]["completion_tokens"] == len(alone.tokens)
    assert made["object"] == "chat.completion"
    assert made["system_fingerprint"] == client.service.fingerprint
    assert (choice["finish_reason"], made["seed"]) == (alone.stop_reason, 3)


def test_n_are_distinct_and_an_unseeded_request_reports_its_seed(client: Client) -> None:
    body = {name: value for name, value in HI.items() if name != "seed"}
    made = client.made(PATH, **body, n=3)
    texts = [each["message"]["content"] for each in made["choices"]]
    assert len(set(texts)) == 3
    again = client.made(PATH, **body, n=3, seed=made["seed"])
    assert again["choices"] == made["choices"]
    one = client.made(PATH, **body, seed=made["seed"])
    assert one["choices"] == made["choices"][:1]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"n": 2},
        {"logprobs": True, "top_logprobs": 1},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": PERSON, "strict": True}}},
        {"tools": [WEATHER], "tool_choice": "required", "logprobs": True, "max_tokens": 80},
        {"timings_per_token": True},
    ],
    ids=["plain", "n", "logprobs", "json", "tools", "timings"],
)  # fmt: skip
def test_streams_say_what_responses_say(client: Client, more: dict[str, Any]) -> None:
    body = {**HI, **more}
    made = client.made(PATH, **body)
    events = client.stream(PATH, **body, stream_options={"include_usage": True})
    usage = events.pop()
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == made["usage"]["total_tokens"]
    assert {each["object"] for each in events} == {"chat.completion.chunk"}
    assert [each for each in (usage, *events) if "timings" in each] == (
        [usage, *events[1:]] if "timings_per_token" in more else []
    )
    if "timings_per_token" in more:
        for each in (made, usage):
            assert each["timings"]["predicted_n"] == each["usage"]["completion_tokens"]
        counts = [each["timings"]["predicted_n"] for each in events[1:]]
        assert counts == sorted(counts)
        assert usage["timings"]["predicted_ms"] > 0
    for choice in made["choices"]:
        mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == choice["index"]]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        assert all(each["finish_reason"] is None for each in mine[:-1])
        deltas = [each["delta"] for each in mine]
        assert deltas[0]["role"] == "assistant"
        text = "".join(each.get("content") or "" for each in deltas)
        assert text == (choice["message"]["content"] or "")
        calls: list[dict[str, Any]] = []
        for delta in deltas:
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    calls.append(call)
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        for call in calls:
            del call["index"]
        assert calls == choice["message"].get("tool_calls", [])
        if choice["logprobs"] is not None:
            told = [x for each in mine for x in (each["logprobs"] or {"content": []})["content"]]
            assert told == choice["logprobs"]["content"]


def test_json(client: Client) -> None:
    formats = [
        {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
        {"type": "json_object", "schema": PERSON},
        {"type": "json_object"},
    ]
    for wanted in formats:
        (choice,) = client.made(PATH, **HI, response_format=wanted)["choices"]
        value = json.loads(choice["message"]["content"])
        assert isinstance(value, dict)
        if wanted != formats[-1]:
            assert 0 <= value["age"] <= 99
        assert choice["finish_reason"] in ("stop", "length")


def test_forced_calls_go_back_and_forth(client: Client) -> None:
    body = {**HI, "max_tokens": 80, "tools": [WEATHER]}
    choices = ("required", {"type": "function", "function": {"name": "get_weather"}})
    for choice in choices:
        (made,) = client.made(PATH, **body, tool_choice=choice)["choices"]
        assert made["finish_reason"] == "tool_calls"
        assert made["message"]["content"] is None
        (call,) = made["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"])["city"] in ("Verona", "Mantua")
    result = {"role": "tool", "tool_call_id": call["id"], "content": "It rains."}
    said = {name: value for name, value in made["message"].items() if value is not None}
    after = client.made(PATH, **{**body, "messages": [*HI["messages"], said, result]})
    assert after["choices"][0]["message"]["content"]
    none = client.made(PATH, **body, tool_choice="none")["choices"][0]
    assert "tool_calls" not in none["message"]


def test_allowed_tools(client: Client) -> None:
    """Only the listed may be called, in both forms; a name that is not declared is refused as it was sent."""
    tools = [{"type": "function", "function": {"name": n}} for n in ("moon", "sun")]
    sun = {"mode": "required", "tools": tools[1:]}
    choice: Any = {"type": "allowed_tools", "allowed_tools": sun}
    body: Any = {**HI, "max_tokens": 80, "tools": tools}
    for seed in range(3):
        (made,) = client.made(PATH, **{**body, "seed": seed}, tool_choice=choice)["choices"]
        assert [x["function"]["name"] for x in made["message"]["tool_calls"]] == ["sun"]
    flat: Any = [{"type": "function", "name": n} for n in ("moon", "sun")]
    body = {"input": "Hi", "tools": flat, "max_output_tokens": 80}
    choice = {"type": "allowed_tools", "mode": "required", "tools": flat[1:]}
    (call,) = client.made("/v1/responses", **body, tool_choice=choice)["output"]
    assert (call["type"], call["name"]) == ("function_call", "sun")
    choice["tools"] = [{"type": "function", "name": "mars"}]
    refused = client.refused("/v1/responses", **body, tool_choice=choice)
    assert "tool_choice.tools[0].name='mars': declared are moon, sun" in refused["message"]


def test_a_forced_call_that_is_cut_within_its_name_is_no_content(client: Client) -> None:
    body: Any = {**HI, "max_tokens": 12, "tools": [WEATHER], "tool_choice": "required"}
    body["complete_grammar"] = False
    (made,) = client.made(PATH, **body)["choices"]
    assert (made["finish_reason"], made["message"]["content"]) == ("length", "")
    assert "tool_calls" not in made["message"]


def test_one_call_at_most(client: Client) -> None:
    """A reply that calls twice ends with its first call where calls must not be parallel."""
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Verona"}}</tool_call>'
    text = call + "\n" + call
    grammar = "root ::= " + json.dumps(text).replace("\\n", "\\n")
    body = {**HI, "max_tokens": 200, "tools": [WEATHER], "grammar": grammar}
    both = client.made(PATH, **body)
    assert len(both["choices"][0]["message"]["tool_calls"]) == 2
    one = client.made(PATH, **body, parallel_tool_calls=False)
    (choice,) = one["choices"]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["finish_reason"] == "tool_calls"
    assert one["usage"]["completion_tokens"] < both["usage"]["completion_tokens"]
    again = client.made(PATH, **body, parallel_tool_calls=False, logprobs=True)
    assert again["usage"] | {"prompt_tokens_details": 0} == one["usage"] | {
        "prompt_tokens_details": 0
    }
    assert len(again["choices"][0]["logprobs"]["content"]) == one["usage"]["completion_tokens"]
    events = client.stream(PATH, **body, parallel_tool_calls=False)
    starts = [e for e in events if "id" in (e["choices"][0]["delta"].get("tool_calls") or [{}])[0]]
    assert len(starts) == 1
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_reasoning(make_client: MakeClient) -> None:
    client = make_client(chat_template=REASONING)
    body = {**HI, "max_tokens": 12, "seed": 1}
    quiet = client.made(PATH, **body, enable_thinking=False)["choices"][0]["message"]
    assert "reasoning_content" not in quiet
    assert quiet["content"]
    made = client.made(PATH, **body, chat_template_kwargs={"enable_thinking": True})
    message = made["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"] != "") == ("", True)
    assert made["usage"]["completion_tokens_details"]["reasoning_tokens"] == 12
    events = client.stream(PATH, **body, enable_thinking=True)
    told = "".join(each["choices"][0]["delta"].get("reasoning_content", "") for each in events)
    assert told == message["reasoning_content"]
    budget = client.made(PATH, **body, enable_thinking=True, thinking_token_budget=3)
    assert budget["choices"][0]["message"]["content"]
    assert 3 <= budget["usage"]["completion_tokens_details"]["reasoning_tokens"] < 12
    low = client.made(PATH, **body, reasoning_effort="low")["usage"]["prompt_tokens"]
    assert low > client.made(PATH, **body)["usage"]["prompt_tokens"]


def test_text_of_users_never_becomes_control_tokens(
    client: Client, model: aleator.LanguageModel
) -> None:
    end = model.vocab.tokens[model.vocab.eos or 0]
    messages = [{"role": "user", "content": f"a{end}b"}]
    made = client.made(PATH, **{**HI, "messages": messages})
    assert made["usage"]["prompt_tokens"] == len(
        model.chat(messages, chat_template=TEMPLATE, max_tokens=1).generation.request.tokens
    )
    parsed = model.prompt_tokens(f"user:\na{end}b\n\nJULIET:\n", parse_special=True)
    assert made["usage"]["prompt_tokens"] > len(parsed)


def test_errors_of_templates(make_client: MakeClient) -> None:
    refusing = make_client(chat_template="{{ raise_exception('no') }}")
    assert refusing.refused(PATH, **HI)["param"] == "messages"
    with pytest.raises(aleator.TemplateError):
        make_client(chat_template="{% if %}")


def test_a_format_of_plain_text_asks_for_nothing(client: Client) -> None:
    plain = client.made(PATH, **HI)
    made = client.made(PATH, **HI, response_format={"type": "text"})
    assert made["choices"] == plain["choices"]
    error = client.refused(PATH, **HI, response_format={"type": "text", "schema": {}})
    assert error["param"] == "response_format"


def test_nothing_is_obfuscated(client: Client) -> None:
    error = client.refused(PATH, **HI, stream=True, stream_options={"include_obfuscation": True})
    assert "nothing is obfuscated" in error["message"]
    client.stream(PATH, **HI, stream_options={"include_obfuscation": False})


def test_reasoning_is_streamed_with_its_log_probabilities(make_client: MakeClient) -> None:
    client = make_client(chat_template=REASONING)
    more = {"enable_thinking": True, "thinking_token_budget": 3, "logprobs": True}
    made = client.made(PATH, **HI | more)["choices"][0]
    deltas = [each["choices"][0] for each in client.stream(PATH, **HI | more)]
    for name in ("reasoning_content", "content"):
        said = "".join(each["delta"].get(name) or "" for each in deltas)
        assert said == (made["message"].get(name) or "")
    assert made["message"]["reasoning_content"]
    told = [e for each in deltas for e in (each.get("logprobs") or {"content": []})["content"]]
    assert told == made["logprobs"]["content"]
