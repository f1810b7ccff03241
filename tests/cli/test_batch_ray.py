"""``aleator batch --ray``: what its workers do, without Ray; tests/integrations/in_ray.py has the real one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.cli.conftest import Command

LINES: list[dict[str, Any]] = [
    {"custom_id": "a", "prompt": "ROMEO:", "seed": 3},
    {"custom_id": "b", "messages": [{"role": "user", "content": "Who goes there?"}], "seed": 4},
    {"custom_id": "c", "prompt": "ROMEO:", "max_tokens": -9},
    {"custom_id": "d", "prompt": "JULIET:", "seed": 5, "logprobs": 1},
]


def results(path: Path) -> dict[str, Any]:
    made = {}
    for line in path.read_text().splitlines():
        result = json.loads(line)
        result["response"]["body"].pop("created", None)
        assert result["custom_id"] not in made
        made[result["custom_id"]] = result
    return made


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """In place of aleator.integrations.ray: one actor, which answers some lines twice; what it was asked."""
    told: list[Any] = []

    def answered(
        lines: Sequence[str], worker: Any, arguments: tuple[Any, ...], **about: Any
    ) -> Iterator[str]:
        told.append(about)
        actor = worker(*arguments)
        yield from actor.answers(lines[:3])
        yield from actor.answers(lines[2:])

    module = ModuleType("aleator.integrations.ray")
    vars(module).update(answered=answered, connect=told.append)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return told


def test_results_are_those_of_one_process(
    aleator: Command, tmp_path: Path, stand_in: list[Any]
) -> None:
    asked = tmp_path / "in.jsonl"
    asked.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    options = ("-t", "1", "-n", "8", "--temp", "0.8")
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    assert aleator("batch", str(asked), str(one), *options).code == 1
    cluster = ("--ray", "host:6379", "--ray-workers", "3", "--parallel", "4")
    assert aleator("batch", str(asked), str(other), *options, *cluster).code == 1
    assert results(one) == results(other)
    assert results(one)["c"]["response"]["status_code"] == 400
    assert stand_in == ["host:6379", {"workers": 3, "num_cpus": 1, "at_once": 8}]
    before = other.read_bytes()
    assert aleator("batch", str(asked), str(other), *options, *cluster).code == 1
    assert other.read_bytes() == before
    assert len(stand_in) == 2  # nothing was left to do


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray(aleator: Command, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('"ROMEO:"\n')
    run = aleator("batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--ray", "auto")
    assert run.code != 0
    assert "this adapter needs ray, which is not installed: pip install" in run.err


def test_workers_without_a_cluster_are_refused(aleator: Command, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('"ROMEO:"\n')
    files = (str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))
    run = aleator("batch", *files, "--ray-workers", "3")
    assert run.code != 0
    assert "ray_workers=3" in run.err
    assert "--ray" in run.err
