"""Gemma 4's chats: reasoning beside calls, results within the message that called."""

from __future__ import annotations

from typing import Any

import pytest

from aleator.chat.families import family_of
from aleator.chat.families.gemma4 import Gemma4
from aleator.chat.reply import Reply

TEMPLATE = "<|tool_call>call: tool_responses"


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_reasoning_between_calls(size: int) -> None:
    text = (
        "<|channel>thought\nFirst.<channel|><|tool_call>call:a{}<tool_call|>"
        "<|channel>thought\nThen.<channel|>Done."
    )
    reply = Reply(Gemma4(TEMPLATE), tools={"a": {}})
    for at in range(0, len(text), size):
        reply.push(text[at : at + size])
    reply.finish()
    assert reply.message.reasoning_content == "First.Then."
    assert reply.message.content == "Done."
    assert [call.name for call in reply.message.tool_calls] == ["a"]


def test_results_are_part_of_the_message_that_called() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": '{"b": 2}'},
        {"role": "tool", "tool_call_id": "2", "content": "plain"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    family = family_of(TEMPLATE)
    user, made, last = family.turns(messages)
    assert (user, last) == (messages[0], messages[-1])
    assert made["content"] == "c"
    assert made["tool_responses"] == [
        {"name": "f", "response": {"b": 2}},
        {"name": "f", "response": "plain"},
    ]
    assert "tool_responses" not in messages[1]
    parts = [{"type": "text", "text": "e"}]
    (_, made, _) = family.turns([*messages[:2], {**messages[3], "content": parts}, messages[-1]])
    assert made["tool_responses"] == [{"name": "f", "response": parts}]
    assert Gemma4("<|tool_call>call:").turns(messages) is messages
