"""Searches of beams: the texts are those of ``beams``, and every step tells where its beams come from."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.playground.conftest import ROOT, Client, MakeClient

PROMPT = "ROMEO:\nWhat"


def searched(client: Client, **body: Any) -> list[dict[str, Any]]:
    """The lines of a search."""
    response = client.request("POST", f"{ROOT}/beams", json=body)
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3, "num_return_sequences": 2},
        {"num_beams": 4, "num_return_sequences": 4, "stochastic": True, "seed": 7},
        {"num_beams": 2, "early_stopping": "never", "length_penalty": 0.5, "stop": ["I"]},
        {"num_beams": 2, "preset": "llama.cpp", "temperature": 0.5},
        {"num_beams": 3, "num_return_sequences": 3, "regex": "aye|no|never"},
    ],
    ids=range(5),
)
def test_the_texts_are_those_of_the_model_and_their_ways_are_told(
    client: Client, options: dict[str, Any]
) -> None:
    start, *steps, end = searched(client, prompt=PROMPT, max_tokens=8, **options)
    found = client.model.beams(PROMPT, max_tokens=8, **options)
    assert [each["id"] for each in start["prompt"]] == list(client.model.prompt_tokens(PROMPT))
    assert start["seed"] == options.get("seed", start["seed"])
    assert end["reason"] == found[0].stop_reason
    assert [each["text"] for each in end["texts"]] == [each.text for each in found]
    assert [each["score"] for each in end["texts"]] == [each.score for each in found]
    assert [each["step"] for each in steps] == list(range(len(steps)))
    for text in end["texts"]:
        place = 0
        for step, token in zip(steps, text["tokens"], strict=False):
            (place,) = [
                i
                for i, each in enumerate(step["beams"])
                if (each["parent"], each["token"]) == (place, token)
            ]
        assert step["beams"][place]["done"]
        assert step["beams"][place]["order"] == text["score"]


def test_a_chat_is_searched(client: Client) -> None:
    messages = [{"role": "user", "content": "Good morrow."}]
    start, *_, end = searched(client, messages=messages, num_beams=2, max_tokens=4)
    prompt = [each["id"] for each in start["prompt"]]
    stop = client.model.vocab.chat_stop
    (found,) = client.model.beams(prompt, num_beams=2, max_tokens=4, stop=stop)
    assert [each["text"] for each in end["texts"]] == [found.text]


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({}, "prompt"),
        ({"prompt": PROMPT, "messages": []}, "messages"),
        ({"prompt": PROMPT, "num_beams": 5}, "num_beams"),
        ({"prompt": PROMPT, "num_beams": 2, "num_return_sequences": 3}, "num_return_sequences"),
        ({"prompt": PROMPT, "stochastic": True, "length_penalty": 2}, "length_penalty"),
        ({"prompt": PROMPT, "temperature": 0}, "temperature"),
        ({"prompt": PROMPT, "mirostat": 2}, "mirostat"),
        ({"prompt": PROMPT, "reasoning_budget": 3}, "reasoning_budget"),
        ({"prompt": PROMPT, "namespace": "other"}, "namespace"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    client: Client, body: dict[str, Any], parameter: str
) -> None:
    assert client.refused("/beams", **body)["param"] == parameter


def test_a_search_whose_time_is_over_says_so(make_client: MakeClient) -> None:
    client = make_client(request_timeout=1e-3)
    *_, end = searched(client, prompt=PROMPT, num_beams=2, max_tokens=400, ignore_eos=True)
    assert (end["reason"], end["texts"]) == ("deadline", [])
