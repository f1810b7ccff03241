"""What the engine of the page without a server answers, beside Python's server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from tests.playground.conftest import ROOT, Client


class Ask(Protocol):
    """Has the page's engine answer requests in turn, with the bundled model or that of a file."""

    def __call__(self, asked: list[dict[str, Any]], path: Path | None = None) -> list[Any]: ...


APART = (
    "microseconds", "milliseconds", "seconds", "kept_bytes", "kept_limit", "computed", "reused",
)  # fmt: skip
"""Times, and what depends on what was asked before."""


def told(value: Any, digits: str = ".9g") -> Any:
    """An answer as both give it; floats with the digits that sums of another order share.

    Which impossible tokens are traced is left to chance.
    """
    if isinstance(value, dict):
        names = ("id", "parent") if "event" in value else ()  # of texts
        return {k: told(v, digits) for k, v in value.items() if k not in (*APART, *names)}
    if isinstance(value, list):
        possible = (
            e for e in value if not isinstance(e, dict) or any(e.get("probabilities", (1,)))
        )
        return [told(each, digits) for each in possible]
    return (
        float(f"{value:{digits}}") + 0.0
        if isinstance(value, float | int) and not isinstance(value, bool)
        else value
    )


def posts(path: str, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
    """Requests with these bodies."""
    return [{"method": "POST", "path": path, "body": each} for each in bodies]


def check_answers(
    ask: Ask, client: Client, asked: list[dict[str, Any]], digits: str = ".9g"
) -> list[Any]:
    """The page's answers, which are those of the server."""
    server, answers = Server(client), ask(asked)
    for each, mine in zip(asked, answers, strict=True):
        assert told(mine, digits) == told(server.ask(**each), digits), each
    return answers


class Server:
    """Asks Python's server; ``ids`` are those of the texts in order."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.ids: list[str] = []

    def ask(self, method: str, path: str, body: dict[str, Any]) -> Any:
        body = {k: self.ids[v] if k == "parent" else v for k, v in body.items()}
        path = path.format(*self.ids)
        answer = self.client.request(method, ROOT + path, json=body)
        if path not in ("/texts", "/beams") or answer.status_code != 200:
            return answer.json()
        lines = [json.loads(line) for line in answer.text.splitlines()]
        self.ids.append(lines[0].get("id", ""))
        return lines
