"""Prompts that come from a tier beside the steps: others go on, and the texts are what they would be."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from aleator.cache.block_store import Sections
from aleator.cache.disk_store import DiskStore
from aleator.cache.formats import pieces
from aleator.engine import engine_core, engine_loop
from aleator.engine.engine import Engine
from aleator.engine.engine_core import EngineCore, count_used_cells
from aleator.generate import prefix_load
from aleator.generate.context import Batch
from aleator.generate.generation import Generation
from aleator.generate.prefix_load import PrefixLoad
from tests.generate.test_prompt_tiers import GREEDY, ids, load, made
from tests.generate.test_prompt_tiers import paths as paths
from tests.generate.test_prompt_tiers import reading_is_worth_it as reading_is_worth_it

PROMPT = ids(700)
KINDS = ["llama", "gemma3", "mamba", "jamba"]


class Gate:
    """Holds up whoever reads from disk."""

    def __init__(self) -> None:
        self.open, self.asked = threading.Event(), threading.Event()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    monkeypatch.setattr(prefix_load, "MAX_WAIT", 600.0)
    made, get = Gate(), DiskStore.get

    def held_up(store: DiskStore, key: bytes) -> Sections | None:
        made.asked.set()
        assert made.open.wait(60)
        return get(store, key)

    monkeypatch.setattr(DiskStore, "get", held_up)
    yield made
    made.open.set()


def written(path: Path, folder: Path) -> dict[str, Any]:
    """Options of a model whose tier has PROMPT."""
    below = {"cache_disk": 2**30, "cache_dir": str(folder)}
    made(load(path, **below), PROMPT)
    return below


def writing(engine: Engine) -> Generation:
    """A text that takes much longer than what a test does beside it, and leaves time to others."""

    def rest(*given: object) -> None:
        time.sleep(0.002)

    text = engine.submit(ids(40, 6), max_tokens=6000, ignore_eos=True, seed=1, on_logits=rest)
    next(text)
    return text


@pytest.mark.parametrize("kind", KINDS)
def test_others_write_while_a_prompt_is_read(
    kind: str, paths: dict[str, Path], tmp_path: Path, gate: Gate
) -> None:
    below = written(paths[kind], tmp_path)
    prompts = [[*PROMPT, 7, 7], [*PROMPT, 9], ids(40, 6)]
    model = load(paths[kind])
    wanted = [made(model, each)[0] for each in prompts]
    with load(paths[kind], **below).engine(n_seq_max=4) as engine:
        first = engine.submit(prompts[0], **GREEDY)
        assert gate.asked.wait(60)
        alike, other = (engine.submit(each, **GREEDY) for each in prompts[1:])
        other.wait()
        assert other.tokens == wanted[2]
        assert not first.done
        gate.open.set()
        assert [text.wait() and text.tokens for text in (first, alike)] == wanted[:2]
        assert first.stats.reused_tokens >= 640
        assert alike.stats.reused_tokens >= 640
        engine.visit(lambda context, _: context.cache.check()).result(60)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cancel_while_reading_leaves_nothing(
    kind: str, paths: dict[str, Path], tmp_path: Path, gate: Gate
) -> None:
    below = written(paths[kind], tmp_path)
    with load(paths[kind], **below).engine(n_seq_max=2) as engine:
        text = engine.submit([*PROMPT, 7], **GREEDY)
        assert gate.asked.wait(60)
        text.cancel()
        text.wait()
        assert text.stop_reason == "interrupted"

        def look(context: Any, _: object) -> int | None:
            context.cache.check()
            return count_used_cells(context.cache, range(2))

        assert not engine.visit(look).result(60)
        assert engine.stats.cells_reserved == 0
        gate.open.set()
        again = engine.submit([*PROMPT, 7], **GREEDY)
        again.wait()
        assert again.stats.reused_tokens >= 640


def test_reading_begins_before_its_turn(paths: dict[str, Path], tmp_path: Path, gate: Gate) -> None:
    model = load(paths["llama"], **written(paths["llama"], tmp_path))
    prefixes = model.tiers_of(model.own_context())
    assert prefixes is not None
    looked = prefixes.look_up(PROMPT)
    assert looked is not None
    assert wait([looked.found], 60).done
    _, loading = prefixes.begin(0, PROMPT, wake=lambda: None, look_up=looked)
    assert loading is not None
    assert gate.asked.wait(60)
    loading.stop()
    gate.open.set()


def test_blocks_come_slowly_while_others_write(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = written(paths["llama"], tmp_path)
    monkeypatch.setattr(engine_core, "LOADING_SHARE", 1e-9)
    monkeypatch.setattr(prefix_load, "MAX_WAIT", 600.0)
    with load(paths["llama"], **{**below, "n_ctx": 8192}).engine(n_seq_max=2) as engine:
        writer = writing(engine)
        put, came = pieces.read_cells, threading.Semaphore(0)

        def read_cells(*given: Any) -> None:
            put(*given)
            came.release()

        monkeypatch.setattr(pieces, "read_cells", read_cells)
        reader = engine.submit([*PROMPT, 7], **GREEDY)
        assert came.acquire(timeout=60)
        for _ in range(20):
            next(writer)
        assert not came.acquire(blocking=False)
        writer.cancel()
        reader.wait()
        assert [came.acquire(blocking=False) for _ in range(5)] == [True] * 4 + [False]
        assert reader.stats.reused_tokens >= 640


def test_who_reads_waits_for_no_other_that_reads(
    paths: dict[str, Path], tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefixLoad, "_patience", lambda self, tokens: 60.0)
    below = {"n_ctx": 8192, "cache_ram": 2**30, **written(paths["llama"], tmp_path)}
    model, at_hand = load(paths["llama"], **below), ids(500, 9)
    with model.engine(n_seq_max=3) as engine:
        engine.submit(at_hand, **GREEDY).wait()
        engine.visit(lambda context, _: context.cache.forget_namespace("")).result(60)
        writer = writing(engine)
        first = engine.submit([*PROMPT, 7], **GREEDY)
        assert gate.asked.wait(60)
        second = engine.submit([*at_hand, 7], **GREEDY)
        second.wait()
        assert second.stats.reused_tokens >= 384
        assert not writer.done
        assert not first.done
        gate.open.set()


def test_blocks_come_at_once_while_others_only_compute_prompts(
    paths: dict[str, Path], tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = {"n_ctx": 8192, **written(paths["llama"], tmp_path)}
    monkeypatch.setattr(engine_core, "LOADING_SHARE", 1e-9)
    step = EngineCore.step

    def slowly(core: EngineCore) -> Any:
        time.sleep(0.001)
        return step(core)

    monkeypatch.setattr(EngineCore, "step", slowly)
    with load(paths["llama"], **below).engine(n_seq_max=2, token_budget=3) as engine:
        reader = engine.submit([*PROMPT, 7], **GREEDY)
        assert gate.asked.wait(60)
        other = engine.submit(ids(6000, 6), max_tokens=1, seed=1)
        while engine.stats.running < 2:
            time.sleep(0.001)
        beside, put = [], pieces.read_cells

        def read_cells(*given: Any) -> None:
            beside.append(not other.done)
            put(*given)

        monkeypatch.setattr(pieces, "read_cells", read_cells)
        gate.open.set()
        reader.wait()
        assert beside == [True] * 5
        other.cancel()


def test_the_next_block_is_read_before_its_turn(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(paths["llama"], **written(paths["llama"], tmp_path))
    monkeypatch.setattr(prefix_load, "AHEAD", 1)
    prefixes, tiers = model.tiers_of(model.own_context()), model.prompt_tiers
    assert prefixes is not None
    assert tiers is not None
    come, asked, ask = threading.Event(), [], tiers.ask
    tiers.ask = lambda entry, model: asked.append(entry) or ask(entry, model)  # type: ignore[method-assign, func-returns-value]
    looked = prefixes.look_up(PROMPT)
    assert looked is not None
    assert wait([looked.found], 60).done
    _, coming = prefixes.begin(0, PROMPT, wake=come.set, look_up=looked)
    assert coming is not None
    for n in range(1, 5):
        assert len(asked) == n
        while not coming.ready:
            assert come.wait(60)
            come.clear()
        assert coming.go_on(0)
    coming.stop()


def test_who_waits_for_a_beginning_that_is_read_waits_no_longer(
    paths: dict[str, Path], tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = {"n_ctx": 8192, **written(paths["llama"], tmp_path)}
    monkeypatch.setattr(engine_core, "LOADING_SHARE", 1e-9)
    prompt = [*PROMPT[:120], 7, 8]
    with load(paths["llama"], **below).engine(n_seq_max=4) as engine:
        writer = writing(engine)
        first = engine.submit([*PROMPT, 7], **GREEDY)
        assert gate.asked.wait(60)
        second = engine.submit(prompt, **GREEDY)
        for _ in range(2):
            engine.visit(lambda context, _: None).result(60)
        assert engine.stats.waiting == 1
        gate.open.set()  # one block comes while somebody writes
        second.wait()
        assert second.stats.reused_tokens == 120
        assert not writer.done
        assert not first.done
    assert second.tokens == made(load(paths["llama"]), prompt)[0]


def test_who_has_waited_as_long_as_computing_takes_waits_for_no_turn(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_core, "LOADING_SHARE", 1e-9)
    monkeypatch.setattr(PrefixLoad, "_patience", lambda self, tokens: 0.0)
    model = load(paths["llama"], n_ctx=8192, cache_ram=2**30)
    with model.engine(n_seq_max=2) as engine:
        engine.submit(PROMPT, **GREEDY).wait()
        engine.visit(lambda context, _: context.cache.forget_namespace("")).result(60)
        writer = writing(engine)
        reader = engine.submit([*PROMPT, 7], **GREEDY)
        reader.wait()
        assert reader.stats.reused_tokens >= 640
        assert not writer.done


def test_nothing_runs_while_a_visit_waits_for_who_reads(
    paths: dict[str, Path], tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = written(paths["llama"], tmp_path)
    with load(paths["llama"], **below).engine(n_seq_max=1) as engine:
        text = engine.submit([*PROMPT, 7], **GREEDY)
        assert gate.asked.wait(60)
        rounds, admit, began = count(), EngineCore.admit, time.monotonic()
        monkeypatch.setattr(EngineCore, "admit", lambda core: (next(rounds), admit(core))[1])
        visited = engine.visit(lambda context, _: None)
        wait([visited], 0.5)
        assert next(rounds) < 10 + 2 * (time.monotonic() - began) / engine_loop.POLL
        gate.open.set()
        visited.result(60)
        assert text.wait()


def test_an_engine_closes_while_reading(paths: dict[str, Path], tmp_path: Path, gate: Gate) -> None:
    below = written(paths["llama"], tmp_path)
    engine = load(paths["llama"], **below).engine(n_seq_max=2)
    text = engine.submit([*PROMPT, 7], **GREEDY)
    assert gate.asked.wait(60)
    engine.close()
    assert text.stop_reason == "interrupted"
    gate.open.set()


def test_a_look_up_begins_while_its_request_waits(
    paths: dict[str, Path], tmp_path: Path, gate: Gate
) -> None:
    below = written(paths["llama"], tmp_path)
    model = load(paths["llama"], **below)
    tiers = model.prompt_tiers
    assert tiers is not None
    looked = []
    look_up = tiers.look_up
    tiers.look_up = lambda parents: looked.append(len(parents)) or look_up(parents)  # type: ignore[method-assign, func-returns-value]
    with model.engine(n_seq_max=1) as engine:
        first = engine.submit([*PROMPT, 7], **GREEDY)
        assert gate.asked.wait(60)
        second = engine.submit([*PROMPT, 8], **GREEDY)
        assert looked == [6, 6]
        gate.open.set()
        assert first.wait()
        assert second.wait()
        assert looked == [6, 6]


@pytest.mark.parametrize("kind", ["gemma3", "jamba"])
def test_windows_and_states_arrive_a_block_at_a_time(
    kind: str, paths: dict[str, Path], tmp_path: Path
) -> None:
    """Others are decoded meanwhile; given up in the middle, nothing of it is left."""
    model = load(paths[kind], **written(paths[kind], tmp_path))
    wanted = made(load(paths[kind]), [*PROMPT, 7])
    context = model.own_context()
    prefixes = model.tiers_of(context)
    assert prefixes is not None
    for stops in (True, False):
        come = threading.Event()
        _, loading = prefixes.begin(0, [*PROMPT, 7], wake=come.set)
        assert loading is not None
        slices = 0
        while not loading.done:
            assert come.wait(60) or loading.ready
            come.clear()
            while loading.ready:
                loading.go_on(0)
                slices += 1
                context.decode(Batch.one([5, 6, 7], seq=1))
                context.cache.seq_rm(1)
                context.cache.check()
                if stops and slices == 4:
                    assert loading.length == 0
                    assert vars(context.cache.pool)["incomplete"] == {0}
                    loading.stop()
        context.cache.check()
        assert (context.cache.seq_pos_max(0) == -1) == stops
        assert not vars(context.cache.pool)["incomplete"]
        assert slices > 3
        context.cache.seq_rm(0)
    got = made(model, [*PROMPT, 7])
    assert got[:2] == wanted[:2]
    assert got[2] >= 640


@pytest.mark.parametrize("kind", KINDS)
def test_who_shares_a_prompt_goes_on_when_the_first_is_cancelled(
    kind: str, paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below, wanted = written(paths[kind], tmp_path), made(load(paths[kind]), [*PROMPT, 7])[0]
    permits, get, waits = threading.Semaphore(3), DiskStore.get, threading.Event()

    def held_up(store: DiskStore, key: bytes) -> Sections | None:
        if not permits.acquire(blocking=False):
            waits.set()
            assert permits.acquire(timeout=60)
        return get(store, key)

    monkeypatch.setattr(DiskStore, "get", held_up)
    with load(paths[kind], **below).engine(n_seq_max=2) as engine:
        first, second = (engine.submit([*PROMPT, 7], **GREEDY) for _ in range(2))
        if kind != "mamba":  # whose state is one entry
            assert waits.wait(60)
        first.cancel()
        first.wait()
        permits.release(100)
        second.wait()
        assert second.tokens == wanted
        engine.visit(lambda context, _: context.cache.check()).result(60)


@pytest.mark.parametrize("alone", [True, False])
def test_nobody_waits_longer_than_computing_takes(
    alone: bool, paths: dict[str, Path], tmp_path: Path, gate: Gate
) -> None:
    below = written(paths["llama"], tmp_path)
    model = load(paths["llama"], **below)
    assert model.prompt_tiers is not None
    model.prompt_tiers.computing.observe(10**6, 1e-3)
    if alone:
        text = model.generate(PROMPT, **GREEDY)
        text.wait()
    else:
        with model.engine(n_seq_max=2) as engine:
            text = engine.submit(PROMPT, **GREEDY)
            text.wait()
    assert text.stats.reused_tokens == 0
    assert model.prompt_tiers.tell()["disk"]["given_up"] == 1
    gate.open.set()
    assert text.tokens == made(load(paths["llama"]), PROMPT)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_requests_side_by_side_with_cancels_restarts_and_small_tiers(
    kind: str, paths: dict[str, Path], tmp_path: Path
) -> None:
    rng, plain = random.Random(5), load(paths[kind], prompt_cache=False)
    below = {"cache_disk": 3 * 2**20, "cache_ram": 2**19, "cache_dir": str(tmp_path)}
    texts, reused = [ids(300)], 0
    for _ in range(3):
        model = load(paths[kind], **below)
        with model.engine(n_seq_max=3, n_ctx=1500, token_budget=64) as engine:
            asked = []
            for _ in range(8):
                text = list(rng.choice(texts))
                del text[rng.randrange(1, len(text)) :]
                text += [rng.randrange(5, 60) for _ in range(rng.randrange(1, 150))]
                texts.append(text[:500])
                asked.append(engine.submit(texts[-1], seed=1, **GREEDY))
                if rng.random() < 0.25:
                    rng.choice(asked).cancel()
            for text, made_of in zip(texts[-8:], asked, strict=True):
                made_of.wait()
                n = len(made_of.tokens)
                assert n == GREEDY["max_tokens"] or made_of.stop_reason == "interrupted"
                assert made_of.tokens == made(plain, text)[0][:n]
            engine.visit(lambda context, _: context.cache.check()).result(60)
        tiers = model.prompt_tiers
        assert tiers is not None
        tiers.close(60)
        assert not tiers.counts
        reused += sum(each.get("tokens", 0) for each in tiers.tell().values())
    assert reused
