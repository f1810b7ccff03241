"""Answers as Responses: numbered events in OpenAI's order, and the whole."""

from __future__ import annotations

from typing import Any

from aleator.generate.logprobs import Logprobs, TokenLogprob
from aleator.server.chat import ChatEvent, ChatStop, Usage
from aleator.server.dialects.openai_responses import ResponseWriter
from aleator.server.errors import ApiError

USAGE = Usage(prompt=5, completion=4, cached=2, reasoning=1)


def written(events: list[ChatEvent], stop: ChatStop = "stop") -> list[dict[str, Any]]:
    writer = ResponseWriter("x", 7, {"model": "m"})
    made = writer.begin()
    for event in events:
        made += writer.push(event)
    return made + writer.end(stop, USAGE)


def test_events_of_reasoning_text_and_a_call() -> None:
    made = written(
        [
            ChatEvent("reasoning", text="th"),
            ChatEvent("reasoning", text="ink"),
            ChatEvent("content", text="He"),
            ChatEvent("content", text="llo"),
            ChatEvent("call", text="weather", id="c1"),
            ChatEvent("arguments", text='{"a":'),
            ChatEvent("arguments", text="1}"),
            ChatEvent("call_end"),
            ChatEvent("end", stop="tool_calls"),
        ],
        "tool_calls",
    )
    assert [event["type"].removeprefix("response.") for event in made] == [
        "created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta",
        "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "output_item.added",
        "function_call_arguments.delta", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in made] == list(range(len(made)))
    assert [e["output_index"] for e in made if "output_index" in e] == [0] * 7 + [1] * 7 + [2] * 5
    ids = {e["item_id"] for e in made if "item_id" in e}
    assert ids == {"rs_x_0", "msg_x_1", "fc_x_2"}
    response = made[-1]["response"]
    done = [event["item"] for event in made if event["type"] == "response.output_item.done"]
    assert response["output"] == done
    reasoning, message, call = done
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "think"}]
    assert message["content"] == [
        {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    ]
    assert (call["call_id"], call["name"], call["arguments"]) == ("c1", "weather", '{"a":1}')
    assert {item["status"] for item in done} == {"completed"}
    assert response["status"] == "completed"
    assert response["id"] == made[0]["response"]["id"] == "resp_x"
    assert made[0]["response"]["status"] == "in_progress"
    assert made[0]["response"]["output"] == []
    assert response["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 9,
    }


def test_events_that_begin_an_item_do_not_change_later() -> None:
    made = written([ChatEvent("content", text="Hello")])
    added = next(event for event in made if event["type"] == "response.output_item.added")
    assert added["item"]["content"] == []
    assert added["item"]["status"] == "in_progress"
    part = next(event for event in made if event["type"] == "response.content_part.added")
    assert part["part"]["text"] == ""


def test_an_answer_that_was_cut_off() -> None:
    made = written(
        [ChatEvent("call", text="f", id="c"), ChatEvent("arguments", text='{"a')], "length"
    )
    assert made[-1]["type"] == "response.incomplete"
    response = made[-1]["response"]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["output"][0]["arguments"] == '{"a'


def test_an_empty_answer_is_an_empty_message() -> None:
    response = written([ChatEvent("end", stop="stop")])[-1]["response"]
    assert response["output"][0]["content"][0]["text"] == ""
    assert response["status"] == "completed"


def test_log_probabilities() -> None:
    entry = Logprobs(
        TokenLogprob(1, -0.5, "He", b"He"), (TokenLogprob(2, float("-inf"), "Ho", b"Ho"),)
    )
    made = written([ChatEvent("content", text="He", logprobs=[entry])])
    told = {
        "token": "He",
        "logprob": -0.5,
        "bytes": [72, 101],
        "top_logprobs": [{"token": "Ho", "logprob": -9999.0, "bytes": [72, 111]}],
    }
    assert made[3]["type"] == "response.content_part.added"
    assert made[3]["part"]["logprobs"] == []  # whenever it is sent
    assert made[4]["logprobs"] == [told]
    assert made[-1]["response"]["output"][0]["content"][0]["logprobs"] == [told]


def test_an_error_after_the_beginning() -> None:
    writer = ResponseWriter("x", 7, {})
    writer.begin()
    failed = writer.fail(ApiError(500, "broken"))[-1]
    assert failed["type"] == "response.failed"
    assert failed["sequence_number"] == 2
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "broken"}
