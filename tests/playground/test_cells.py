"""The cells after each operation of a script, from a context that is made for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from make_models import SPECS, write_model

import aleator
from aleator.generate.cache_script import EXAMPLE
from aleator.models.hub.bundled import bundled_model
from aleator.server.playground.cells import engine_cells, frames
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


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], aleator.LanguageModel]:
    """A small model of an architecture, with the bundled model's vocabulary."""
    folder = tmp_path_factory.mktemp("models")

    def make(name: str) -> aleator.LanguageModel:
        spec = replace(SPECS[name], n_vocab=2048)
        path = write_model(folder / f"{name}.gguf", spec, tokenizer_from=bundled_model())
        return aleator.load(path, n_threads=1)

    return make


def test_window_layers_are_told_beside_the_others(
    small: Callable[[str], aleator.LanguageModel],
) -> None:
    model = small("gemma3")
    told = frames(model, ["decode 0 40", "fork 0 1"])["frames"]
    window = told[0]["window"]
    assert window["seen"] == 8
    assert len(window["owner"]) <= 80
    held = [p for p in window["positions"] if p >= 0]
    assert max(held) == max(told[0]["positions"])
    assert told[1]["window"]["owners"].count(2) == window["owners"].count(1)
    assert told[0]["states"] is None
    with model.engine(n_seq_max=2) as engine:
        seen = engine.visit(lambda context, _: engine_cells(context.cache)).result()
    assert sum(run["cells"] for run in seen["window"]["runs"]) == seen["window"]["size"]


def test_states_of_a_recurrent_model_are_told_without_cells(
    small: Callable[[str], aleator.LanguageModel],
) -> None:
    model = small("mamba")
    found = frames(model, ["decode 0 3", "fork 0 1", "decode 1 1", "defrag"])
    decoded, forked, apart = found["frames"]
    n = decoded["computed"]
    assert decoded["owner"] == []
    (held,) = decoded["states"]["sequences"]
    assert (held["seq"], held["states"][-1]["position"]) == (0, n - 1)
    one, other = forked["states"]["sequences"]
    assert one["states"][-1] == other["states"][-1]
    one, other = apart["states"]["sequences"]
    assert other["states"][-1]["position"] == n
    assert one["states"][-1]["row"] != other["states"][-1]["row"]
    assert "no cells" in found["error"]["message"]
    with model.engine(n_seq_max=2) as engine:
        seen = engine.visit(lambda context, _: engine_cells(context.cache)).result()
    assert (seen["size"], seen["window"]) == (0, None)
    assert seen["states"]["rows"] >= 2


def test_positions_are_added_and_divided(client: Client) -> None:
    told = client.post("/cache", script=["decode 0 4", "add 0 8 -1 3", "div 0 0 8 2"])["frames"]
    n = told[0]["computed"]
    moved = [*range(8), *range(11, n + 3)]
    assert told[1]["positions"][:n] == moved
    assert told[1]["shifts"][:n] == [0] * 8 + [3] * (n - 8)
    assert told[2]["positions"][:n] == [p // 2 if p < 8 else p for p in moved]
    assert "to be rotated" in told[2]["summary"]


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
