"""``tools/gpu_decoder.py`` with items that pass, fail, hang, and kill their process."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from gpu_decoder import Group, Results, do
from gpu_decoder_items import name_of

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
