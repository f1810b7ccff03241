"""Searches of beams in the page without a server find the texts that the server finds, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.javascript.site_engine import Ask, check_answers, posts
from tests.playground.conftest import Client

PROMPT = "ROMEO:\nWhat"
SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 3, "num_return_sequences": 2},
    {"num_beams": 4, "num_return_sequences": 4, "stochastic": True, "seed": 7},
    {"num_beams": 4, "num_return_sequences": 2, "stochastic": True, "seed": 2**53 - 1, "stop": ["e"]},
    {"num_beams": 2, "early_stopping": "never", "length_penalty": 0.5, "stop": ["I"]},
    {"num_beams": 3, "early_stopping": True, "length_penalty": -1, "stop": ["t", "h"]},
    {"num_beams": 2, "preset": "llama.cpp", "temperature": 0.5, "repetition_penalty": 1.3},
    {"num_beams": 1, "max_tokens": 5},
    {"num_beams": 3, "phases": {"x": {"begin": "e", "end": "t", "top_k": 3}, "answer": {"temperature": 1.5}}},
    {"num_beams": 4, "num_return_sequences": 4, "grammar": 'root ::= "aye" | "no" | "never"', "max_tokens": 9},
    {"num_beams": 3, "ignore_eos": True, "stop_token_ids": [300, 10], "num_return_sequences": 3},
    {"num_beams": 4, "top_k": 2, "num_return_sequences": 4, "stochastic": True, "seed": 3, "max_tokens": 3},
]  # fmt: skip


@pytest.mark.parametrize("options", SEARCHES, ids=range(len(SEARCHES)))
def test_searches_are_those_of_the_server(
    ask: Ask, client: Client, options: dict[str, Any]
) -> None:
    seed = {"seed": 1, "max_tokens": 8, **options}
    messages = [{"role": "user", "content": "Good morrow."}]
    asked = posts("/beams", {"prompt": PROMPT, **seed}, {"messages": messages, **seed})
    check_answers(ask, client, asked, ".9f")


def test_what_cannot_be_searched_is_refused_by_name(ask: Ask) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "prompt"),
        ({"prompt": PROMPT, "messages": []}, "messages"),
        ({"prompt": PROMPT, "num_beams": 0}, "num_beams"),
        ({"prompt": PROMPT, "num_beams": 2.5}, "num_beams"),
        ({"prompt": PROMPT, "num_beams": 2, "num_return_sequences": 3}, "num_return_sequences"),
        ({"prompt": PROMPT, "early_stopping": "soon"}, "early_stopping"),
        ({"prompt": PROMPT, "stochastic": 1}, "stochastic"),
        ({"prompt": PROMPT, "stochastic": True, "length_penalty": 2}, "length_penalty"),
        ({"prompt": PROMPT, "stochastic": True, "early_stopping": True}, "early_stopping"),
        ({"prompt": PROMPT, "temperature": 0}, "temperature"),
        ({"prompt": PROMPT, "mirostat": 2}, "mirostat"),
        ({"prompt": PROMPT, "xtc_probability": 0.5}, "xtc_probability"),
        ({"prompt": PROMPT, "draw": "gumbel"}, "draw"),
        ({"prompt": PROMPT, "max_tokens": 0}, "max_tokens"),
        ({"prompt": PROMPT, "reasoning_budget": 3}, "reasoning_budget"),
        ({"prompt": PROMPT, "banned_regex": ["a"]}, "banned_regex"),
        ({"prompt": PROMPT, "namespace": "other"}, "namespace"),
    ]
    answers = ask(posts("/beams", *(body for body, _ in cases)))
    assert [each["error"]["param"] for each in answers] == [param for _, param in cases]
    assert all(each["error"]["message"] for each in answers)
