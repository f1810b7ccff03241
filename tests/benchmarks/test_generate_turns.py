"""Engines of a benchmark take turns until their rounds or their seconds are over, on what they are told."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, cast

import generate_engines
import pytest
from generate_turns import Worker, asked, in_turns
from make_models import SPECS, write_model
from run_report import command


class Counting:
    """A worker that needs half a second for everything."""

    def __init__(self) -> None:
        self.orders: list[tuple[Any, ...]] = []

    def order(self, *words: Any) -> float:
        self.orders.append(words)
        return 0.5


@pytest.mark.parametrize(("most", "rounds"), [(math.inf, 4), (0.0, 2)])
def test_rounds_end_with_the_seconds(most: float, rounds: int) -> None:
    ours, theirs = Counting(), Counting()
    workers = cast("dict[str, Worker]", {"aleator": ours, "llama.cpp": theirs})
    options = argparse.Namespace(most=most, cache_types=None)
    found = in_turns(workers, asked("batch 8 4", 3), options)
    assert found == {"aleator": 64.0, "llama.cpp flash": 64.0, "llama.cpp plain": 64.0}
    assert ours.orders == [("batch", "", 8, 4)] * rounds
    assert len(theirs.orders) == 2 * rounds


@pytest.mark.parametrize("words", ["filled 2", "sampled 2 3", "guess 1"])
def test_what_is_no_order(words: str) -> None:
    with pytest.raises(SystemExit, match="no order"):
        asked(words, 1)


@pytest.mark.parametrize("flash_attn", [False, True])
def test_a_state_fills_a_cache_of_either_layout(tmp_path: Path, flash_attn: bool) -> None:
    engine: Any = generate_engines.Aleator(write_model(tmp_path / "m.gguf", SPECS["llama"]), 1)
    make = engine._make
    engine._make = lambda *given, **options: make(*given, flash_attn=flash_attn, **options)
    measured = generate_engines.Measured(engine)
    assert measured.filled("", 3, 50) > 0
    cache = engine._context.cache
    assert cache.v_trans is not flash_attn
    assert (cache.seq_pos_max(0), len(cache.sequence(0))) == (52, 53)
    assert 0 < measured.drawn("", 4) < 60


def test_a_command_names_no_folders() -> None:
    told = command("benchmarks/x.py", ["-m", "/a/b/m.gguf", "--out", "c/d", "--rounds", "2"])
    assert told == "python benchmarks/x.py -m m.gguf --out c/d --rounds 2"
