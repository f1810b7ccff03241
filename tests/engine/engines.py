"""What tests of engines have in common."""

from __future__ import annotations

import time
from typing import Any

import aleator
from aleator.engine.owner import Owner

PROMPTS = ("ROMEO:", "JULIET:\nWhat", "First Citizen:\n" * 8, "KING RICHARD:", "ROMEO:")


def owner_of(engine: aleator.Engine) -> Owner:
    owner = engine._owner
    assert owner is not None
    return owner


def wait_until_idle(engine: aleator.Engine) -> None:
    for _ in range(2000):
        stats = engine.stats
        if not stats.running and not stats.waiting:
            return
        time.sleep(0.005)
    raise AssertionError("requests are still under way")


def wait(chain: Any, logits: Any) -> None:
    time.sleep(0.002)
