"""What failed and kept requests hold: no memory, no engine."""

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
    assert repr(generation.error) == repr(kept.value)
    assert "in first" in "".join(traceback.format_exception(kept.value))
    assert kept.traceback[1].frame.f_locals["mine"] == [1]  # who reads keeps what is his


KEPT = """
import gc, sys
import aleator
from attacks.memory import Memory
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

    held: list[object] = []
    with aleator.Engine(model, n_seq_max=1, n_ctx=256) as engine:
        for _ in range(2):
            generation = engine.submit("ROMEO:", on_logits=fails)
            with pytest.raises(RuntimeError, match="not today") as kept:
                generation.wait()
            held += [generation, kept.value]
        assert engine._loop is not None
        context = weakref.ref(engine._loop.context)
        gc.collect()
        gc.disable()  # its memory is free at once
        request.addfinalizer(gc.enable)
    assert context() is None
