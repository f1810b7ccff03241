"""What the tests of converters to chats share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

TEMPLATE = (Path(__file__).parent / "recorded" / "template.jinja").read_text()
"""Shows tools, and lets the bundled model reason."""

WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Verona", "Mantua"]}},
    "required": ["city"],
    "additionalProperties": False,
}
"""A schema that the bundled model satisfies within a few tokens, if it must."""


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream; the name of each must be its type."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    made = []
    for block in response.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        made.append(event)
    return made


def lines_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The lines of a stream of JSON."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]
