"""What is read from a disk that hangs, is damaged or was changed by others."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from aleator.cache.disk_store import DiskStore
from aleator.cache.formats import pieces
from aleator.core.errors import CacheFull
from aleator.generate import prefix_load
from aleator.generate.prompt_tiers import Speed
from tests.generate.test_prefix_load import PROMPT, Gate, written
from tests.generate.test_prefix_load import gate as gate
from tests.generate.test_prompt_tiers import GREEDY, ids, load, made
from tests.generate.test_prompt_tiers import paths as paths
from tests.generate.test_prompt_tiers import reading_is_worth_it as reading_is_worth_it


def test_tiers_close_while_a_disk_hangs(paths: dict[str, Path], tmp_path: Path, gate: Gate) -> None:
    model = load(paths["llama"], **written(paths["llama"], tmp_path))
    tiers = model.prompt_tiers
    assert tiers is not None
    tiers.computing.observe(1, 1e-3)
    with model.engine(n_seq_max=2) as engine:
        text = engine.submit([*PROMPT, 7], **GREEDY)
        assert gate.asked.wait(60)
        tiers.close(0)
        text.wait()
        assert text.stop_reason == "length"
    gate.open.set()
    tiers.close(60)
    assert tiers.disk is not None
    assert not tiers.disk.usable
    assert not tiers.counts


HANGS = """
import sys, threading, time
from aleator.cache.block_store import Entry
from aleator.cache.disk_store import DiskStore
from aleator.generate import prompt_tiers

asked = threading.Event()

def hang(store, key):
    with store._lock, store._reading:
        print("asked", flush=True)
        asked.set()
        time.sleep(3600)

DiskStore.get = hang
prompt_tiers.CLOSE_TIMEOUT = 0.1
prompt_tiers.PromptTiers.close.__defaults__ = (0.1,)
tiers = prompt_tiers.PromptTiers(0, 2**30, sys.argv[1])
tiers.ask(Entry(b"k" * 32, b"p" * 32, 128, 1000), "a model")
assert asked.wait(60)
"""


def test_a_disk_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    told = subprocess.check_output([sys.executable, "-c", HANGS, tmp_path], timeout=120, text=True)
    assert told == "asked\n"


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mamba", "jamba"])
def test_no_step_touches_the_disk(
    kind: str, paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = written(paths[kind], tmp_path)
    threads = set()

    def noting(name: str) -> None:
        done = getattr(DiskStore, name)

        def called(*args: Any) -> Any:
            threads.add(threading.current_thread().name)
            return done(*args)

        monkeypatch.setattr(DiskStore, name, called)

    for name in ("find", "get", "put", "touch", "drop", "_read", "_path"):
        noting(name)
    block = sorted((tmp_path / "blocks").iterdir())[0]
    block.write_bytes(block.read_bytes()[:-1])
    with load(paths[kind], **below).engine(n_seq_max=2, token_budget=64) as engine:
        for prompt in ([*PROMPT, 7], ids(300, 6), PROMPT):
            engine.submit(prompt, seed=1, **GREEDY).wait()
    assert threads
    assert all(name.startswith("aleator-cache") for name in threads), threads


def test_others_go_on_while_the_index_is_looked_at(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_load, "MAX_WAIT", 600.0)
    below, asked, opened = written(paths["llama"], tmp_path), threading.Event(), threading.Event()
    find = DiskStore.find

    def held_up(store: DiskStore, parents: Any) -> Any:
        asked.set()
        assert opened.wait(60)
        return find(store, parents)

    monkeypatch.setattr(DiskStore, "find", held_up)
    with load(paths["llama"], **below).engine(n_seq_max=2) as engine:
        first = engine.submit([*PROMPT, 7], **GREEDY)
        assert asked.wait(60)
        other = engine.submit(ids(20, 6), **{**GREEDY, "max_tokens": 150})  # a block is complete
        other.wait()
        assert len(other.tokens) == 150
        assert not first.done
        opened.set()
        first.wait()
        assert first.stats.reused_tokens == 640


def test_the_cheaper_is_taken(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_load, "LOOKING", 60.0)
    below = written(paths["llama"], tmp_path)
    for reading, computing, reused in ((1e6, 1e-6, 0), (1e-6, 1e6, 640)):
        model = load(paths["llama"], **below)
        tiers = model.prompt_tiers
        assert tiers is not None
        tiers.reading.observe(1, reading)
        tiers.computing.observe(1, computing)
        assert made(model, PROMPT)[2] == reused
        assert tiers.tell()["disk"].get("computed_instead", 0) == (not reused)


def test_what_came_before_a_damaged_block_is_used(paths: dict[str, Path], tmp_path: Path) -> None:
    below = written(paths["llama"], tmp_path)
    wanted = made(load(paths["llama"]), PROMPT)
    store = DiskStore(tmp_path, 2**30)
    listed = {length: key for key, length, *_ in store.listed()}
    store.close()
    path = tmp_path / "blocks" / f"{listed[512]}.block"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    model = load(paths["llama"], **below)
    assert made(model, PROMPT) == (*wanted[:2], 384)
    assert model.prompt_tiers is not None
    counts = model.prompt_tiers.tell()["disk"]
    assert (counts["damaged"], counts["tokens"], counts["hits"]) == (1, 384, 1)


@pytest.mark.parametrize(("length", "told"), [(128, 5), (128, 256), (384, 512)])
def test_a_wrong_length_in_the_index_is_a_miss(
    length: int, told: int, paths: dict[str, Path], tmp_path: Path
) -> None:
    below = written(paths["llama"], tmp_path)
    with sqlite3.connect(tmp_path / "index.sqlite") as base:
        base.execute("UPDATE blocks SET length = ? WHERE length = ?", (told, length))
    base.close()
    wanted = made(load(paths["llama"]), PROMPT)
    assert made(load(paths["llama"], **below), PROMPT) == (*wanted[:2], length - 128)


@pytest.mark.parametrize(
    "change",
    ["UPDATE blocks SET length = 5", "UPDATE blocks SET parent = x'07'", "DELETE FROM blocks"],
)
def test_a_wrong_row_is_no_miss_for_ever(
    change: str, paths: dict[str, Path], tmp_path: Path
) -> None:
    below = written(paths["llama"], tmp_path)
    model = load(paths["llama"], **below)
    with sqlite3.connect(tmp_path / "index.sqlite") as base:
        base.execute(f"{change} WHERE length = 256")
    base.close()
    wanted = made(load(paths["llama"]), PROMPT)
    assert made(model, PROMPT) == (*wanted[:2], 128)
    assert made(load(paths["llama"], **below), PROMPT) == (*wanted[:2], 640)


def test_what_was_removed_meanwhile_is_written_again(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    below = {"cache_disk": 2**30, "cache_dir": str(tmp_path)}
    model = load(paths["llama"], **below)
    made(model, PROMPT)
    other = DiskStore(tmp_path, 2**30)
    other.prune(0)
    other.close()
    model.own_context().cache.forget_namespace("")
    for reused in (0, 640):
        assert made(load(paths["llama"], **below) if reused else model, PROMPT)[2] == reused


def test_the_pool_s_part_is_not_read_again(paths: dict[str, Path], tmp_path: Path) -> None:
    below = written(paths["llama"], tmp_path)
    model = load(paths["llama"], **below)
    tiers = model.prompt_tiers
    assert tiers is not None
    tiers.computing.observe(1, 1e6)  # however fast this machine is
    made(model, PROMPT[:300])
    assert tiers.tell()["disk"]["tokens"] == 256
    read = tiers.tell()["disk"]["bytes_read"]
    assert made(model, PROMPT) == (*made(load(paths["llama"]), PROMPT)[:2], 640)
    assert tiers.tell()["disk"]["bytes_read"] == read // 2 * 5


def test_an_error_between_two_blocks_keeps_the_first(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = written(paths["llama"], tmp_path)
    wanted, read_cells = made(load(paths["llama"]), PROMPT), pieces.read_cells
    for error in (CacheFull(1, 0), ValueError("none"), MemoryError()):

        def fail(*args: Any, error: Exception = error) -> None:
            if args[2].start >= 256:
                raise error
            read_cells(*args)

        monkeypatch.setattr(pieces, "read_cells", fail)
        assert made(load(paths["llama"], **below), PROMPT) == (*wanted[:2], 256)


def test_values_by_channel(paths: dict[str, Path], tmp_path: Path) -> None:
    options: dict[str, Any] = {"flash_attn": False}
    below = {"cache_disk": 2**30, "cache_dir": str(tmp_path)}
    made(load(paths["llama"], **options, **below), PROMPT)
    wanted = made(load(paths["llama"], **options), PROMPT)
    assert made(load(paths["llama"], **options, **below), PROMPT) == (*wanted[:2], 640)


def test_speeds_are_of_late() -> None:
    speed = Speed()
    assert speed.seconds(5) is None
    speed.observe(10, 1)
    assert speed.seconds(5) == pytest.approx(0.5)
    for _ in range(100):
        speed.observe(10, 3)
    assert speed.seconds(5) == pytest.approx(1.5, rel=0.01)
