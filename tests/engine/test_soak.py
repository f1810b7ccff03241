"""A short torment; tools/engine_soak.py makes long ones."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

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
