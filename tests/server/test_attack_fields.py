"""Fields that were taken, or refused in words that helped nobody, until somebody tried them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.conftest import Client

CHAT = [{"role": "user", "content": "x"}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        ("/v1/completions", {"prompt": 5}, "prompt", "prompt=5"),
        ("/v1/completions", {"prompt": [[1, None]]}, "prompt", "prompt[0] has None"),
        ("/v1/completions", {"prompt": [[]]}, "prompt", "prompt[0] is empty"),
        ("/v1/completions", {"prompt": "x", "stop": {"a": 1}}, "stop", "stop={'a': 1}"),
        ("/v1/completions", {"prompt": "x", "logit_bias": {"-1": 1}}, "logit_bias", "token -1"),
        ("/v1/completions", {"prompt": "x", "logit_bias": {"9" * 30: 1}}, "logit_bias", "9" * 30),
        (
            "/v1/completions",
            {"prompt": "x", "repeat_penalty": -1},
            "repeat_penalty",
            "repeat_penalty=-1",
        ),
        ("/completion", {"prompt": [1, None]}, "prompt", "prompt has None"),
        ("/completion", {"prompt": "x", "logit_bias": {"-1": 1}}, "logit_bias", "token -1"),
        ("/completion", {"prompt": "x", "n_probs": 10**6}, "n_probs", "n_probs=1000000"),
        ("/completion", {"prompt": "x", "regex": "("}, "regex", "regular expression"),
        ("/tokenize", {"content": [1, 2048]}, "content", "2048: give ids of the vocabulary"),
        ("/tokenize", {"content": [None]}, "content", "content has None"),
        ("/detokenize", {"tokens": [2048]}, "tokens", "2048: give ids of the vocabulary"),
        ("/v1/chat/completions", {"messages": CHAT, "stop": [""]}, "stop", "stop=['']"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "a": 1}]}]},
            "messages",
            "messages[0].content[0].a=1: known are type, text",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "a": 1}]}, *CHAT]},
            "messages",
            "messages[0].tool_calls[0].a=1: known are id, type",
        ),
        ("/v1/responses", {"input": [{"role": "user"}]}, "input[0].content", "is missing"),
        ("/v1/responses", {"input": [[]]}, "input[0]", "give an object"),
        ("/api/chat", {"messages": [{}], "model": "shakespeare"}, None, "messages[0].role is missing"),
        ("/v1/completions", {"x" * 10**6: 1}, "x" * 200, "there is no field"),
    ],
)  # fmt: skip
def test_is_refused_by_name(
    client: Client, path: str, body: dict[str, Any], param: str | None, said: str
) -> None:
    response = client.post(path, **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert said in (error if param is None else error["message"])
    assert param is None or error["param"] == param
    assert len(response.content) < 1000
    assert json.loads(response.content)
