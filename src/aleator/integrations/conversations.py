"""Which requests are of one conversation: they begin alike, so one replica has computed their beginning."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

HEADER = b"x-aleator-conversation"
"""A client may say itself which requests belong together."""
TEXT, TOKENS = 256, 64
"""How much of a prompt counts: characters, or token ids."""


def conversation_of(headers: Iterable[tuple[bytes, bytes]], body: bytes) -> str:
    """A key that is equal for requests that begin alike; "" for those without a beginning.

    Of messages those up to the first one of the user count, so that all turns of a conversation have one
    key.  Names of ``headers`` are in lower case; ``body`` is JSON of a completion or a chat, in any dialect.
    """
    said = next((value for name, value in headers if name == HEADER), None)
    if said is not None:
        return hashlib.sha256(said).hexdigest()
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    beginning = _beginning(request) if isinstance(request, dict) else None
    if beginning is None:
        return ""
    text = json.dumps(
        [request.get("system"), request.get("instructions"), beginning], sort_keys=True
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _beginning(request: dict[str, object]) -> object:
    """The part of a request's prompt that its conversation shares; None: it has none."""
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
    """Names of replicas in an order of the key's own, the same wherever it is asked for.

    Where a name comes or goes, the keys of the others stay where they are (rendezvous hashing).
    """
    return sorted(names, key=lambda name: hashlib.sha256(f"{key} {name}".encode()).digest())
