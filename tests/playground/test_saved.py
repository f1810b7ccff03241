"""A text as one file: all of it is in there, and nothing in it is markup or asks for anything."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from aleator.cli import main
from aleator.server.playground.saved import ROWS, rounded
from tests.playground.conftest import Client, MakeClient, Written


def record(page: str) -> dict[str, Any]:
    """What a file holds."""
    found = re.findall(
        r'<script type="application/json" id="record">(.*?)</script>', page, re.DOTALL
    )
    assert len(found) == 1
    made: dict[str, Any] = json.loads(found[0])
    return made


def steps_of(written: Written) -> list[dict[str, Any]]:
    """Steps as the stream told them."""
    steps = [{k: v for k, v in step.items() if k != "event"} for step in written.steps]
    made: list[dict[str, Any]] = rounded(steps)
    return made


def without_times(step: dict[str, Any]) -> dict[str, Any]:
    """A step without what differs from run to run, its first rows alone."""
    stages = [{k: v for k, v in s.items() if k != "microseconds"} for s in step["stages"]]
    return {**step, "stages": stages, "traces": step["traces"][:ROWS]}


def test_a_file_has_the_steps_as_they_were_told(client: Client) -> None:
    text = client.write(prompt="ROMEO:\n</script><b>", seed=4, max_tokens=6, preset="llama.cpp")
    response = client.request("GET", f"/api/playground/texts/{text.id}/page")
    assert response.status_code == 200
    assert "attachment" in response.headers["content-disposition"]
    (held,) = record(response.text)["texts"]
    assert held["steps"] == steps_of(text)
    assert held["prompt"] == text.start["prompt"]
    assert held["spelled"]["cli"] == "aleator generate --seed 4 --preset llama.cpp"
    for i, step in enumerate(held["full"]):
        asked = client.post(f"/texts/{text.id}/step", step=i)
        assert without_times(step) == rounded(without_times(asked))
        rows = {each["token"]["id"] for each in step["traces"]}
        assert {step["token"]["id"], step["draw"]["token"]["id"]} <= rows


def test_a_file_has_branches_comparisons_and_cells(client: Client) -> None:
    text = client.write(
        prompt="ROMEO:\n", seed=4, max_tokens=6, preset="llama.cpp", temperature=0.5
    )
    rival = next(
        each["token"]["id"]
        for each in text.steps[3]["top"]
        if each["token"]["id"] != text.tokens[3]
    )
    branch = client.write(parent=text.id, at=3, token=rival, max_tokens=4)
    second = client.write(parent=branch.id, at=5, max_tokens=2)
    other = client.write(prompt="ROMEO:\n", seed=4, max_tokens=6, preset="neutral", regex="[a-z ]+")
    body = {
        "texts": [{"id": second.id, "name": "end"}, {"id": text.id}, {"id": other.id}],
        "current": text.id,
        "step": 2,
        "compare": [text.id, other.id],
        "draws": [{"id": other.id, "step": 1}],
        "script": ["decode 0 3", "fork 0 1"],
    }
    response = client.request("POST", "/api/playground/page", json=body)
    assert response.status_code == 200, response.text
    held = record(response.text)
    root, middle, end, alone = held["texts"]
    assert [each["parent"] for each in held["texts"]] == [None, 0, 1, None]
    assert [each["name"] for each in held["texts"]] == ["", "", "end", ""]
    assert held["shown"]["text"] == 0
    assert held["shown"]["compare"] == [0, 3]
    assert root["steps"] == steps_of(text)
    picked, drawn = middle["steps"]  # the next text leaves it after these
    assert (middle["at"], picked["token"]["id"], picked["picked"]) == (3, rival, True)
    before = {each["token"]["id"]: each["before"] for each in text.steps[3]["top"]}
    assert picked["before"] == rounded(before[rival])
    assert drawn == steps_of(branch)[0]
    assert end["steps"] == steps_of(second)
    assert middle["spelled"]["json"] == json.dumps({"seed": middle["seed"]}, indent=1)
    assert alone["steps"][0]["stages"][0]["name"] == "regex"
    (histogram,) = held["draws"]
    asked = client.post(f"/texts/{other.id}/draws", step=1, n=1000)
    assert histogram == rounded({"text": 3, "step": 1, **asked})
    assert [each["operation"] for each in held["cells"]] == ["decode 0 3", "fork 0 1"]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"texts": []}, "texts"),
        ({"texts": [3]}, "texts"),
        ({"texts": [{"name": "x"}]}, "texts"),
        ({"current": "nobody"}, "current"),
        ({"compare": ["ID"]}, "compare"),
        ({"compare": ["ID", "nobody"]}, "compare"),
        ({"draws": [{"id": "ID", "step": -1}]}, "draws.step"),
        ({"draws": [{"id": "ID", "step": 99}]}, "step"),
        ({"step": -2}, "step"),
    ],
    ids=range(9),
)
def test_what_is_no_page_is_refused(client: Client, wrong: dict[str, Any], param: str) -> None:
    text = client.write(prompt="ROMEO:\n", seed=4, max_tokens=2, preset="llama.cpp")
    body = json.loads(json.dumps({"texts": [{"id": "ID"}], **wrong}).replace("ID", text.id))
    assert client.refused("/page", **body)["param"] == param


def test_steps_whose_logits_are_gone_are_saved_as_such(client: Client) -> None:
    text = client.write(prompt="ROMEO:\n", seed=4, max_tokens=3, preset="llama.cpp")
    client.recording(text).rows[1].logits = None
    page = client.request("GET", f"/api/playground/texts/{text.id}/page").text
    (held,) = record(page)["texts"]
    assert [step is None for step in held["full"]] == [False, True, False]
    assert [step.get("forgotten", False) for step in held["steps"]] == [False, True, False]
    assert held["steps"][1]["token"] == text.steps[1]["token"]


def test_a_file_asks_for_nothing(client: Client) -> None:
    text = client.write(prompt="ROMEO:\n", seed=4, max_tokens=2, preset="llama.cpp")
    page = client.request("GET", f"/api/playground/texts/{text.id}/page").text
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href)=["']?(http|//|/)""", page)
    modules = json.loads(re.findall(r'<script type="importmap">(.*?)</script>', page)[0])["imports"]
    assert "page/saved.js" in modules
    assert all(url.startswith("data:text/javascript;base64,") for url in modules.values())
    assert "page/api.js" not in modules  # there is no server


def test_a_text_whose_logits_are_gone_cannot_be_saved(make_client: MakeClient) -> None:
    small = make_client(playground_memory=0)
    text = small.write(prompt="ROMEO:\n", seed=4, max_tokens=2, preset="llama.cpp")
    response = small.request("GET", f"/api/playground/texts/{text.id}/page")
    assert response.status_code == 410


def test_explain_writes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.html"
    assert main(["explain", "-p", "ROMEO:", "-n", "3", "--seed", "1", "--html", str(path)]) == 0
    held = record(path.read_text("utf-8"))
    (text,) = held["texts"]
    assert [step["step"] for step in text["steps"]] == [0, 1, 2]
    assert text["reason"] == "length"
    assert text["spelled"]["cli"] == "aleator generate --seed 1"
