"""``return_progress`` and ``timings_per_token``: llama-server's, in every dialect that it has them in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.conftest import TEMPLATE, Client, MakeClient

LINES = "First Citizen: Speak, speak. " * 12
ASKS: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": LINES},
    "/v1/completions": {"prompt": LINES},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LINES}]},
    "/v1/responses": {"input": LINES},
}


@pytest.fixture(scope="module")
def asks(make_client: MakeClient) -> Client:
    return make_client(chat_template=TEMPLATE)


def events(asks: Client, path: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream."""
    response = asks.post(path, stream=True, **body)
    assert response.status_code == 200, response.text
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("path", ASKS)
def test_the_progress_of_a_prompt_is_told_before_the_text(asks: Client, path: str) -> None:
    body: dict[str, Any] = {**ASKS[path], "seed": 1, "cache_salt": path}
    body["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 6
    told = events(asks, path, return_progress=True, timings_per_token=True, **body)
    steps = [each for each in told if "prompt_progress" in each]
    progress = [each["prompt_progress"] for each in steps]
    assert progress[0] == {**progress[0], "cache": 0, "processed": 0, "time_ms": 0}
    done = [each["processed"] for each in progress]
    assert done == sorted(set(done))
    assert len(done) > 1
    assert done[-1] == progress[-1]["total"] > 50
    assert [each["timings"]["prompt_n"] for each in steps] == done
    assert steps[-1]["timings"]["prompt_ms"] > 0 == steps[0]["timings"]["prompt_ms"]
    again = events(asks, path, return_progress=True, **body)
    first = next(each["prompt_progress"] for each in again if "prompt_progress" in each)
    assert first["processed"] == first["cache"] == done[-1] - 1
    plain = events(asks, path, **body)
    assert not any("prompt_progress" in each or "timings" in each for each in plain[:-1])
    assert texts(plain) == texts(told) == texts(again) != []


def texts(told: list[Any]) -> list[str]:
    """The pieces of the text, whatever the dialect."""
    made = []
    for each in told:
        for choice in each.get("choices", ()):
            made.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        made.append(each.get("content") or "")
        if each.get("type") == "response.output_text.delta":
            made.append(each["delta"])
    return [each for each in made if isinstance(each, str) and each]


def test_timings_of_responses(asks: Client) -> None:
    body = {"input": "Who goes there?", "seed": 1, "max_output_tokens": 5}
    made = asks.made("/v1/responses", timings_per_token=True, **body)
    assert made["timings"]["predicted_n"] == 5
    assert "timings" not in asks.made("/v1/responses", **body)
    told = events(asks, "/v1/responses", timings_per_token=True, **body)
    deltas = [each for each in told if each["type"] == "response.output_text.delta"]
    counts = [each["timings"]["predicted_n"] for each in deltas]
    assert counts == sorted(counts)
    assert told[-1]["timings"]["predicted_n"] == 5
    assert json.dumps(told[0]).count("timings") == 0
