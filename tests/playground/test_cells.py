"""The cells after each operation of a script, from a context that is made for it."""

from __future__ import annotations

import pytest

from aleator.core.errors import NoCells
from aleator.generate.cache_script import EXAMPLE
from tests.playground.conftest import Client


def test_cells_are_told_after_each_operation(client: Client) -> None:
    script = ["decode 0 4", "fork 0 1", "decode 0,1 2", "rm 0", "defrag"]
    told = client.post("/cache", script=script)
    assert told["error"] is None
    frames = told["frames"]
    assert [each["operation"] for each in frames] == script
    n = frames[0]["computed"]
    assert n == len(client.model.prompt_tokens("ROMEO:\nWhat light")) + 3
    assert frames[0]["sequences"] == [{"seq": 0, "cells": n, "low": 0, "high": n - 1, "runs": 1}]
    assert frames[0]["positions"][:n] == list(range(n))
    assert frames[1]["owners"][:n] == [2] * n
    assert frames[1]["computed"] == 0  # a fork
    assert frames[2]["computed"] == 4
    assert frames[3]["owner"].count(0) == 0
    assert frames[3]["owner"].count(1) == n + 2


def test_equal_scripts_give_equal_cells(client: Client) -> None:
    script = EXAMPLE.split(";")
    one, other = (client.post("/cache", script=script)["frames"] for _ in range(2))
    for frame in (*one, *other):
        frame.pop("milliseconds")
    assert one == other


def test_what_cannot_be_done_ends_the_script_where_it_stands(client: Client) -> None:
    told = client.post("/cache", script=["decode 0 4", "decode 1 400", "defrag"])
    assert [each["operation"] for each in told["frames"]] == ["decode 0 4"]
    assert told["error"]["message"].startswith("decode 1 400: ")
    assert client.post("/cache", script=["decode 99 1"])["error"] is not None


def test_a_cache_without_cells_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_cells(**_: object) -> None:
        raise NoCells("a recurrent cache has no cells")

    monkeypatch.setattr(client.model, "context", no_cells)
    assert client.refused("/cache", script=["decode 0 1"])["message"].endswith("no cells")


@pytest.mark.parametrize(
    "script",
    [
        "decode 0 1",
        [3],
        [""],
        ["jump 1"],
        ["decode 0"],
        ["decode x 1"],
        ["decode 0 501"],
        ["decode 0 99999999999"],
        ["defrag"] * 201,
    ],
    ids=range(9),
)
def test_what_is_no_script_is_refused(client: Client, script: object) -> None:
    assert client.refused("/cache", script=script)["param"] == "script"


def test_the_cells_of_the_engine_are_told_in_runs(client: Client) -> None:
    text = client.write(prompt="ROMEO:", seed=1, max_tokens=8, preset="neutral")
    told = client.get("/cells")
    assert sum(run["cells"] for run in told["runs"]) == told["size"]
    assert told["runs"][0]["at"] == 0
    used = sum(run["cells"] for run in told["runs"] if run["owner"] >= 0)
    assert used >= len(text.start["prompt"]) + 7  # kept as a prefix
    assert told["summary"].startswith(f"{used} of {told['size']} cells used")
