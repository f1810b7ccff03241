"""A text as one file: all of it is in there, and nothing in it is markup or asks for anything."""

from __future__ import annotations

import json
import re
from pathlib import Path

from aleator.cli import main
from tests.playground.conftest import Client, MakeClient


def record(page: str) -> dict[str, object]:
    """What a file holds of its text."""
    found = re.findall(
        r'<script type="application/json" id="record">(.*?)</script>', page, re.DOTALL
    )
    assert len(found) == 1
    made: dict[str, object] = json.loads(found[0])
    return made


def test_a_file_has_the_steps_as_they_were_told(client: Client) -> None:
    text = client.write(prompt="ROMEO:\n</script><b>", seed=4, max_tokens=6, preset="llama.cpp")
    response = client.request("GET", f"/api/playground/texts/{text.id}/page")
    assert response.status_code == 200
    assert "attachment" in response.headers["content-disposition"]
    held = record(response.text)
    told = [{k: v for k, v in step.items() if k != "event"} for step in text.steps]
    assert held["steps"] == told
    full = held["full"]
    assert isinstance(full, list)
    for i, step in enumerate(full):
        asked = client.post(f"/texts/{text.id}/step", step=i)
        for stage in (*step["stages"], *asked["stages"]):
            stage.pop("microseconds")
        assert step == asked


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
    steps = held["steps"]
    assert isinstance(steps, list)
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert held["reason"] == "length"
