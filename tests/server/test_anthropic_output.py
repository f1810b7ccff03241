"""Answers as Messages: events in Anthropic's order, and the whole."""

from __future__ import annotations

from typing import Any

from aleator.server.chat import ChatEvent, Usage
from aleator.server.dialects.anthropic import MessageWriter

USAGE = Usage(prompt=5, completion=4, cached=2)
STOP = {"stop_reason": "end_turn", "stop_sequence": None}


def written(*events: ChatEvent) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    writer = MessageWriter("x", "m")
    made = writer.begin(USAGE)
    for event in events:
        made += writer.push(event)
    made += writer.end(STOP, USAGE)
    return made, writer.message(STOP, USAGE)


def test_events_of_thinking_text_and_calls() -> None:
    made, message = written(
        ChatEvent("reasoning", text="th"),
        ChatEvent("reasoning", text="ink"),
        ChatEvent("content", text="Hello"),
        ChatEvent("call", text="weather", id="c1"),
        ChatEvent("arguments", text='{"a":'),
        ChatEvent("arguments", text="1}"),
        ChatEvent("call_end"),
        ChatEvent("call", text="other", id="c2"),
        ChatEvent("arguments", text="[1]"),
        ChatEvent("call_end"),
        ChatEvent("end", stop="tool_calls"),
    )
    deltas = ["content_block_delta"]
    around = ["content_block_start", "content_block_stop"]
    assert [event["type"] for event in made] == [
        "message_start",
        *around[:1], *deltas * 3, *around[1:],
        *around[:1], *deltas, *around[1:],
        *around[:1], *deltas * 2, *around[1:],
        *around[:1], *deltas, *around[1:],
        "message_delta",
        "message_stop",
    ]  # fmt: skip
    indices = [event["index"] for event in made if "index" in event]
    assert indices == [0] * 5 + [1] * 3 + [2] * 4 + [3] * 3
    assert [event["delta"] for event in made if event["type"] == "content_block_delta"] == [
        {"type": "thinking_delta", "thinking": "th"},
        {"type": "thinking_delta", "thinking": "ink"},
        {"type": "signature_delta", "signature": ""},
        {"type": "text_delta", "text": "Hello"},
        {"type": "input_json_delta", "partial_json": '{"a":'},
        {"type": "input_json_delta", "partial_json": "1}"},
        {"type": "input_json_delta", "partial_json": "[1]"},
    ]
    assert made[0]["message"]["content"] == []
    assert made[0]["message"]["stop_reason"] is None
    usage = {
        "input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2, "output_tokens": 4,
    }  # fmt: skip
    assert made[0]["message"]["usage"] == made[-2]["usage"] == message["usage"] == usage
    assert made[-2]["delta"] == STOP
    assert message["content"] == [
        {"type": "thinking", "thinking": "think", "signature": ""},
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "c1", "name": "weather", "input": {"a": 1}},
        {"type": "tool_use", "id": "c2", "name": "other", "input": {"INVALID_JSON": "[1]"}},
    ]


def test_blocks_begin_empty() -> None:
    made, _ = written(ChatEvent("content", text="Hello"), ChatEvent("call", text="f", id="c"))
    starts = [e["content_block"] for e in made if e["type"] == "content_block_start"]
    assert starts == [
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "c", "name": "f", "input": {}},
    ]


def test_a_call_that_was_cut_off_is_no_call() -> None:
    made, message = written(
        ChatEvent("call", text="f", id="c"),
        ChatEvent("arguments", text='{"a'),
        ChatEvent("content", text="Hello"),
    )
    assert message["content"] == [{"type": "text", "text": "Hello"}]
    assert [event["index"] for event in made if "index" in event] == [0, 0, 0, 1, 1, 1]
