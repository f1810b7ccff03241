"""``tools/gpu_decoder.py`` with items that pass, fail, hang, and kill their process."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import gpu_decoder
import pytest
from gpu_decoder import Group, Results, do
from gpu_decoder_items import llama, name_of

CHILD = """
import json, os, signal, sys, time
from pathlib import Path

work = json.loads(Path(sys.argv[1]).read_text())
with Path(work["events"]).open("a") as file:
    def say(**what):
        print(json.dumps(what), file=file, flush=True)
    for item in work["items"]:
        say(begun=item)
        if item["does"] == "hang":
            print("waiting", flush=True)
            time.sleep(600)
        if item["does"] == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        if item["does"] == "fail":
            say(item="fail", outcome="failed")
            sys.exit()
        say(item=item["does"], outcome="differs" if item["does"] == "differ" else "passed", n=1)
"""


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def ran(folder: Path, does: list[str], limit: float, seconds: float) -> Results:
    script = folder / "child.py"
    script.write_text(CHILD)
    results = Results(folder / "out.jsonl", time.monotonic() + seconds)
    group = Group("logits", deque({"does": each} for each in does), limit)
    do(group, [sys.executable, str(script)], results)
    results.write({"not run": [name_of(item) for item in group.items]})
    return results


def test_the_rest_goes_on(tmp_path: Path) -> None:
    results = ran(tmp_path, ["pass", "hang", "fail", "differ", "die", "pass", "die"], 1.0, 60.0)
    found = lines_of(results.path)
    assert [line.get("outcome") for line in found] == [
        "passed", "hung", "failed", "differs", "died", "passed", "died", None,
    ]  # fmt: skip
    assert found[1]["item"] == "does=hang"
    assert "waiting" in found[1]["said"]
    assert found[0]["n"] == 1
    assert found[-1]["not run"] == []


def test_the_time_is_over(tmp_path: Path) -> None:
    began = time.monotonic()
    results = ran(tmp_path, ["pass", "hang", "pass", "pass"], 600.0, 3.0)
    assert time.monotonic() - began < 30
    found = lines_of(results.path)
    assert [line.get("outcome") for line in found] == ["passed", "cut off", None]
    assert found[-1]["not run"] == ["does=pass", "does=pass"]


def test_what_is_to_be_done() -> None:
    options = gpu_decoder.parsed(["--workers", "3", "--models", "m.gguf", "--requests", "60"])
    first, measured, rest = gpu_decoder.groups_of(options)
    items = [item for group in first + rest for item in group.items if group.kind == "logits"]
    assert {item["model"] for item in items} == set(options.names)
    assert {item["type"] for item in items} == set(options.types)
    smoke = [item for group in first for item in group.items if group.kind == "logits"]
    assert f"{smoke[0]['model']} {smoke[0]['type']}" == gpu_decoder.SMOKE[0]
    texts = [item for group in first for item in group.items if group.kind == "texts"]
    assert sum(item["requests"] for item in texts) == 60
    assert {item["sampling"] for item in texts} == {"host", "auto"}
    assert len(measured) == 1  # nothing beside it
    assert len(measured[0].items) == 2 * (4 + 2)


def test_llama_measures_the_files(tmp_path: Path) -> None:
    file, program = tmp_path / "m.gguf", tmp_path / "llama-bench"
    file.touch()
    given = [
        "--only",
        "llama",
        "--models",
        str(file),
        "llama-1b:Q8_0",
        "--llama-bench",
        str(program),
    ]
    _, (group,), _ = gpu_decoder.groups_of(gpu_decoder.parsed(given))
    assert {item["file"] for item in group.items} == {str(file)}
    assert len(group.items) == 4 + 2
    for name, key in (("llama-bench", "avg_ts"), ("llama-batched-bench", "speed_tg")):
        own = program.with_name(name)
        own.write_text(f"#!/bin/sh\necho starting\necho '{{\"{key}\": 12.34}}'\n")
        own.chmod(0o755)
    assert {llama(item)["tokens_per_second"] for item in group.items} == {12.3}
    program.write_text("#!/bin/sh\necho no model >&2\nexit 1\n")
    with pytest.raises(RuntimeError, match="ended with 1: no model"):
        llama(group.items[0])


@pytest.mark.parametrize("only", ["logits", "texts", "speed"])
def test_parts_of_it(only: str) -> None:
    first, measured, rest = gpu_decoder.groups_of(gpu_decoder.parsed(["--only", only]))
    assert {group.kind for group in (*first, *measured, *rest)} == {only}
