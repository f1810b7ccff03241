"""Bans by regular expression over HTTP."""

from __future__ import annotations

import re
from typing import Any

import pytest
import re2  # noqa: F401  # without it this file is skipped

from tests.server.conftest import TEMPLATE, Client, MakeClient

BAN = [r"(?i)\bth\w{1,9}", {"regex": "[aeiou]", "probability": 0.2}]


@pytest.fixture(scope="module")
def plain(make_client: MakeClient) -> Client:
    return make_client(chat_template=TEMPLATE)


def test_in_every_dialect_and_in_streams(plain: Client) -> None:
    asked: dict[str, Any] = {"max_tokens": 24, "seed": 1, "banned_regex": BAN}
    (choice,) = plain.made("/v1/completions", prompt="ROMEO:", **asked)["choices"]
    text = choice["text"]
    assert not re.search(r"(?i)\bth\w", text)
    assert plain.made("/completion", prompt="ROMEO:", **asked)["content"] == text
    events = plain.stream("/v1/completions", prompt="ROMEO:", **asked)
    assert "".join(each["choices"][0]["text"] for each in events if each["choices"]) == text
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "ROMEO:"}], **asked}
    made = plain.made("/v1/chat/completions", **chat)["choices"][0]["message"]["content"]
    assert not re.search(r"(?i)\bth\w", made)


@pytest.mark.parametrize(
    ("ban", "said"),
    [
        ("a.*b", "any number of bytes"),
        ("((a{99}){99}){99}", "invalid repetition size"),
        (["a", 3], "give a regular expression"),
        ({"regex": "a", "probability": 2}, "probability=2 is out of range"),
    ],
)
def test_what_is_refused(plain: Client, ban: Any, said: str) -> None:
    error = plain.refused("/v1/completions", prompt="a", banned_regex=ban)
    assert error["param"] == "banned_regex"
    assert said in error["message"]


def test_probabilities_of_what_is_drawn_are_refused(plain: Client) -> None:
    body: dict[str, Any] = {"prompt": "a", "n_probs": 2, "post_sampling_probs": True}
    error = plain.refused("/completion", banned_regex="x", **body)
    assert error["param"] == "post_sampling_probs"
    assert "banned_regex takes tokens back" in error["message"]
