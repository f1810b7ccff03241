"""What tests of engines have in common."""

from __future__ import annotations

import time
from typing import Any

import aleator
from aleator.engine.engine_loop import EngineLoop

PROMPTS = ("ROMEO:", "JULIET:\nWhat", "First Citizen:\n" * 8, "KING RICHARD:", "ROMEO:")


def loop_of(engine: aleator.Engine) -> EngineLoop:
    loop = engine._loop
    assert loop is not None
    return loop


def wait_until_idle(engine: aleator.Engine) -> None:
    for _ in range(2000):
        stats = engine.stats
        if not stats.running and not stats.waiting:
            return
        time.sleep(0.005)
    raise AssertionError("requests are still under way")


def wait(chain: Any, logits: Any) -> None:
    time.sleep(0.002)
