"""``tools/attack.py``: each scene once, faults that are planted, and scenes that hang or die."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import attack
import pytest
from attacks import clients, lives, mixes, stores, world
from attacks.engines import grown
from attacks.memory import Memory
from attacks.world import World, changed, unlike
from wide_models import SMALL, write_model

import aleator
from aleator.cache.disk_store import DiskStore
from aleator.engine.replay import Made
from aleator.generate import prefix_load, tiered_prefixes
from aleator.generate.tiered_prefixes import TieredPrefixes

TOOL = Path(attack.__file__)
HERE = ("mixes", "caches", "files", "records", "namespaces", "fields")
"""Scenes that can be played in this process; others fork, trace, or interrupt threads."""


def trials(scene: str, folder: Path, n: int = 2) -> World:
    """The world after so many trials of a scene in this process."""
    found = World(1, folder)
    playing = import_module(f"attacks.{scene}").scene(found)
    for _ in range(n):
        next(playing)
    playing.close()
    return found


@pytest.mark.parametrize("scene", HERE)
def test_scenes_find_nothing(scene: str, tmp_path: Path) -> None:
    found = trials(scene, tmp_path)
    assert found.wrong == []
    assert sum(found.counts.values()) >= 2


def test_an_error_in_the_log_of_the_server_is_found(tmp_path: Path) -> None:
    found = World(1, tmp_path)
    clients.check_log(found, "2026-11-28 error a request failed error=KeyError at=a.py:3\n")
    assert found.wrong == [
        "no errors in the log: 2026-11-28 error a request failed error=KeyError at=a.py:3"
    ]


@pytest.mark.slow
def test_the_log_of_the_server_is_checked(tmp_path: Path) -> None:
    assert trials("clients", tmp_path, 1).counts["no errors in the log"] == 1


# Faults


def test_a_draw_that_depends_on_others_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(model: Any, options: Any, asked: Any) -> Any:
        return [model.generate(each.prompt, **each.options | {"seed": 77}) for each in asked]

    monkeypatch.setattr(mixes, "made_together", other)
    assert trials("mixes", tmp_path).wrong[0].startswith("requests of mixes as alone: ")


def test_a_damaged_file_that_is_taken_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = aleator.LanguageModel.load_session
    kept: list[Any] = []

    def lenient(self: Any, path: Any) -> Any:
        with contextlib.suppress(aleator.AleatorError):
            kept.append(load(self, path))
        return kept[-1]

    monkeypatch.setattr(aleator.LanguageModel, "load_session", lenient)
    assert trials("files", tmp_path, 1).wrong[0].startswith("damaged sessions unchanged: ")


def test_records_that_are_believed_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aleator.cli.replay.differences", lambda then, now: [])
    assert trials("records", tmp_path).wrong[0].startswith("records that are untrue: ")


def test_a_prefix_that_all_share_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aleator.server.auth.namespace_of", lambda tenant, salt: "all")
    wrong = trials("namespaces", tmp_path, 3).wrong
    assert any(each.startswith("another's prefix looks like none: ") for each in wrong)


def test_damaged_blocks_that_are_served_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(self: DiskStore, key: bytes) -> Any:
        path = self._path(key)
        return {"cells": path.read_bytes()} if path.exists() else None

    monkeypatch.setattr(DiskStore, "get", get)
    found = World(1, tmp_path)
    stores.fields(found, tmp_path / "store", random.Random(1), 0)
    assert found.wrong[0].startswith("flipped bits are misses: ")


def test_blocks_of_another_text_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = TieredPrefixes._digests
    monkeypatch.setattr(
        TieredPrefixes, "_digests", lambda self, ids, where: digests(self, 0 * ids, where)
    )
    for module in (prefix_load, tiered_prefixes):
        for name in ("BLOCK", "LEAST"):
            monkeypatch.setattr(module, name, getattr(module, name))
    llama = write_model(tmp_path / "llama.gguf", SMALL["llama"])
    home = lives.Home(tmp_path, [(llama, {"n_threads": 1, "n_ctx": 256})], (16, 8), 1)
    told: list[dict[str, Any]] = []
    life = lives.Life(home, 1, told.append)
    life.fault, life.cached["cache_ram"] = "none", 2**22
    life.live()
    assert any(each["wrong"] for each in told)
    assert not all(each["wrong"] for each in told)


def test_a_text_is_compared_with_what_was_made_alone(model: aleator.LanguageModel) -> None:
    whole = model.generate("ROMEO:", max_tokens=6, seed=1, logprobs=0)
    alone = Made.of(whole)
    assert unlike(whole, alone) == ""
    assert unlike(whole, replace(alone, stop_reason="eog"))
    assert unlike(whole, replace(alone, logprobs=None))
    begun = model.generate("ROMEO:", max_tokens=6, seed=1)
    next(begun)
    begun.cancel()
    assert unlike(begun, alone) == ""
    assert unlike(begun, replace(alone, tokens=(1, *alone.tokens)))


def test_growth_of_memory_is_noticed() -> None:
    start = Memory(in_use=10 * 2**20, blocks=170_000, resident=60 * 2**20)
    levels = [replace(start, resident=n * 2**20) for n in (62, 70, 75, 76, 75, 77, 76, 76) * 2]
    assert grown(start, levels, start, 9_000) == []
    [leak] = grown(start, levels, replace(start, in_use=13 * 2**20), 9_000)
    assert "3.0 MiB more of native memory" in leak
    [leak] = grown(start, levels, replace(start, blocks=179_000), 9_000)
    assert "9000 more blocks" in leak
    [leak] = grown(start, [*levels, replace(start, resident=96 * 2**20)], start, 9_000)
    assert "19.0 MiB" in leak


def test_changed_bytes_are_others_in_every_way() -> None:
    data, kinds = random.Random(1).randbytes(5000), set()
    for i in range(200):
        kind, other = changed(random.Random(i), data)
        kinds.add(kind)
        assert other == changed(random.Random(i), data)[1]
    assert kinds == {"bits", "cut", "longer", "zeros", "moved", "twice"}


# The runner


def plays(monkeypatch: pytest.MonkeyPatch, program: str) -> attack.Found:
    """What comes of a scene's process that does something else."""
    monkeypatch.setattr(attack, "command", lambda *_: [sys.executable, "-c", program])
    return attack.turn(attack.parsed([]), "mixes", 1, 0.0)


def test_a_scene_whose_process_dies_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    kill = "import os, signal; print('so far', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    found = plays(monkeypatch, kill)
    assert found.wrong == ["its process ended with -9:\nso far\n"]
    [raised] = plays(monkeypatch, "raise RuntimeError('no')").wrong
    assert "RuntimeError: no" in raised


def test_a_scene_that_hangs_is_ended_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(attack, "HANG", 1.0)
    note = tmp_path / "pid"
    found = plays(
        monkeypatch,
        "import pathlib, subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(note)!r}).write_text(str(p.pid))\n"
        "time.sleep(600)",
    )
    assert found.wrong[0].startswith("its process hung")
    if note.exists():  # a busy machine may not have come so far
        assert gone(int(note.read_text()))


def gone(pid: int) -> bool:
    """Whether a process ends soon; one that waits for its parent to look has ended."""

    def over() -> bool:
        try:
            return ") Z " in Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return True

    return world.settled(over)


def test_a_wrong_scene_is_printed_with_its_command() -> None:
    options = attack.parsed(["--seed", "4", "--scene", "mixes", "records"])
    good = attack.Found("mixes", 4, 9, 1.5, {"texts": 12}, {"time": "1 ms"})
    bad = attack.Found("records", 5, 3, 1.5, {"records": 4}, {}, ["line one\nline two"])
    text = attack.report(options, [good, bad])
    assert "| mixes | 1 | 9 | 12 texts | 2 | 0 |" in text
    assert "- mixes: time: 1 ms" in text
    assert "again: `python tools/attack.py --scene records --seed 5 --trials 3`" in text
    assert "    line two" in text
    assert text.endswith("Verdict: something is wrong\n")
    assert attack.report(options, [good]).endswith("Verdict: nothing is wrong\n")


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    around = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, str(TOOL), "--scene", "texts", "--minutes", "30"],
        env=around, stdout=subprocess.PIPE, text=True,
    ) as tool:  # fmt: skip
        try:
            assert world.settled(lambda: len(started(tmp_path)) >= 3)  # the scene, and its servers
            tool.send_signal(signal.SIGINT)
            assert tool.wait(world.PATIENCE) == 130
            assert tool.stdout is not None
            assert tool.stdout.read().endswith("Ended by hand.\n")
        finally:
            tool.kill()
    assert world.settled(lambda: not started(tmp_path))
    assert list(tmp_path.iterdir()) == []


def started(folder: Path) -> list[int]:
    """Processes whose temporary files are within a folder's own folders."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and f"TMPDIR={folder}/".encode() in (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:  # it is gone, or another's
            continue
    return found
