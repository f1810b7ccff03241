"""A short torment; tools/engine_soak.py makes long ones."""

from __future__ import annotations

import gc
import subprocess
import sys
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import aleator

SOAK = """
import engine_soak
engine_soak.PER_ENGINE = 30
made = engine_soak.soak(seconds=4, seed=3, n_threads=2)
assert made.wrong == [], made.wrong
assert made.counts["engines"] >= 2, made.counts
assert made.counts["requests"] > 20, made.counts

from dataclasses import replace
from engine_soak import Memory, grown
start = Memory(in_use=10 * 2**20, blocks=170_000, resident=60 * 2**20)
levels_off = [replace(start, resident=n * 2**20) for n in (62, 70, 75, 76, 75, 77, 76, 76) * 2]
assert grown(start, levels_off, start, 9_000) == []
[leak] = grown(start, levels_off, replace(start, in_use=13 * 2**20), 9_000)
assert "3.0 MiB more of native memory" in leak, leak
[leak] = grown(start, levels_off, replace(start, blocks=179_000), 9_000)
assert "9000 more blocks" in leak, leak
[leak] = grown(start, [*levels_off, replace(start, resident=96 * 2**20)], start, 9_000)
assert "19.0 MiB" in leak, leak
"""


def test_engines_survive_torment() -> None:
    # In a process of its own: interrupts thrown into a thread that is traced, as coverage does, stop the rest.
    tools = Path(__file__).parent.parent.parent / "tools"
    done = subprocess.run(
        [sys.executable, "-c", SOAK],
        cwd=tools,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_failed_request_holds_no_logits(
    engine: aleator.Engine, request: pytest.FixtureRequest
) -> None:
    """A step's logits are as large as its batch times the vocabulary, and errors may be kept for long."""
    seen = []

    def first(logits: np.ndarray) -> None:
        raise KeyError("first")

    def fails(chain: object, logits: np.ndarray) -> None:
        seen.append(weakref.ref(logits))
        try:
            first(logits)
        except KeyError as error:
            raise RuntimeError("not today") from error

    def reads() -> None:
        mine = [1]
        assert generation.wait(), mine

    gc.collect()
    gc.disable()  # they are free at once
    request.addfinalizer(gc.enable)
    generation = engine.submit("ROMEO:", on_logits=fails)
    with pytest.raises(RuntimeError, match="not today") as kept:
        reads()
    assert engine.submit("ROMEO:", max_tokens=1).wait()  # the step after
    assert [each() for each in seen] == [None]
    assert generation.error is kept.value
    assert "in first" in "".join(traceback.format_exception(kept.value))
    assert kept.traceback[1].frame.f_locals["mine"] == [1]  # who reads keeps what is his


KEPT = """
import gc, sys
import aleator
from engine_soak import Memory
with aleator.load(n_threads=1).engine(n_seq_max=1, n_ctx=256) as engine:
    first = [engine.submit("ROMEO:", max_tokens=3, seed=0) for _ in range(8)]
    assert all(each.wait() for each in first)
    gc.collect()
    before, kept = Memory.now(), []
    for seed in range(64):
        kept.append(engine.submit("ROMEO:", max_tokens=3, seed=seed))
        assert kept[-1].wait()
    more = Memory.now().in_use - before.in_use
    assert more < 64 * 16 * 1024, more  # 48 KB each with what orders 2,048 logits
"""


def test_a_kept_generation_holds_no_memory_to_sample_in() -> None:
    # In a process of its own: the allocator counts those of other tests.
    tools = Path(__file__).parent.parent.parent / "tools"
    subprocess.run([sys.executable, "-c", KEPT], cwd=tools, timeout=120, check=True)


def test_generators_of_an_error_go_on(engine: aleator.Engine) -> None:
    def generator() -> Iterator[int]:
        try:
            raise KeyError("caught")
        except KeyError as error:
            errors.append(error)
            yield 1
            yield 2

    def fails(chain: object, logits: np.ndarray) -> None:
        raise errors[0]

    errors: list[BaseException] = []
    made = generator()
    assert next(made) == 1
    generation = engine.submit("ROMEO:", on_logits=fails)
    with pytest.raises(KeyError, match="caught"):
        generation.wait()
    assert engine.submit("ROMEO:", max_tokens=1).wait()  # the step after
    assert next(made) == 2


def test_a_failed_request_holds_no_engine(
    model: aleator.LanguageModel, request: pytest.FixtureRequest
) -> None:
    def fails(chain: object, logits: object) -> None:
        raise RuntimeError("not today")

    held = []
    with aleator.Engine(model, n_seq_max=1, n_ctx=256) as engine:
        for _ in range(2):
            generation = engine.submit("ROMEO:", on_logits=fails)
            with pytest.raises(RuntimeError, match="not today"):
                generation.wait()
            held.append(generation)
        assert engine._owner is not None
        context = weakref.ref(engine._owner._context)
        gc.collect()
        gc.disable()  # its memory is free at once
        request.addfinalizer(gc.enable)
    assert context() is None
    generations = [weakref.ref(each) for each in held]
    del held, generation
    gc.collect()
    assert [each() for each in generations] == [None, None]
