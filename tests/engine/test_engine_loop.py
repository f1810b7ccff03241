"""The thread of an engine: errors and interrupts in it, and its end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

import aleator
from aleator.core.errors import EngineClosed
from aleator.engine import engine_loop
from aleator.engine.engine_core import count_used_cells
from aleator.engine.engine_loop import EngineLoop
from aleator.engine.request_handle import RequestHandle
from aleator.engine.scheduler import Scheduler
from tests.engine.engines import PROMPTS, loop_of, wait, wait_until_idle


def test_an_error_of_one_request_is_raised_at_its_reader(
    model: aleator.LanguageModel, engine: aleator.Engine
) -> None:
    calls = []

    def fails(chain: Any, logits: Any) -> None:
        calls.append(1)
        if len(calls) == 6:
            raise RuntimeError("not today")

    other = engine.submit("ROMEO:", max_tokens=40, seed=1)
    generation = engine.submit("JULIET:", max_tokens=40, seed=2, on_logits=fails)
    pieces: list[str | None] = []
    with pytest.raises(RuntimeError, match="not today"):
        pieces.extend(iter(generation.__next__, None))
    assert len(generation.tokens) == 5  # after it was raised, what there is
    assert "".join(generation._completion.pieces).startswith("".join(p for p in pieces if p))
    assert generation.stop_reason == "interrupted"
    assert isinstance(generation.error, RuntimeError)
    assert other.text == model.generate("ROMEO:", max_tokens=40, seed=1).text
    assert other.error is None
    assert engine.stats.failed == 1


def test_an_error_of_the_context_ends_what_runs_and_no_more(
    model: aleator.LanguageModel, engine: aleator.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = loop_of(engine).context
    decode, fail = context.decode, threading.Event()

    def broken(batch: Any) -> Any:
        if fail.is_set():
            fail.clear()
            raise KeyboardInterrupt
        return decode(batch)

    monkeypatch.setattr(context, "decode", broken)
    made = [engine.submit("ROMEO:", max_tokens=200, ignore_eos=True, seed=s) for s in range(5)]
    next(made[0])
    fail.set()
    with pytest.raises(KeyboardInterrupt):
        made[0].wait()
    assert made[4].wait()  # it waited, and was made afterwards
    assert made[4].error is None
    assert len(made[4].tokens) == 200
    assert engine.submit("ROMEO:", max_tokens=9, seed=1).text
    wait_until_idle(engine)
    context.cache.check()
    assert count_used_cells(context.cache, range(3)) == 0


def test_an_error_at_the_beginning_of_a_request_is_its_own(
    model: aleator.LanguageModel, engine: aleator.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_of(engine)
    enter = loop._core.runner.enter

    def broken(state: Any, reuse: bool = True) -> int:
        held = enter(state, reuse)
        if state.request.params.seed == 2:
            raise RuntimeError("not today")
        return held

    monkeypatch.setattr(loop._core.runner, "enter", broken)
    prompt = PROMPTS[2]
    assert engine.submit(prompt, max_tokens=1, seed=1).wait()  # something to reuse
    other = engine.submit("ROMEO:", max_tokens=40, seed=1)
    assert next(other)
    with pytest.raises(RuntimeError, match="not today"):
        engine.submit(prompt, max_tokens=40, seed=2).wait()
    assert other.tokens == model.generate("ROMEO:", max_tokens=40, seed=1).tokens
    assert engine.stats.failed == 1
    wait_until_idle(engine)
    loop.context.cache.check()
    assert count_used_cells(loop.context.cache, range(3)) == 0


def test_a_callback_that_wants_to_exit_ends_its_own_request(
    model: aleator.LanguageModel, engine: aleator.Engine
) -> None:
    def leaves(chain: Any, logits: Any) -> None:
        raise SystemExit

    other = engine.submit("ROMEO:", max_tokens=40, seed=1)
    assert next(other)
    with pytest.raises(SystemExit):
        engine.submit("JULIET:", max_tokens=40, on_logits=leaves).wait()
    assert other.tokens == model.generate("ROMEO:", max_tokens=40, seed=1).tokens
    assert other.error is None


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_constraint_that_fails_at_the_end_is_one_requests_own(
    model: aleator.LanguageModel, engine: aleator.Engine, how: str
) -> None:
    class Broken:
        @property
        def constraints(self) -> list[Any]:
            raise RuntimeError("not today")

    options: dict[str, Any] = {"ignore_eos": True, "on_logits": wait}
    if how == "deadline":
        options["deadline"] = 0.1
    other = engine.submit("ROMEO:", max_tokens=40, seed=1)
    made = engine.submit("JULIET:", max_tokens=400, **options)
    made._completion.chain = Broken()  # type: ignore[assignment]
    if how == "cancel":
        made.cancel()
    assert made.wait(10)
    assert made.error is None
    assert made.stop_reason == ("interrupted" if how == "cancel" else how)
    assert other.tokens == model.generate("ROMEO:", max_tokens=40, seed=1).tokens


@pytest.mark.parametrize("what", ["seq_rm", "admit"])
def test_an_error_that_stays_closes_the_engine(
    model: aleator.LanguageModel, engine: aleator.Engine, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def broken(*given: Any) -> Any:
        raise RuntimeError("the device is gone")

    loop, go = loop_of(engine), threading.Event()

    def look(chain: Any, logits: Any) -> None:
        go.wait(20)

    made = [engine.submit("ROMEO:", max_tokens=200, on_logits=look) for _ in range(5)]
    if what == "seq_rm":
        monkeypatch.setattr(loop.context, "decode", broken)
        monkeypatch.setattr(loop.context.cache, "seq_rm", broken)
    else:
        monkeypatch.setattr(Scheduler, "admit", broken)
    go.set()
    for each in made:
        with pytest.raises(RuntimeError, match="the device is gone"):
            each.wait(10)
        assert each.done
    loop._thread.join(10)
    assert not loop._thread.is_alive()
    assert engine.closed
    with pytest.raises(EngineClosed):
        engine.submit("ROMEO:")
    engine.close()
    stats = engine.stats
    assert (stats.failed, stats.running, stats.waiting) == (5, 0, 0)


def test_an_interrupt_anywhere_in_the_thread_leaves_the_engine_at_work(
    model: aleator.LanguageModel, engine: aleator.Engine
) -> None:
    import ctypes

    if sys.gettrace() is not None:
        pytest.skip("an interrupt thrown into a thread that is traced can stop the others")
    thread = loop_of(engine)._thread.ident
    raised = ctypes.pythonapi.PyThreadState_SetAsyncExc
    expected = model.generate("ROMEO:", max_tokens=30, seed=1).text
    for _ in range(20):
        made = [engine.submit(p, max_tokens=30, seed=1) for p in PROMPTS]
        raised(ctypes.c_ulong(thread or 0), ctypes.py_object(KeyboardInterrupt))
        for generation in made:
            try:
                assert generation.wait(timeout=20)
            except KeyboardInterrupt:
                assert generation.stop_reason == "interrupted"
    assert engine.submit("ROMEO:", max_tokens=30, seed=1).text == expected
    wait_until_idle(engine)
    loop_of(engine).context.cache.check()


def test_an_interrupt_between_two_turns_leaves_the_engine_at_work(
    model: aleator.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, interrupted = EngineLoop._work, threading.Event()

    def interrupt_once(loop: EngineLoop) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        work(loop)

    monkeypatch.setattr(EngineLoop, "_work", interrupt_once)
    with model.engine(n_seq_max=1) as engine:
        assert engine.submit("ROMEO:", max_tokens=3).wait(timeout=30)
    assert interrupted.is_set()


def test_an_interrupt_of_who_submits_leaves_no_request_behind(engine: aleator.Engine) -> None:
    class Mail(SimpleQueue[Any]):
        broken = True

        def put(self, *given: Any, **options: Any) -> None:
            if self.broken:
                self.broken = False
                raise KeyboardInterrupt
            super().put(*given, **options)

    loop = loop_of(engine)
    before, loop._mail = loop._mail, Mail()
    before.put(None)
    with pytest.raises(KeyboardInterrupt):
        engine.submit("ROMEO:", max_tokens=400, ignore_eos=True)
    wait_until_idle(engine)
    assert engine.stats.cancelled == 1
    assert engine.submit("ROMEO:", max_tokens=3).wait(10)


def test_an_interrupt_after_a_request_was_taken_ends_it(
    engine: aleator.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = EngineLoop.submit

    def interrupted(loop: EngineLoop, handle: RequestHandle) -> None:
        submit(loop, handle)
        raise KeyboardInterrupt

    monkeypatch.setattr(EngineLoop, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:  # with its frames, and what these hold
        engine.submit("ROMEO:", max_tokens=400, ignore_eos=True)
    wait_until_idle(engine)
    assert engine.stats.cancelled == 1
    assert kept.value is not None


def test_closing_ends_all_and_frees_the_context(
    model: aleator.LanguageModel, request: pytest.FixtureRequest
) -> None:
    before = threading.active_count()
    engine = model.engine(n_seq_max=2, n_ctx=512)
    context = weakref.ref(loop_of(engine).context)
    pool = weakref.ref(loop_of(engine).context.cache.pool)  # keys and values
    made = [engine.submit("ROMEO:", max_tokens=200, ignore_eos=True) for _ in range(4)]
    assert next(made[0])
    gc.collect()
    gc.disable()  # its memory is free at once
    request.addfinalizer(gc.enable)
    engine.close()
    engine.close()
    assert threading.active_count() == before
    assert all(each.done for each in made)
    assert made[3].stop_reason == "interrupted"
    assert engine.closed
    stats = engine.stats
    assert stats.cancelled == 4
    assert (stats.running, stats.waiting, stats.cells_reserved) == (0, 0, 0)
    assert "closed" in repr(engine)
    with pytest.raises(EngineClosed, match="make another one"):
        engine.submit("ROMEO:")
    assert (context(), pool()) == (None, None)


def test_a_closed_loop_takes_nothing_more(model: aleator.LanguageModel) -> None:
    engine = model.engine(n_seq_max=1, n_ctx=64)
    loop = loop_of(engine)
    engine.close()
    for call in (
        lambda: engine.visit(lambda context, seq: None),
        lambda: loop.visit(lambda context, seq: None),
        lambda: loop.check_queue(1),
    ):
        with pytest.raises(EngineClosed, match="make another one"):
            call()


def test_a_forgotten_engine_closes_itself(model: aleator.LanguageModel) -> None:
    before = threading.active_count()
    engine = aleator.Engine(model, n_seq_max=1, n_ctx=256)
    assert engine.submit("ROMEO:", max_tokens=3).text
    thread = loop_of(engine)._thread
    del engine
    gc.collect()
    thread.join(20)
    assert threading.active_count() == before


def test_the_garbage_collector_closes_an_engine_without_waiting(
    model: aleator.LanguageModel,
) -> None:
    """It may run in any thread, also in one that holds what closing would wait for."""
    engine = aleator.Engine(model, n_seq_max=1, n_ctx=512)
    loop, gone, waits = loop_of(engine), threading.Event(), threading.Event()
    context = weakref.ref(loop.context)

    def look(chain: Any, logits: Any) -> None:
        gone.wait(20)

    made = engine.submit("ROMEO:", max_tokens=400, ignore_eos=True, on_logits=look)

    def forget(held: list[aleator.Engine], lock: threading.Lock) -> None:
        with lock:
            held.clear()
            gc.collect()
        waits.set()

    forgets = threading.Thread(target=forget, args=([engine], loop._lock), daemon=True)
    del engine
    forgets.start()
    assert waits.wait(10)
    gone.set()
    assert made.wait(10)
    assert made.stop_reason == "interrupted"
    loop._thread.join(10)
    del loop
    gc.collect()
    assert context() is None


def test_the_end_of_the_interpreter_waits_for_each_engine_and_a_fork_leaves_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Loop:
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def close(self, patience: float) -> None:
            self.calls.append(patience)

        def after_fork(self) -> None:
            self.calls.append("forked")

    loops = [Loop(), Loop()]
    monkeypatch.setattr(engine_loop, "_loops", loops)
    engine_loop._after_fork()
    engine_loop._close_all()
    assert [each.calls for each in loops] == [["forked", engine_loop.CLOSE_TIMEOUT]] * 2


def test_an_engine_is_closed_before_the_interpreter_ends() -> None:
    code = """
import aleator
engine = aleator.Engine(aleator.load(n_threads=1), n_seq_max=1, n_ctx=512)
made = engine.submit("ROMEO:", max_tokens=400, ignore_eos=True)
next(made)
import atexit
from aleator.engine import engine_loop
atexit.unregister(engine_loop._close_all)
atexit.register(lambda: print(made.stop_reason, engine._loop._thread.is_alive()))
atexit.register(engine_loop._close_all)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("interrupted False\n", "")


def test_an_interrupt_of_an_ending_request_is_made_up_for_though_others_end_too(
    engine: aleator.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, interrupted = RequestHandle.settle, threading.Event()

    def interrupt_once(handle: RequestHandle) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        settle(handle)

    monkeypatch.setattr(RequestHandle, "settle", interrupt_once)
    long = engine.submit("JULIET:", max_tokens=200)
    next(long)
    short = engine.submit("ROMEO:", max_tokens=2)
    assert short.wait(timeout=30)
    assert len(short.tokens) == 2
    with pytest.raises(KeyboardInterrupt):
        long.wait(timeout=30)
    assert interrupted.is_set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_is_told_that_the_engine_stayed_behind(
    model: aleator.LanguageModel, engine: aleator.Engine
) -> None:
    made = engine.submit("ROMEO:", max_tokens=200, ignore_eos=True, seed=1, on_logits=wait)
    next(made)
    loop = loop_of(engine)
    locks = engine._making, loop._lock, loop._handles[0]._lock
    for lock in locks:  # other threads may hold them when the process forks
        lock.acquire()
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends a child that waits for ever
        told = 0
        calls: tuple[Callable[[], str], ...] = (
            lambda: made.text,
            lambda: engine.submit("JULIET:").text,
        )
        for call in calls:
            try:
                call()
            except EngineClosed:
                told += 1
        engine.close()
        with aleator.Engine(model, n_seq_max=1, n_ctx=64) as own:
            told += len(own.submit("ROMEO:", max_tokens=3, ignore_eos=True).tokens)
        os._exit(told)
    for lock in locks:
        lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert engine.submit("ROMEO:", max_tokens=3, ignore_eos=True).text
    assert made.wait(60)
