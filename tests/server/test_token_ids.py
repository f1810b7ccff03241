"""``return_token_ids``: the tokens of prompt and texts, in vLLM's fields."""

from __future__ import annotations

from typing import Any

import pytest

import aleator
from tests.server.conftest import Client
from tests.server.test_openai_chat import HI, WEATHER

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
ROMEO: dict[str, Any] = {"prompt": "ROMEO:", "max_tokens": 20, "seed": 7, "return_token_ids": True}


@pytest.mark.parametrize(
    "more", [{}, {"n": 2}, {"logprobs": 1}, {"echo": True}, {"stop": ["e"]}, {"echo": True, "logprobs": 1}]
)  # fmt: skip
def test_tokens_of_completions(
    client: Client, model: aleator.LanguageModel, more: dict[str, Any]
) -> None:
    choices = client.made(COMPLETIONS, **ROMEO, **more)["choices"]
    n, given = more.get("n", 1), {name: more[name] for name in more.keys() - {"n"}}
    alone = model.generate_batch(["ROMEO:"], n=n, max_tokens=20, seed=7, **given)
    assert [each["token_ids"] for each in choices] == [each.tokens for each in alone]
    for choice in choices:
        assert choice["prompt_token_ids"] == list(model.prompt_tokens("ROMEO:"))
    streamed = client.stream(COMPLETIONS, **ROMEO, **more)
    for choice in choices:
        mine = [e["choices"][0] for e in streamed if e["choices"][0]["index"] == choice["index"]]
        assert [t for each in mine for t in each["token_ids"]] == choice["token_ids"]
        assert [each.get("prompt_token_ids") for each in mine] == [
            choice["prompt_token_ids"],
            *[None] * (len(mine) - 1),
        ]
    without = client.made(COMPLETIONS, **{**ROMEO, **more, "return_token_ids": False})
    assert "token_ids" not in without["choices"][0]


@pytest.mark.parametrize(
    "more", [{}, {"n": 2}, {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 80}]
)
def test_tokens_of_chats(client: Client, more: dict[str, Any]) -> None:
    body = {**HI, **more, "return_token_ids": True, "aleator_replay": True}
    made = client.made(CHATS, **body)
    records = made["aleator_replay"]
    assert made["prompt_token_ids"] == records[0]["prompt"]
    assert [each["token_ids"] for each in made["choices"]] == [
        each["made"]["tokens"] for each in records
    ]
    *events, _ = client.stream(CHATS, **body)
    assert events[0]["prompt_token_ids"] == made["prompt_token_ids"]
    for choice in made["choices"]:
        mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == choice["index"]]
        assert [t for each in mine for t in each.get("token_ids", ())] == choice["token_ids"]
