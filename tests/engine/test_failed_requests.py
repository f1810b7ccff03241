"""What is left of failed requests is free at once: nothing waits for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import aleator
from aleator.core.errors import AleatorError, DeviceOutOfMemory, ModelNotFound, without_frames
from aleator.engine.request_handle import RequestHandle
from aleator.generate.generation import Generation
from tests.engine.engines import loop_of

Make = Callable[..., Generation]
TIMES = 5


@pytest.fixture(params=["engine", "model"])
def make(request: pytest.FixtureRequest, engine: aleator.Engine, model: Any) -> Make:
    """Makes a text, in an engine or without one."""
    return engine.submit if request.param == "engine" else model.generate


@pytest.fixture
def collected() -> Iterator[Callable[[], int]]:
    """Counts what only a collection frees; none is made meanwhile."""
    gc.collect()
    gc.disable()
    yield gc.collect
    gc.enable()


def failing(chain: object, logits: np.ndarray) -> None:
    raise RuntimeError("not today")


def not_numbers(chain: object, logits: np.ndarray) -> None:
    logits[:] = np.nan


def interrupting(chain: object, logits: np.ndarray) -> None:
    raise KeyboardInterrupt


class Guesses:
    def draft(self, *given: object) -> list[int]:
        raise RuntimeError("not today")


def waits(make: Make, **options: Any) -> None:
    generation = make("ROMEO:", max_tokens=4, **options)
    generation.wait()


def reads(make: Make, **options: Any) -> None:
    generation = make("ROMEO:", max_tokens=4, **options)
    for _ in generation:
        pass


def asks_twice(make: Make, **options: Any) -> None:
    generation = make("ROMEO:", max_tokens=4, **options)
    with pytest.raises(RuntimeError):
        generation.result()
    generation.result()


def asks(make: Make, **options: Any) -> None:
    assert str(make("ROMEO:", max_tokens=4, **options).exception()) == "not today"


def awaits(make: Make, **options: Any) -> None:
    async def text() -> None:
        generation = make("ROMEO:", max_tokens=4, **options)
        with suppress(RuntimeError):  # here, as asyncio.run keeps what it raises
            await generation

    asyncio.run(text())


def cancels(make: Make, **options: Any) -> None:
    generation = make("ROMEO:", max_tokens=200, **options)
    next(generation)
    generation.cancel()
    assert generation.stop_reason == "interrupted"


def forgets(make: Make, **options: Any) -> None:
    next(make("ROMEO:", max_tokens=200, **options))


@pytest.mark.parametrize("way", [waits, reads, asks, asks_twice, awaits])
def test_a_callback_that_raises(make: Make, way: Any, collected: Callable[[], int]) -> None:
    leaves_nothing(make, way, collected, on_logits=failing)


@pytest.mark.parametrize("way", [cancels, forgets])
def test_a_request_that_is_given_up(make: Make, way: Any, collected: Callable[[], int]) -> None:
    leaves_nothing(make, way, collected)


@pytest.mark.parametrize(
    "options",
    [
        {"on_logits": not_numbers},
        {"on_logits": interrupting},
        {"drafter": Guesses()},
        {"temprature": 1},
        {"grammar": "root ::= ("},
        {"regex": "("},
        {"json_schema": {"type": "no such"}},
        {"negative_prompt": "x" * 10_000, "guidance_scale": 2.0},
    ],
)
def test_requests_that_fail(
    make: Make, options: dict[str, Any], collected: Callable[[], int]
) -> None:
    leaves_nothing(make, waits, collected, **options)


def reads_one(made: list[Generation]) -> None:
    made[2].wait()


def forgets_the_others(made: list[Generation]) -> None:
    last = made.pop()
    made.clear()
    last.wait()


def goes_on(made: list[Generation]) -> None:
    next(made[2])
    del made[:2]
    made[0].wait()


@pytest.mark.parametrize("way", [reads_one, forgets_the_others, goes_on])
def test_errors_of_a_batch_that_nobody_reads(
    model: Any, way: Callable[[list[Generation]], None], collected: Callable[[], int]
) -> None:
    def two_fail(chain: aleator.SamplerChain, logits: np.ndarray) -> None:
        if chain.completion < 2:
            raise RuntimeError("not today")

    for times in (1, TIMES):
        for _ in range(times):
            way(model.generate_batch(["ROMEO:"], n=3, max_tokens=4, on_logits=two_fail))
        left = collected()
    assert left == 0


@pytest.mark.parametrize("twice", [False, True])
def test_an_error_that_ends_several_requests(
    engine: aleator.Engine,
    collected: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    twice: bool,
) -> None:
    """Each has an error of its own, and an error while the engine recovers is not kept."""
    loop = loop_of(engine)
    due = [raising_once(monkeypatch, loop.context, "decode")]
    if twice:
        due.append(raising_once(monkeypatch, RequestHandle, "settle", lambda: not loop._handles))

    def one_of_three(make: Make) -> None:
        begun, go = threading.Event(), threading.Event()

        def waiting(chain: object, logits: np.ndarray) -> None:
            begun.set()
            go.wait(20)

        first = make("ROMEO:", max_tokens=4, on_logits=waiting)
        assert begun.wait(20)
        others = [make("JULIET:", max_tokens=4) for _ in range(2)]  # one follows the other
        for each in due:
            each.set()
        go.set()
        with pytest.raises(RuntimeError, match="not today"):
            first.wait()
        said = ["".join(traceback.format_exception(each.error)) for each in others]
        assert all("in raises" in each and "not today" in each for each in said)
        assert len({id(each.error) for each in (first, *others)}) == 3

    leaves_nothing(engine.submit, one_of_three, collected)
    assert not any(each.is_set() for each in due)


def raising_once(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    when: Callable[[], bool] = lambda: True,
) -> threading.Event:
    """Let a method raise an error the next time that it is called after the event is set."""
    method, due = getattr(owner, name), threading.Event()

    def raises(*given: Any) -> Any:
        if due.is_set() and when():
            due.clear()
            raise RuntimeError("not today")
        return method(*given)

    monkeypatch.setattr(owner, name, raises)
    return due


def leaves_nothing(make: Make, way: Any, collected: Callable[[], int], **options: Any) -> None:
    for times in (1, TIMES):  # what is made once is made the first time
        for _ in range(times):
            with suppress(AleatorError, RuntimeError, KeyboardInterrupt):
                way(make, **options)
        make("ROMEO:", max_tokens=1).wait()  # the step after
        left = collected()
    assert left == 0


class Counted(Exception):
    def __init__(self, n: int) -> None:
        super().__init__(f"{n} things")
        self.n = n


@pytest.mark.parametrize(
    "error",
    [
        Counted(3), KeyError("a"), OSError(2, "gone", "file"), SystemExit(4),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "why"),
        ExceptionGroup("two", [KeyError("a"), Counted(2)]),
        DeviceOutOfMemory("cuda", 3, "no memory"), ModelNotFound("x.gguf"),
    ],
)  # fmt: skip
def test_copies_of_errors_say_the_same(error: BaseException) -> None:
    try:
        raise error
    except BaseException as raised:
        copied = without_frames(raised)
    assert type(copied) is type(error)
    assert (repr(copied), str(copied)) == (repr(error), str(error))
    assert vars(copied) == vars(error)
    assert copied.__traceback__ is None
    assert error.__traceback__ is not None


def test_copies_have_what_only_native_code_holds() -> None:
    copied = without_frames(ImportError("no such module", name="module", path="folder"))
    assert isinstance(copied, ImportError)
    assert (copied.name, copied.path) == ("module", "folder")


def test_copies_have_copies_of_causes() -> None:
    try:
        try:
            raise Counted(2)
        except Counted as cause:
            raise KeyError("a") from cause
    except KeyError as raised:
        copied = without_frames(raised)
    assert isinstance(copied.__cause__, Counted)
    assert copied.__cause__.n == 2
    assert copied.__cause__.__traceback__ is None
    assert copied.__suppress_context__


def test_a_note_on_an_error_is_on_its_copies_and_on_no_other() -> None:
    error = KeyError("a")
    error.add_note("first")
    copied = without_frames(error)
    error.add_note("second")
    assert copied.__notes__ == ["first"]


def test_an_error_that_is_its_own_cause() -> None:
    error = KeyError("a")
    error.__cause__ = error
    assert repr(without_frames(error)) == repr(error)


def test_an_error_with_slots_is_kept() -> None:
    class Slots(Exception):
        __slots__ = ("n",)
        n: int

    error = Slots()
    error.n = 3
    assert without_frames(error) is error


def test_an_error_that_cannot_be_copied_is_kept() -> None:
    class Alone(Exception):
        def __new__(cls, *args: object) -> Alone:
            if made:
                raise TypeError("one is enough")
            made.append(super().__new__(cls))
            return made[0]

    made: list[Alone] = []
    error = Alone()
    assert without_frames(error) is error
