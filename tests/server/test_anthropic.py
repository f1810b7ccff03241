"""``/v1/messages`` and ``/v1/messages/count_tokens`` through the application."""

from __future__ import annotations

from typing import Any

import pytest

from aleator.engine.replay import KEY
from tests.server.conftest import Client, MakeClient
from tests.server.speaking import TEMPLATE, WEATHER, events_of

HI = [{"role": "user", "content": "Who goes there?"}]
TOOL = {"name": "weather", "input_schema": WEATHER}
OFF = {"thinking": {"type": "disabled"}}


@pytest.fixture(scope="module")
def asks(make_client: MakeClient) -> Client:
    return make_client(chat_template=TEMPLATE, alias="claude")


def made(asks: Client, **body: Any) -> dict[str, Any]:
    whole = {"model": "claude", "messages": HI, "max_tokens": 12, "seed": 1, **body}
    return asks.made("/v1/messages", **whole)


def refused(asks: Client, path: str = "/v1/messages", status: int = 400, **body: Any) -> str:
    given = {"model": "claude", "messages": HI, **body}
    response = asks.post(path, **given)
    assert response.status_code == status, response.text
    answer = response.json()
    assert answer["type"] == "error"
    return f"{answer['error']['type']}: {answer['error']['message']}"


def collected(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that a client makes of the events of a stream without calls."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            kind = event["delta"]["type"].removesuffix("_delta")
            blocks[-1][kind] += event["delta"][kind]
    return blocks


def test_a_stream_says_what_is_given_at_once(asks: Client) -> None:
    body: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 4}, "max_tokens": 16}
    whole = made(asks, **body)
    given = {"model": "claude", "messages": HI, "seed": 1, "stream": True, **body}
    events = events_of(asks.post("/v1/messages", **given))
    assert [block["type"] for block in whole["content"]] == ["thinking", "text"]
    assert collected(events) == whole["content"]
    assert events[0]["type"] == "message_start"
    assert events[-1]["type"] == "message_stop"
    assert events[-2]["delta"]["stop_reason"] == whole["stop_reason"]
    assert events[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"] > 4
    used = events[0]["message"]["usage"]
    prompt = used["input_tokens"] + used["cache_read_input_tokens"]
    assert prompt == len_of(asks, thinking=body["thinking"])


def len_of(asks: Client, **body: Any) -> int:
    given = {"model": "claude", "messages": HI, **body}
    return int(asks.made("/v1/messages/count_tokens", **given)["input_tokens"])


def test_tokens_are_counted_as_a_message_counts_them(asks: Client) -> None:
    body: dict[str, Any] = {"system": "Be brief.", "tools": [TOOL]}
    used = made(asks, **body)["usage"]
    assert used["input_tokens"] + used["cache_read_input_tokens"] == len_of(asks, **body)
    assert len_of(asks, **body) > len_of(asks)


def test_the_text_is_that_of_a_chat(asks: Client) -> None:
    chat = asks.made("/v1/chat/completions", messages=HI, seed=1, max_tokens=12)
    whole = made(asks)
    assert whole["content"] == [{"type": "text", "text": chat["choices"][0]["message"]["content"]}]
    assert whole["stop_reason"] == "max_tokens"


def test_why_it_ended(asks: Client) -> None:
    text = made(asks)["content"][0]["text"]
    word = text.split()[1]
    stopped = made(asks, stop_sequences=["never", word])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", word)
    long = made(asks, max_tokens=300)
    assert (long["stop_reason"], long["stop_sequence"]) == ("end_turn", None)
    rest = asks.service.engine.n_ctx // 4 - len_of(asks, **OFF)
    full = made(asks, max_tokens=rest + 9, ignore_eos=True, stop_sequences=[], **OFF)
    assert full["stop_reason"] in ("max_tokens", "end_turn", "model_context_window_exceeded")


def test_a_forced_call_and_its_result(asks: Client) -> None:
    first = made(asks, tools=[TOOL], tool_choice={"type": "any"}, max_tokens=80, **OFF)
    assert first["stop_reason"] == "tool_use"
    (call,) = first["content"]
    assert (call["type"], call["name"]) == ("tool_use", "weather")
    assert call["input"]["city"] in ("Verona", "Mantua")
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "It rains."}
    messages = [
        *HI,
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result]},
    ]
    assert made(asks, messages=messages)["type"] == "message"


def test_reasoning_that_cannot_be_is_off_already(client: Client) -> None:
    """The template of this client knows no reasoning."""
    assert client.made("/v1/messages", messages=HI, max_tokens=2, model=client.service.name, **OFF)
    on: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 4}}
    assert "thinking.type='enabled' is not read" in refused(
        client, max_tokens=9, model=client.service.name, **on
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "max_tokens is missing"),
        ({"max_tokens": 9, "tools": [{**TOOL, "strict": True}]}, "tools[0].strict=True"),
        (
            {"max_tokens": 9, "tools": [{"name": "f", "input_schema": {"type": "array"}}]},
            "tools[0].input_schema=",
        ),
        (
            {"max_tokens": 9, "output_config": {"effort": "low"}},
            "output_config.effort: the chat template does not",
        ),
    ],
)
def test_errors_name_fields_as_the_client_does(
    asks: Client, body: dict[str, Any], said: str
) -> None:
    error = refused(asks, **body)
    assert error.startswith("invalid_request_error: ")
    assert said in error


def test_records_make_the_text_again(asks: Client) -> None:
    body: dict[str, Any] = {"model": "claude", "messages": HI, "seed": 1, "aleator_replay": True}
    (record,) = asks.made("/v1/messages", max_tokens=12, **body)[KEY]
    assert asks.made("/v1/chat/completions", max_tokens=12, **body)[KEY] == [record]
    end = events_of(asks.post("/v1/messages", max_tokens=12, stream=True, **body))[-1]
    assert end[KEY] == [record]


def test_kinds_of_errors(asks: Client) -> None:
    assert refused(asks, status=404, model="gpt", max_tokens=1).startswith("not_found_error: ")
    assert refused(asks, "/v1/messages/count_tokens", typo=1).startswith("invalid_request_error: ")
    response = asks.get("/v1/messages")
    assert response.status_code == 405
