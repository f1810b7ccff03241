"""Ends of texts over HTTP: loops, and reasoning whose budget is spent."""

from __future__ import annotations

from typing import Any

import pytest

from aleator import LanguageModel
from tests.server.conftest import REASONING, TEMPLATE, Client, MakeClient

CHAT = "/v1/chat/completions"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 400, "ignore_eos": True}


def test_a_loop_is_a_finish_reason(make_client: MakeClient, model: LanguageModel) -> None:
    client = make_client(chat_template=TEMPLATE, defaults={"stop_loops": (4, 64)})
    body: dict[str, Any] = {"prompt": "ROMEO:", **GREEDY}
    (choice,) = client.made("/v1/completions", **body)["choices"]
    alone = model.generate("ROMEO:", stop_loops={}, **GREEDY)
    assert (choice["finish_reason"], choice["text"]) == ("loop", alone.text)
    limits = {"repeats": 3, "min_tokens": 40}
    made = client.made("/completion", **body, stop_loops=limits)
    assert made["stop_type"] == "limit"
    assert made["tokens_predicted"] == len(
        model.generate("ROMEO:", stop_loops=limits, **GREEDY).tokens
    )
    hi: dict[str, Any] = {"messages": [{"role": "user", "content": "O"}], **GREEDY}
    hi["logit_bias"] = {"100": 100}  # this token for ever
    assert client.made("/v1/chat/completions", **hi)["choices"][0]["finish_reason"] == "loop"
    events = client.stream("/v1/chat/completions", **hi)
    assert "loop" in [each["choices"][0]["finish_reason"] for each in events if each["choices"]]
    error = client.refused("/v1/completions", **body, stop_loops={"repeats": 1})
    assert error["param"] == "stop_loops"


MESSAGE = "... Enough \u2013 I answer now.\n"


@pytest.fixture(scope="module")
def thinking(make_client: MakeClient) -> Client:
    return make_client(chat_template=REASONING)


@pytest.mark.parametrize("name", ["reasoning_budget_tokens", "thinking_budget_tokens"])
def test_a_message_ends_reasoning(thinking: Client, model: LanguageModel, name: str) -> None:
    """llama-server's names; what streams is what comes at once, each character whole."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Speak."}],
        "chat_template_kwargs": {"enable_thinking": True},
        "max_tokens": 60, "seed": 2, name: 6, "reasoning_budget_message": MESSAGE,
    }  # fmt: skip
    (choice,) = thinking.made(CHAT, **body)["choices"]
    reasoning, content = choice["message"]["reasoning_content"], choice["message"]["content"]
    assert reasoning.endswith(MESSAGE.strip())
    assert content
    assert MESSAGE.strip() not in content
    deltas = [e["choices"][0]["delta"] for e in thinking.stream(CHAT, **body) if e["choices"]]
    assert "".join(d.get("reasoning_content") or "" for d in deltas) == reasoning
    assert "".join(d.get("content") or "" for d in deltas) == content
    none = thinking.made(CHAT, **{**body, name: 0})["choices"][0]["message"]
    assert none["reasoning_content"] == MESSAGE.strip()
    free = thinking.made(CHAT, **{**body, name: -1})["choices"][0]["message"]
    assert MESSAGE.strip() not in free["reasoning_content"]


def test_defaults_and_grace(make_client: MakeClient, thinking: Client) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Speak."}],
        "chat_template_kwargs": {"enable_thinking": True},
        "max_tokens": 60, "seed": 2,
    }  # fmt: skip
    defaults = {"reasoning_budget": 6, "reasoning_budget_message": MESSAGE}
    client = make_client(chat_template=REASONING, defaults=defaults)
    given = thinking.made(CHAT, **body, **defaults)["choices"][0]["message"]
    assert client.made(CHAT, **body)["choices"][0]["message"] == given
    longer = thinking.made(CHAT, **body, **defaults, reasoning_budget_grace_tokens=30)
    reasoning = longer["choices"][0]["message"]["reasoning_content"]
    assert len(reasoning) > len(given["reasoning_content"])
    assert reasoning.removesuffix(MESSAGE.strip()).rstrip()[-1] in ".!?"
    error = thinking.refused(CHAT, **body, reasoning_budget_grace_tokens=-1)
    assert error["param"] == "reasoning_budget_grace_tokens"
