"""What client packages sent (tools/clients.py --record) is answered as it was then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import Client, MakeClient
from tests.server.speaking import TEMPLATE

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))
PACKAGES = {
    "openai", "anthropic", "ollama", "litellm", "langchain", "llm", "instructor", "lm_eval",
}  # fmt: skip


def requests(path: Path) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = json.loads(path.read_text())
    return made


@pytest.fixture(scope="module")
def recorded_client(make_client: MakeClient) -> Client:
    """A client of a server such as theirs was."""
    return make_client(
        alias="local-model", chat_template=TEMPLATE, defaults={"reasoning_budget": 8}
    )


def test_all_packages_were_recorded() -> None:
    assert {path.stem for path in RECORDED} == PACKAGES


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_requests_are_answered(path: Path, recorded_client: Client) -> None:
    for request in requests(path):
        body = request["body"]
        given = {} if body is None else {"json": body}
        response = recorded_client.request(request["method"], request["path"], **given)
        assert response.status_code == request["status"], (request, response.text)
        if response.status_code == 200:
            check_end(response, request["path"])
        else:
            assert response.json()["error"]


def check_end(response: httpx.Response, path: str) -> None:
    """See that a response came to its end, in whatever form it has."""
    kind = response.headers["content-type"].partition(";")[0]
    if kind == "application/json":
        assert "error" not in response.json() or response.json()["error"] is None
    elif kind == "application/x-ndjson":
        assert json.loads(response.text.splitlines()[-1])["done"] is True
    else:
        assert kind == "text/event-stream"
        last = response.text.split("\n\n")[-2].splitlines()
        wanted = {
            "/v1/messages": "event: message_stop",
            "/v1/responses": "event: response.",
        }.get(path, "data: [DONE]")
        assert last[0].startswith(wanted)
        assert "failed" not in last[0]
