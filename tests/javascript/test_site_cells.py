"""The cells in the page without a server are those of the server, after each operation of a script."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make_models import SPECS, write_model

import aleator
from aleator.generate.cache_script import EXAMPLE
from aleator.models.hub.bundled import bundled_model
from aleator.server.playground.cells import frames
from tests.javascript.site_engine import Ask, posts, told
from tests.playground.conftest import Client

SCRIPTS = [
    EXAMPLE.split(";"),
    ["decode 0 4", "add 0 8 -1 3", "div 0 0 8 2", "decode 0 2", "rm 0 2 5", "fork 0 1 4", "slide 1 0"],
    ["decode 3,1,0 5", "slide 1 2 3", "rm -1", "decode 7 2", "keep 7", "rm 7 0 3", "clear", "decode 2 1"],
    ["decode 0 9", "fork 0 1", "fork 0 2", "slide 1 4", "decode 2,1 20", "rm 2 9", "decode 0,1,2 3", "defrag"],
    ["decode 0 20", "rm 0 3 9", "decode 1 2", "decode 0,1 4", "rm 1", "decode 2,3,4 7", "decode 5 400"],
]  # fmt: skip


def caches(*scripts: Any) -> list[dict[str, Any]]:
    """Requests for the cells of scripts."""
    return posts("/cache", *({"script": each} for each in scripts))


def without_times(answer: dict[str, Any]) -> Any:
    """What does not differ from run to run, and where an error stands."""
    error = answer["error"] and answer["error"]["message"].split(":")[0]
    return told({"frames": answer["frames"], "error": error})


def test_the_cells_of_scripts_are_those_of_the_server(ask: Ask, client: Client) -> None:
    for script, mine in zip(SCRIPTS, ask(caches(*SCRIPTS)), strict=True):
        assert without_times(mine) == without_times(client.post("/cache", script=script)), script


def newest(states: dict[str, Any]) -> dict[int, int]:
    """Each sequence's newest position with a state."""
    return {each["seq"]: each["states"][-1]["position"] for each in states["sequences"]}


@pytest.mark.parametrize("name", ["gemma3", "mamba", "jamba"])
def test_layers_with_windows_and_states(ask: Ask, tmp_path: Path, name: str) -> None:
    spec = replace(SPECS[name], n_vocab=2048)
    path = write_model(tmp_path / "model.gguf", spec, tokenizer_from=bundled_model())
    script = ["decode 0 9", "fork 0 1", "decode 0,1 3", "decode 2 1", "rm 0"]
    [mine] = ask(caches(script), path)
    wanted = frames(aleator.load(path, n_threads=1), script)
    assert mine["error"] is None
    for one, other in zip(mine["frames"], wanted["frames"], strict=True):
        same = ("operation", "computed", "sequences", "summary", "owner", "owners", "positions")
        assert [one[key] for key in same] == [other[key] for key in same]
        assert one["window"] is None  # here these layers have the cells of the others
        assert (one["states"] is None) == (other["states"] is None)
        if one["states"]:
            assert newest(one["states"]) == newest(other["states"])


def test_the_engine_tells_its_own_cells_in_runs(ask: Ask) -> None:
    look = {"method": "GET", "path": "/cells"}
    text = {"prompt": "ROMEO:", "seed": 1, "max_tokens": 8, "preset": "neutral"}
    before, lines, after = ask([look, *posts("/texts", text), look])
    size = before["size"]
    assert before["runs"] == [{"at": 0, "cells": size, "owner": -1, "owners": 0}]
    used = len(lines[0]["prompt"]) + 7
    assert [each["cells"] for each in after["runs"]] == [used, size - used]
    assert after["summary"] == f"{used} of {size} cells used, the last is {used - 1}"
    assert [each["cells"] for each in after["sequences"]] == [used]


NONE = [
    "decode 0 1", [3], [""], ["jump 1"], ["decode 0"], ["decode x 1"], ["decode 0 501"],
    ["decode 0 --3"], ["rm --1"], ["decode 0 99999999999"], ["decode 0,0 3"],
    ["defrag"] * 201,
]  # fmt: skip


def test_what_is_no_script_is_refused_as_the_server_does(ask: Ask, client: Client) -> None:
    for script, mine in zip(NONE, ask(caches(*NONE)), strict=True):
        wanted = client.refused("/cache", script=script)
        assert mine["error"]["param"] == "script"
        if isinstance(script, list):  # the server checks that first
            assert mine["error"]["message"] == wanted["message"]
