"""The order in which models are loaded, used and unloaded, with models that only note what happens to them."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from aleator.core.errors import ParameterError
from aleator.engine.stats import EngineStats
from aleator.server import pool as pools
from aleator.server.entry import Entry, Loaded, Progress
from aleator.server.errors import ApiError
from aleator.server.options import ServerOptions
from aleator.server.pool import ClientLeft, Pool


class Model:
    """Notes its loading and closing in a list of all models; ``held`` keeps its loading from ending."""

    def __init__(self, name: str, notes: list[str], size: int = 10, **fields: Any) -> None:
        self.notes, self.size = notes, size
        self.held, self.fails = threading.Event(), ""
        self.held.set()
        self.loadings = 0
        self.entry = Entry(name, f"{name}.gguf", lambda: self.size, self.load, **fields)

    def load(self, progress: Progress) -> Loaded:
        self.notes.append(f"load {self.entry.name}")
        self.loadings += 1
        for step in range(1000):
            progress(min(step, 99), 100)
            if self.held.wait(0.01):
                break
        if self.fails:
            raise MemoryError(self.fails)
        engine = SimpleNamespace(closed=False, stats=EngineStats())

        def close() -> None:
            self.notes.append(f"close {self.entry.name}")
            engine.closed = True

        service: Any = SimpleNamespace(engine=engine, cut=lambda: self.notes.append("cut"))
        unused: Any = None
        return Loaded(service, unused, unused, close)


class Models:
    """A pool of such models, ``names`` by a letter each."""

    def __init__(self, names: str = "abc", **options: Any) -> None:
        self.notes: list[str] = []
        kept = options.pop("kept", "")
        queue = options.pop("max_queue", 8)
        self.of = {
            name: Model(name, self.notes, max_queue=queue, keep_loaded=name in kept)
            for name in names
        }
        self.pool = Pool([each.entry for each in self.of.values()], ServerOptions(**options))

    async def ask(self, name: str) -> None:
        """A request that ends at once."""
        async with self.pool.use(self.of[name].entry) as loaded:
            assert not loaded.service.engine.closed

    def busy(self, name: str, until: asyncio.Event) -> asyncio.Task[None]:
        """A request that lasts."""

        async def work() -> None:
            async with self.pool.use(self.of[name].entry) as loaded:
                self.notes.append(f"use {name}")
                await until.wait()
                assert not loaded.service.engine.closed

        return asyncio.create_task(work())

    @property
    def loaded(self) -> str:
        return "".join(name for name, each in self.of.items() if each.entry.loaded is not None)

    def states(self) -> list[str]:
        return [each.entry.status["value"] for each in self.of.values()]


async def settled(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


async def test_the_least_recently_used_idle_model_goes_first() -> None:
    models = Models("abcd", models_max=2)
    for name in "abacbd":
        await models.ask(name)
    assert models.notes == [
        "load a", "load b", "close b", "load c", "close a", "load b", "close c", "load d",
    ]  # fmt: skip
    assert models.states() == ["unloaded", "loaded", "unloaded", "loaded"]


async def test_memory_is_a_budget_of_bytes() -> None:
    models = Models("abc", models_memory=30)
    models.of["c"].size = 20
    for name in "abc":
        await models.ask(name)
    assert models.loaded == "bc"
    models.of["a"].size = 30
    await models.ask("a")
    assert models.loaded == "a"


async def test_a_model_that_never_fits_disturbs_no_other() -> None:
    models = Models("ab", models_memory=30 << 20)
    models.of["a"].size, models.of["b"].size = 30 << 20, (30 << 20) + 1
    await models.ask("a")
    with pytest.raises(ApiError, match=r"'b' could not.*needs 31 MiB.*memory is 30 MiB") as caught:
        await models.ask("b")
    assert (caught.value.status, caught.value.code) == (503, "model_not_loaded")
    assert models.loaded == "a"
    assert models.of["b"].entry.status["failed"] is True


async def test_what_is_kept_loaded_stays_and_counts() -> None:
    models = Models("abc", models_max=2, kept="b")
    models.pool.begin()
    await settled(lambda: models.loaded == "b")
    await models.ask("a")
    await models.ask("c")
    assert models.notes == ["load b", "load a", "close a", "load c"]
    full = Models("ab", models_max=1, kept="a")
    await full.ask("a")
    with pytest.raises(ApiError, match="--models-max is 1, where 1 that are kept loaded take"):
        await full.ask("b")
    assert full.loaded == "a"


async def test_a_busy_model_is_not_unloaded_and_its_later_requests_wait_for_it_to_be_loaded_again() -> (
    None
):
    models, first, later = Models("ab", models_max=1), asyncio.Event(), asyncio.Event()
    one = models.busy("a", first)
    await settled(lambda: "use a" in models.notes)
    two = models.busy("b", later)
    await settled(lambda: models.of["a"].entry.leaving)
    three = asyncio.create_task(models.ask("a"))
    await asyncio.sleep(0.05)
    assert models.notes == ["load a", "use a"]
    first.set()
    await settled(lambda: "use b" in models.notes)
    await asyncio.sleep(0.05)
    assert not three.done()
    later.set()
    await asyncio.gather(one, two, three)
    assert models.notes == [
        "load a", "use a", "close a", "load b", "use b", "close b", "load a",
    ]  # fmt: skip


async def test_an_idle_model_goes_before_a_busy_one() -> None:
    models, end = Models("abc", models_max=2), asyncio.Event()
    await models.ask("b")
    old = models.busy("a", end)  # used before b ends, and busy
    await settled(lambda: "use a" in models.notes)
    await models.ask("b")
    await models.ask("c")
    assert models.loaded == "ac"
    end.set()
    await old


async def test_requests_share_a_loading_whose_progress_is_told() -> None:
    models = Models("ab")
    models.of["a"].held.clear()
    both = [asyncio.create_task(models.ask("a")) for _ in range(2)]
    await settled(lambda: models.of["a"].entry.status.get("progress", 0) > 0)
    assert models.states() == ["loading", "unloaded"]
    other = asyncio.create_task(models.ask("b"))  # in its turn
    await asyncio.sleep(0.05)
    assert models.notes == ["load a"]
    models.of["a"].held.set()
    await asyncio.gather(*both, other)
    assert models.notes == ["load a", "load b"]


async def test_a_failure_is_told_at_once_for_a_while_and_hurts_no_other() -> None:
    models = Models("ab")
    await models.ask("b")
    bad = models.of["a"]
    bad.fails = "no room"
    told = await asyncio.gather(*(models.ask("a") for _ in range(3)), return_exceptions=True)
    assert [str(each) for each in told] == ["model 'a' could not be loaded: no room"] * 3
    with pytest.raises(ApiError, match="no room"):
        await models.ask("a")
    assert bad.loadings == 1
    assert bad.entry.status == {"value": "unloaded", "failed": True, "reason": "no room"}
    await models.ask("b")
    bad.fails = ""
    bad.entry.failed -= pools.RETRY_SECONDS
    await models.ask("a")
    assert models.states() == ["loaded", "loaded"]


async def test_a_request_to_load_tries_again_at_once() -> None:
    models = Models("a")
    models.of["a"].fails = "no room"
    with pytest.raises(ApiError):
        await models.ask("a")
    models.of["a"].fails = ""
    models.pool.hold(models.of["a"].entry)
    await settled(lambda: models.loaded == "a")


async def test_an_engine_that_has_closed_is_made_anew() -> None:
    models = Models("ab")
    await models.ask("a")
    await models.ask("b")
    loaded: Any = models.of["a"].entry.loaded
    loaded.service.engine.closed = True
    await models.ask("a")
    assert models.notes == ["load a", "load b", "close a", "load a"]


async def test_unloading_by_request_waits_for_nobody() -> None:
    models, end = Models("ab"), asyncio.Event()
    with pytest.raises(ApiError, match="not loaded") as caught:
        await models.pool.unload(models.of["a"].entry)
    assert caught.value.status == 400
    one = models.busy("a", end)
    await settled(lambda: "use a" in models.notes)
    models.of["b"].held.clear()
    two = asyncio.create_task(models.ask("b"))
    await settled(lambda: "load b" in models.notes)
    with pytest.raises(ApiError, match="1 requests under way") as caught:
        await asyncio.wait_for(models.pool.unload(models.of["a"].entry), 30)
    assert (caught.value.status, models.loaded) == (409, "a")
    models.of["b"].held.set()
    await two
    await models.pool.unload(models.of["b"].entry)
    end.set()
    await one
    await models.pool.unload(models.of["a"].entry)
    assert models.states() == ["unloaded", "unloaded"]


async def test_a_list_made_anew_unloads_what_is_no_longer_listed_once_it_is_idle() -> None:
    models, end = Models("abcd", kept="d"), asyncio.Event()
    notes, given = models.notes, list(models.pool.entries)
    for letter in "abcd":
        models.of[letter].entry.source = letter
    pool = Pool(given, ServerOptions(), "a", lambda: given)
    models.pool = pool
    one = models.busy("b", end)
    for letter in "acd":
        await models.ask(letter)
    await settled(lambda: "use b" in notes)
    same, other = (Model("a", notes).entry, Model("b", notes, keep_loaded=True).entry)
    same.source, other.source = "a", "new"
    given[:] = [other, models.of["c"].entry, Model("e", notes).entry]
    before = pool.entries
    with pytest.raises(ParameterError, match="model='a': --models has 'b', 'c' and 'e'"):
        await pool.reload()  # the default is gone
    assert (pool.entries, pool.by_name["b"].source) == (before, "b")
    given[0:0] = [same]
    await pool.reload()
    assert [each.name for each in pool.entries] == ["a", "b", "c", "e"]
    assert pool.find("a") is before[0]
    assert pool.find("c") is before[2]
    with pytest.raises(ApiError, match="model='d'"):
        pool.find("d")
    await settled(lambda: "close d" in notes and other.loaded is not None)
    assert "close b" not in notes
    assert len(pool.loaded) == 4  # with the one that is in use
    end.set()
    await one
    await settled(lambda: "close b" in notes)
    assert {each.name for each in pool.loaded} == {"a", "b", "c"}
    assert "close a" not in notes


@pytest.mark.parametrize("way", ["held", "asked"])
async def test_a_model_that_leaves_the_list_while_it_is_loaded_is_unloaded(way: str) -> None:
    models, end = Models("ab"), asyncio.Event()
    leaves, notes = models.of["b"], models.notes
    pool = Pool(models.pool.entries, ServerOptions(), None, lambda: [models.of["a"].entry])
    models.pool = pool
    leaves.held.clear()
    if way == "held":
        pool.hold(leaves.entry)
    asked = models.busy("b", end) if way == "asked" else None
    await settled(lambda: "load b" in notes)
    await pool.reload()
    leaves.held.set()
    if asked is not None:
        await settled(lambda: "use b" in notes)
        assert "close b" not in notes
        end.set()
        await asked
    await settled(lambda: "close b" in notes and not pool.loaded)


def test_two_models_of_one_name_are_refused() -> None:
    notes: list[str] = []
    one = Model("a", notes, aliases=("x",)).entry
    for other in (
        Model("x", notes).entry,
        Model("b", notes, aliases=("a",)).entry,
        Model("b", notes, adapters=("x",)).entry,
    ):
        with pytest.raises(ParameterError, match=r"names two models, 'a' \(a.gguf\) and '[bx]'"):
            Pool([one, other], ServerOptions())
    with pytest.raises(ParameterError, match="there is no model"):
        Pool([], ServerOptions())
    with pytest.raises(ParameterError, match="model='c': --models has 'a' and 'x'"):
        Pool([one], ServerOptions(), "c")


def test_an_adapter_of_several_models_names_none_of_them() -> None:
    notes: list[str] = []
    some = [Model(name, notes, adapters=("x", f"{name}x")).entry for name in "abc"]
    pool = Pool(some, ServerOptions(any_model=True))
    assert pool.names_of(some[1]) == ["b", "bx"]
    assert pool.find("bx") is some[1]
    told = "model='x' is an adapter of 'a', 'b' and 'c': give one of these, and adapters='x'"
    with pytest.raises(ApiError, match=re.escape(told)) as caught:
        pool.find("x")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    with pytest.raises(ParameterError, match="'x' names two models"):
        Pool([*some, Model("x", notes).entry], ServerOptions())


def test_names_find_models_and_errors_name_them() -> None:
    notes: list[str] = []
    many = [Model(f"m{i}", notes, aliases=(f"n{i}",), adapters=(f"o{i}",)).entry for i in range(9)]
    pool = Pool(many, ServerOptions(), "n3")
    assert pool.find(None) is many[3]
    with pytest.raises(ParameterError, match="model='o3': --models has 'm0'"):
        Pool(many, ServerOptions(), "o3")  # an adapter
    assert pool.find("m1") is pool.find("n1") is pool.find("o1") is many[1]
    with pytest.raises(ApiError, match=r"model='\.\./x': .*'m0', 'n0', .* and 7 more$") as caught:
        pool.find("../x")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert Pool(many, ServerOptions(any_model=True)).find("gpt-4") is many[0]


@pytest.mark.parametrize("seed", range(4))
async def test_any_order_of_requests_ends_within_the_budget(seed: int) -> None:
    """Requests of random lengths, some of whose clients leave, for models that sometimes fail."""
    drawn = random.Random(seed)
    models = Models("abcde", models_max=2, max_queue=100, kept="e" if seed % 2 else "")
    in_use: dict[str, int] = dict.fromkeys("abcde", 0)
    served = 0

    async def request(name: str) -> None:
        nonlocal served
        await asyncio.sleep(drawn.random() * 0.2)
        leaves = drawn.random() < 0.3

        async def gone() -> None:
            await asyncio.sleep(drawn.random() * 0.05 if leaves else 1000)

        try:
            async with models.pool.use(models.of[name].entry, gone) as loaded:
                in_use[name] += 1
                assert len(models.loaded) <= 2
                await asyncio.sleep(drawn.random() * 0.01)
                assert not loaded.service.engine.closed
                in_use[name] -= 1
                served += 1
        except ClientLeft:
            assert leaves
        except ApiError:
            assert name in "ab"

    async def unrest() -> None:
        while True:
            await asyncio.sleep(0.01)
            each = models.of[drawn.choice("ab")]
            each.fails = "" if each.fails else "no room"
            each.entry.why_not = ""

    other = asyncio.create_task(unrest())
    await asyncio.gather(*(request(drawn.choice("abcde")) for _ in range(200)))
    other.cancel()
    assert served > 50
    assert not any(in_use.values())
    assert all(
        (each.entry.serving, each.entry.waiting, each.entry.leaving) == (0, 0, False)
        for each in models.of.values()
    )
    await settled(lambda: all(each.entry.task is None for each in models.of.values()))
    models.pool.close()
    counts = {
        name: (models.notes.count(f"load {name}"), models.notes.count(f"close {name}"))
        for name in "cde"
    }
    assert all(loads == closes for loads, closes in counts.values())


async def test_a_model_is_unloaded_when_it_has_been_idle_for_as_long_as_it_is_kept() -> None:
    models, end = Models("ab"), asyncio.Event()
    await models.ask("a")
    entry = models.of["a"].entry
    assert entry.timer is None
    entry.keeps = 0.0
    one = models.busy("a", end)
    await settled(lambda: "use a" in models.notes)
    await models.ask("a")  # the other still uses it
    assert entry.timer is None
    end.set()
    await one
    await settled(lambda: models.loaded == "")
    entry.keeps = 1e9
    await models.ask("a")
    first: Any = entry.timer
    await models.ask("a")
    assert first.cancelled()
    assert models.loaded == "a"
    models.pool.cut()
    last: Any = entry.timer
    assert last.cancelled()


@pytest.mark.parametrize("again", [True, False])
async def test_a_model_that_was_used_while_its_unloading_waited_is_kept(again: bool) -> None:
    models = Models("ab")
    entry = models.of["a"].entry
    await models.ask("a")
    used = entry.used
    models.of["b"].held.clear()
    other = asyncio.create_task(models.ask("b"))
    await settled(lambda: "load b" in models.notes)
    models.pool._expire(entry, used)
    await asyncio.sleep(0)
    if again:
        await models.ask("a")
    models.of["b"].held.set()
    await other
    await settled(lambda: not models.pool._expiring)
    assert models.loaded == ("ab" if again else "b")
