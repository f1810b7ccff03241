"""Requests of one conversation have one key, and go to one replica."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aleator.integrations.conversations import conversation_of, ranked

USER, REPLY = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
SYSTEM = {"role": "system", "content": "Be brief."}


def key(body: Any, *headers: tuple[bytes, bytes]) -> str:
    return conversation_of(headers, json.dumps(body).encode())


def test_turns_of_a_conversation() -> None:
    first = key({"messages": [SYSTEM, USER]})
    assert first
    assert first == key({"messages": [SYSTEM, USER, REPLY, USER], "temperature": 1})
    assert first != key({"messages": [USER]})
    assert first != key({"messages": [SYSTEM, {"role": "user", "content": "Ho"}]})
    assert key({"messages": [SYSTEM]}) == key({"messages": [SYSTEM, REPLY]})


def test_dialects() -> None:
    # Anthropic's system prompt and Responses' instructions are fields of their own.
    assert key({"system": "a", "messages": [USER]}) != key({"system": "b", "messages": [USER]})
    assert key({"input": [USER]}) == key({"input": [USER, REPLY]}) != ""
    assert key({"input": "Hi", "instructions": "a"}) != key({"input": "Hi"})


def test_prompts_that_begin_alike() -> None:
    long = "a" * 256
    assert key({"prompt": long + "b"}) == key({"prompt": long + "c"}) == key({"prompt": [long]})
    assert key({"prompt": list(range(99))}) == key({"prompt": [list(range(64))]})
    assert key({"prompt": "a"}) != key({"prompt": "b"})


def test_a_client_may_say_it() -> None:
    name = (b"x-aleator-conversation", b"mine")
    assert key({"prompt": "a"}, name) == key({"prompt": "b"}, name) != key({"prompt": "a"})


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"messages": []}', b'{"prompt": 3}', b"[" * 10**5]
)
def test_without_a_beginning(body: bytes) -> None:
    assert conversation_of((), body) == ""


def test_replicas_that_come_and_go() -> None:
    names = [f"replica{i}" for i in range(5)]
    keys = [str(i) for i in range(200)]
    firsts = {k: ranked(k, names)[0] for k in keys}
    assert set(firsts.values()) == set(names)
    assert firsts == {k: ranked(k, names[::-1])[0] for k in keys}
    left = names[:-1]
    assert all(ranked(k, left)[0] == first for k, first in firsts.items() if first in left)
    assert sorted(ranked("a", names)) == names
