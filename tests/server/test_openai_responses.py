"""``/v1/responses`` through the application."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aleator.engine.replay import KEY
from tests.server.conftest import Client, MakeClient
from tests.server.speaking import TEMPLATE, WEATHER, events_of

BAD = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "nothing"}}}
TOOL = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}


@pytest.fixture(scope="module")
def asks(make_client: MakeClient) -> Client:
    return make_client(chat_template=TEMPLATE)


def made(asks: Client, **body: Any) -> dict[str, Any]:
    return asks.made("/v1/responses", input="Who goes there?", seed=1, **body)


def test_a_stream_ends_with_what_is_given_at_once(asks: Client) -> None:
    body: dict[str, Any] = {"max_output_tokens": 12, "include": ["message.output_text.logprobs"]}
    whole = made(asks, **body)
    response = asks.post("/v1/responses", input="Who goes there?", seed=1, stream=True, **body)
    events = events_of(response)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]["response"]
    assert events[-1]["type"] == f"response.{whole['status']}" == "response.incomplete"
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == whole["output"][0]["content"][0]["text"] != ""
    assert last["seed"] == whole["seed"] == int(response.headers["x-aleator-seed"]) == 1
    assert whole["usage"]["output_tokens"] == 12
    assert len(whole["output"][0]["content"][0]["logprobs"]) == 12


def test_tokens_are_counted(asks: Client) -> None:
    told = asks.made("/v1/responses/input_tokens", input="Who goes there?")
    used = made(asks, max_output_tokens=1)["usage"]["input_tokens"]
    assert told == {"object": "response.input_tokens", "input_tokens": used}


def test_the_text_is_that_of_a_chat(asks: Client) -> None:
    text = made(asks, max_output_tokens=12)["output"][0]["content"][0]["text"]
    messages = [{"role": "user", "content": "Who goes there?"}]
    chat = asks.made("/v1/chat/completions", messages=messages, seed=1, max_tokens=12)
    assert chat["choices"][0]["message"]["content"] == text


def test_a_forced_call_and_its_result(asks: Client) -> None:
    off = {"enable_thinking": False}
    body: dict[str, Any] = {"tools": [TOOL], "max_output_tokens": 80, "chat_template_kwargs": off}
    first = made(asks, tool_choice="required", **body)
    (call,) = first["output"]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "weather", "completed")
    assert json.loads(call["arguments"])["city"] in ("Verona", "Mantua")
    items = [
        {"role": "user", "content": "Who goes there?"},
        call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "It rains."},
    ]
    second = asks.made("/v1/responses", input=items, max_output_tokens=4, seed=1)
    assert second["output"][0]["type"] == "message"
    assert second["usage"]["input_tokens"] > 20


def test_reasoning_is_an_item_and_can_be_given_back(asks: Client) -> None:
    on = {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_budget": 4}
    first = made(asks, max_output_tokens=16, **on)
    reasoning, message = first["output"]
    assert reasoning["content"][0]["text"] != ""
    assert first["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    items = [{"role": "user", "content": "?"}, reasoning, message, {"role": "user", "content": "!"}]
    assert asks.made("/v1/responses", input=items, max_output_tokens=4)["object"] == "response"


def test_a_schema_forces_the_text(asks: Client) -> None:
    form = {"type": "json_schema", "name": "place", "schema": WEATHER, "strict": True}
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    whole = made(asks, text={"format": form}, max_output_tokens=40, **off)
    assert json.loads(whole["output"][0]["content"][0]["text"])["city"] in ("Verona", "Mantua")
    assert whole["status"] == "completed"
    assert whole["text"]["format"]["name"] == "place"


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"max_output_tokens": -4}, "max_output_tokens", "max_output_tokens=-4 is out of range"),
        ({"tools": [TOOL]}, "tools", "tools[0].strict=True"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools", "tools[0].name='a b'"),
        ({"tool_choice": "required"}, "tool_choice", "no tools are given"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort", "does not read it"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "not stored"),
        ({"temperature": "hot"}, "temperature", "not a number"),
        ({"text": BAD, "max_output_tokens": 4}, "text.format", "text.format.schema"),
        ({"text": BAD, "guided_json": {}}, "guided_json", "there is no field"),
        ({"input_items": 1}, "input_items", "there is no field"),
    ],
)
def test_errors_name_fields_as_the_client_does(
    asks: Client, body: dict[str, Any], param: str, said: str
) -> None:
    error = asks.refused("/v1/responses", **{"input": "Hi", **body})
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert said in error["message"]


def test_nothing_is_stored(asks: Client) -> None:
    whole = made(asks, max_output_tokens=1, store=True)
    assert whole["store"] is False
    response = asks.get(f"/v1/responses/{whole['id']}")
    assert response.status_code == 404
    assert "not stored" in response.json()["error"]["message"]


def test_another_model(asks: Client) -> None:
    assert asks.refused("/v1/responses", 404, model="gpt-9", input="Hi")["param"] == "model"


def test_records_make_the_text_again(asks: Client) -> None:
    body: dict[str, Any] = {"max_output_tokens": 12, "aleator_replay": True}
    whole = made(asks, **body)
    given = {"input": "Who goes there?", "seed": 1, "stream": True, **body}
    last = events_of(asks.post("/v1/responses", **given))[-1]
    (record,) = whole[KEY]
    assert last["response"][KEY] == [record]
    messages = [{"role": "user", "content": "Who goes there?"}]
    chat: dict[str, Any] = {"messages": messages, "seed": 1, "max_tokens": 12}
    assert asks.made("/v1/chat/completions", aleator_replay=True, **chat)[KEY] == [record]
    assert KEY not in made(asks, max_output_tokens=1)


def test_a_salt_keeps_prompts_apart(asks: Client) -> None:
    def cached(salt: str) -> int:
        used = made(asks, instructions="Salted.", max_output_tokens=1, cache_salt=salt)["usage"]
        return int(used["input_tokens_details"]["cached_tokens"])

    cached("a")
    assert cached("a") > 4
    assert cached("b") <= 1
