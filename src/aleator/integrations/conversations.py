"""Which requests belong to one conversation: they share a prefix, which one replica has already computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

from aleator.core.json_text import loads

HEADER = b"x-aleator-conversation"
"""Header in which a client can say which requests belong together."""
TEXT, TOKENS = 256, 64
"""The part of a prompt that counts: characters, or token ids."""


def conversation_of(headers: Iterable[tuple[bytes, bytes]], body: bytes) -> str:
    """Return a key that is equal for requests with the same prefix; "" if there is none.

    Messages count up to the first one of the user, so that all turns of a conversation have the same key.
    Names of ``headers`` are in lower case; ``body`` is JSON of a completion or a chat, in any dialect.
    """
    said = next((value for name, value in headers if name == HEADER), None)
    if said is not None:
        return hashlib.sha256(said).hexdigest()
    try:
        request = loads(body)
    except ValueError:
        return ""
    beginning = _beginning(request) if isinstance(request, dict) else None
    if beginning is None:
        return ""
    text = json.dumps(
        [request.get("system"), request.get("instructions"), beginning], sort_keys=True
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _beginning(request: dict[str, object]) -> object:
    """The part of a request's prompt that its conversation shares; None if there is none."""
    for name in ("messages", "input"):
        messages = request.get(name)
        if isinstance(messages, list) and messages and isinstance(messages[0], dict):
            roles = [each.get("role") if isinstance(each, dict) else None for each in messages]
            return messages[: roles.index("user") + 1 if "user" in roles else 1]
    prompt = request.get("prompt") or request.get("input")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt[:TEXT]
    return prompt[:TOKENS] if isinstance(prompt, list) else None


def ranked(key: str, names: Sequence[str]) -> list[str]:
    """Return names of replicas in an order that depends only on the key (rendezvous hashing).

    When a name is added or removed, keys of other names keep their place.
    """
    return sorted(names, key=lambda name: hashlib.sha256(f"{key} {name}".encode()).digest())
